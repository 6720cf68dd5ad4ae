//! Scratch file systems have the requested type, fail on request, and leave no files.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::Path;
use std::process::Command;

use extant_space::{ByteRange, ExtentFlags, ExtentState};
use extant_testkit::scratch::{Filesystem, LoopDevice, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle, require, requires};
use rustix::fs::{FallocateFlags, fallocate, statfs};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65_534;

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.open(path).unwrap()
}

fn mounts_and_loops() -> String {
    let loops = command::text(command::tool("losetup").arg("--all")).unwrap();
    fs::read_to_string("/proc/self/mounts").unwrap() + &loops
}

#[test]
fn every_filesystem_is_mounted_as_itself_and_gone_after_drop() {
    for filesystem in Filesystem::ALL {
        require!(filesystem.requirement());
        let size = filesystem.size_bytes_min().max(64 * MIB);
        let scratch = Scratch::new(filesystem, size);
        let path = scratch.path().to_owned();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = format!(" {} {} ", path.display(), filesystem.kernel_type());
        assert!(mounts.contains(&line), "{filesystem}: no{line}in\n{mounts}");

        let mut file = create(&path.join("f"));
        file.write_all(&[7; 100_000]).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(path.join("f")).unwrap(), [7; 100_000]);
        let total = statfs(&path).unwrap();
        let total = total.f_blocks * total.f_bsize as u64;
        assert!(
            total > size / 2 && total <= size,
            "{filesystem}: {total} bytes of {size}"
        );

        let device = scratch.device().map(Path::to_owned);
        drop(file);
        drop(scratch);
        assert!(!path.exists());
        assert!(!mounts_and_loops().contains(path.parent().unwrap().to_str().unwrap()));
        assert_eq!(device.is_none(), filesystem == Filesystem::Tmpfs);
    }
}

#[test]
fn filesystem_options_reach_the_disk() {
    require!(
        requires::root(),
        requires::tool("dumpe2fs"),
        requires::tool("xfs_info"),
        Filesystem::Ext4.requirement(),
        Filesystem::Xfs.requirement()
    );
    let header = |filesystem, options: &[&str]| {
        let scratch = Scratch::builder(filesystem, 64 * MIB).mkfs_options(options);
        let scratch = scratch.build();
        command::text(
            command::tool("dumpe2fs")
                .arg("-h")
                .arg(scratch.device().unwrap()),
        )
        .unwrap()
    };
    let cases = [
        (
            Filesystem::Ext4,
            "Block size:               4096",
            " extent ",
        ),
        (
            Filesystem::Ext4SmallBlocks,
            "Block size:               1024",
            " extent ",
        ),
        (
            Filesystem::Ext4Bigalloc,
            "Cluster size:             65536",
            " bigalloc",
        ),
        (
            Filesystem::Ext4FastCommit,
            "Fast commit length:",
            " fast_commit ",
        ),
    ];
    for (filesystem, line, feature) in cases {
        let header = header(filesystem, &[]);
        assert!(
            header.contains(line) && header.contains(feature),
            "{header}"
        );
    }
    let ext2 = header(Filesystem::Ext2, &["-L", "mine"]);
    assert!(
        !ext2.contains(" extent ") && !ext2.contains("has_journal"),
        "{ext2}"
    );
    assert!(ext2.contains("mine"), "{ext2}");

    for (filesystem, reflink) in [
        (Filesystem::Xfs, "reflink=1"),
        (Filesystem::XfsNoReflink, "reflink=0"),
    ] {
        let scratch = Scratch::new(filesystem, filesystem.size_bytes_min());
        let info = command::text(command::tool("xfs_info").arg(scratch.path())).unwrap();
        assert!(info.contains(reflink), "{info}");
    }
}

#[test]
fn panic_of_a_test_leaves_nothing() {
    require!(Filesystem::Ext4.requirement());
    let mut place = None;
    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let scratch = Scratch::builder(Filesystem::Overlay, 32 * MIB)
            .memory(64 * MIB)
            .build();
        place = scratch.path().parent().map(Path::to_owned);
        // Dropped after the file system: the unmount finds an open file.
        panic::panic_any(create(&scratch.path().join("open")));
    }));
    let held = result.unwrap_err();
    let place = place.unwrap();
    assert!(
        !mounts_and_loops().lines().any(|line| {
            line.contains(place.to_str().unwrap()) && !line.starts_with("/dev/loop")
        })
    );
    drop(held);
    // The loop device is removed with the last file.
    let start = std::time::Instant::now();
    while mounts_and_loops().contains(place.to_str().unwrap()) {
        assert!(start.elapsed().as_secs() < 10, "{}", mounts_and_loops());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!place.exists());
}

#[test]
fn many_at_once_do_not_meet() {
    require!(Filesystem::Ext4.requirement());
    std::thread::scope(|scope| {
        for number in 0..12 {
            scope.spawn(move || {
                let scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
                let file = scratch.path().join("number");
                fs::write(&file, [number; 10]).unwrap();
                scratch.remount("ro");
                assert_eq!(fs::read(&file).unwrap(), [number; 10]);
            });
        }
    });
}

#[test]
fn thin_device_fails_in_the_middle() {
    require!(Filesystem::Ext4.requirement());
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(filesystem.requirement());
        let size = 512 * MIB;
        let scratch = Scratch::builder(filesystem, size).memory(160 * MIB).build();
        let file = create(&scratch.path().join("f"));
        fallocate(&file, FallocateFlags::empty(), 0, 256 * MIB).unwrap();
        let chunk = vec![1; MIB as usize];
        let failed = (0..256).position(|chunk_index| {
            let written = file.write_all_at(&chunk, chunk_index * MIB);
            written.and_then(|()| file.sync_data()).is_err()
        });
        let failed = failed.expect("256 MiB do not fit 160");
        assert!(failed >= 16, "{filesystem} failed after {failed} MiB");
    }
}

#[test]
fn backing_file_cut_short_fails_reads() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::builder(Filesystem::Ext4, 64 * MIB)
        .direct_io()
        .build();
    let path = scratch.path().join("f");
    fs::write(&path, vec![1; 8 * MIB as usize]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let backing = OpenOptions::new()
        .write(true)
        .open(scratch.backing_file().unwrap());
    backing.unwrap().set_len(MIB).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    assert!(fs::read(&path).is_err());
}

#[test]
fn read_only_remount_refuses_writes() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = Scratch::new(Filesystem::Btrfs, 128 * MIB);
    scratch.remount("ro");
    let error = File::create(scratch.path().join("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}

#[test]
fn limited_directory_stops_root() {
    require!(Filesystem::Btrfs.requirement(), requires::tool("btrfs"));
    let scratch = Scratch::new(Filesystem::Btrfs, 256 * MIB);
    let directory = scratch.limited_directory("small", 16 * MIB);
    let mut file = create(&directory.join("f"));
    let written = (0..32).find_map(|_| {
        let written = file.write_all(&vec![1; MIB as usize]);
        written.and_then(|()| file.sync_all()).err()
    });
    assert_eq!(
        written.unwrap().raw_os_error(),
        Some(Errno::DQUOT.raw_os_error())
    );
    fs::write(scratch.path().join("f"), vec![0; 32 * MIB as usize]).unwrap();
}

#[test]
fn user_directory_is_for_that_user_only() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
    let directory = scratch.user_directory(NOBODY);
    let touch = |directory: &Path| {
        let mut command = Command::new("touch");
        command.arg(directory.join("f")).uid(NOBODY).gid(NOBODY);
        command.output().unwrap().status.success()
    };
    assert!(touch(&directory));
    assert!(!touch(scratch.path()));
}

#[test]
fn loop_device_follows_its_file() {
    require!(requires::root(), requires::device("/dev/loop-control"));
    let work = Workdir::new();
    let file = work.path().join("image");
    File::create(&file).unwrap().set_len(MIB).unwrap();
    let device = LoopDevice::attach(&file);
    let size = |device: &LoopDevice| {
        let node = device.path().file_name().unwrap().to_str().unwrap();
        fs::read_to_string(format!("/sys/block/{node}/size")).unwrap()
    };
    assert_eq!(size(&device), "2048\n");
    OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(2 * MIB)
        .unwrap();
    device.update_size();
    assert_eq!(size(&device), "4096\n");
}

#[test]
fn filefrag_sees_written_unwritten_and_holes() {
    for filesystem in [
        Filesystem::Ext4,
        Filesystem::Ext4SmallBlocks,
        Filesystem::Xfs,
    ] {
        require!(filesystem.requirement(), requires::tool("filefrag"));
        let scratch = Scratch::new(filesystem, 512 * MIB);
        let path = scratch.path().join("f");
        let file = create(&path);
        fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
        file.write_all_at(&vec![1; MIB as usize], MIB).unwrap();
        file.set_len(6 * MIB).unwrap();

        let map = oracle::filefrag(&path);

        assert_eq!(map.size_bytes, 6 * MIB, "{filesystem}");
        let states: Vec<_> = map
            .with_holes()
            .iter()
            .map(|e| (e.state, e.logical))
            .collect();
        let mib = |start, end| ByteRange::new(start * MIB, end * MIB);
        let expected = [
            (ExtentState::Unwritten, mib(0, 1)),
            (ExtentState::Written, mib(1, 2)),
            (ExtentState::Unwritten, mib(2, 4)),
            (ExtentState::Hole, mib(4, 6)),
        ];
        assert_eq!(states, expected, "{filesystem}");
        assert_eq!(map.bytes(ExtentState::Written), MIB);
        assert_eq!(oracle::allocated_bytes(&path) / MIB, 4);
        assert!(!map.is_extant());
        oracle::assert_zeros(&path, mib(2, 6));
    }
}

#[test]
fn filefrag_sees_shared_extents() {
    require!(Filesystem::Xfs.requirement(), requires::tool("filefrag"));
    let scratch = Scratch::new(Filesystem::Xfs, Filesystem::Xfs.size_bytes_min());
    let (one, other) = (scratch.path().join("a"), scratch.path().join("b"));
    fs::write(&one, vec![3; MIB as usize]).unwrap();
    assert!(oracle::filefrag(&one).is_extant());
    command::run(
        command::tool("cp")
            .arg("--reflink=always")
            .args([&one, &other]),
    )
    .unwrap();
    let map = oracle::filefrag(&one);
    assert_eq!(map.extents[0].flags, ExtentFlags::SHARED);
    assert!(!map.is_extant());
    oracle::assert_same_bytes(&one, &other);
}

#[test]
fn e4defrag_counts_the_extents_that_filefrag_lists() {
    require!(Filesystem::Ext4.requirement(), requires::tool("e4defrag"));
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let path = scratch.path().join("f");
    let (file, other) = (create(&path), create(&scratch.path().join("g")));
    for block in 0..8 {
        for file in [&file, &other] {
            file.write_all_at(&[1; 65_536], block * 65_536).unwrap();
            file.sync_all().unwrap();
        }
    }
    let defrag = oracle::e4defrag(&path);
    let map = oracle::filefrag(&path);
    assert_eq!(defrag.extents, map.extents.len() as u64);
    assert!(defrag.score > 0 || defrag.extents == 1, "{defrag:?}");
}

#[test]
fn e2fsck_distinguishes_clean_from_damaged() {
    for filesystem in [Filesystem::Ext4, Filesystem::Ext2, Filesystem::Ext4Bigalloc] {
        require!(filesystem.requirement(), requires::tool("e2fsck"));
        let mut scratch = Scratch::new(filesystem, 32 * MIB);
        fs::write(scratch.path().join("f"), [1; 100_000]).unwrap();
        scratch.unmount();
        oracle::assert_e2fsck_clean(scratch.device().unwrap());
        oracle::assert_e2fsck_clean(scratch.backing_file().unwrap());

        // Free counts of group 0: in the first descriptor, in block 1.
        let image = OpenOptions::new()
            .write(true)
            .open(scratch.device().unwrap());
        image.unwrap().write_all_at(&[0x55; 4], 4096 + 12).unwrap();
        let verdict = oracle::e2fsck(scratch.device().unwrap());
        assert!(!verdict.is_clean, "{}", verdict.report);
    }
}
