//! `extant image mount`: the disk in an image as a file, in the hands of other programs.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_sys::mounts::Mount;
use extant_testkit::busy::try_while_busy;
use extant_testkit::command::{must, tool};
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::scratch::{DirectIo, LoopDevice};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Answer, MIB, extant, noise, run, wait_until};

fn can_mount() -> Requirement {
    let needs = [
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("qemu-img"),
    ];
    Requirement::new(
        "root, /dev/fuse and qemu-img",
        needs.iter().all(Requirement::is_met),
    )
}

/// An image and a directory to mount it in. Dropping the value unmounts everything.
struct Stand {
    work: Workdir,
    image: PathBuf,
    directory: PathBuf,
    watchdog: RefCell<Option<FuseWatchdog>>,
}

impl Stand {
    fn new(name: &str, mebibytes: u64) -> Self {
        let work = Workdir::new();
        let image = work.path().join(name);
        let size = (mebibytes * MIB).to_string();
        let format = if name.ends_with("qcow2") {
            "qcow2"
        } else {
            "raw"
        };
        oracle::qemu::qemu(&[&"create", &"-q", &"-f", &format, &image, &size]);
        Self {
            directory: work.directory("mount"),
            work,
            image,
            watchdog: RefCell::default(),
        }
    }

    /// `extant image mount IMAGE PLACE` with further arguments.
    #[track_caller]
    fn mount_at(&self, place: &Path, words: &[&str]) -> Answer {
        let mut command = extant();
        command.args(["image", "mount"]).args(words);
        let answer = run(command.arg(&self.image).arg(place));
        if answer.code == Some(0) {
            *self.watchdog.borrow_mut() = Some(FuseWatchdog::watch(place));
        }
        answer
    }

    #[track_caller]
    fn mount(&self, words: &[&str]) -> Answer {
        self.mount_at(&self.directory, words)
    }

    /// The disk in the mounted directory. A test that asks makes progress.
    fn disk(&self) -> PathBuf {
        if let Some(watchdog) = self.watchdog.borrow().as_ref() {
            watchdog.progress();
        }
        self.directory.join("vm.raw")
    }

    fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(self.disk()).unwrap()
    }

    #[track_caller]
    fn umount(&self, place: &Path) {
        let is_busy = |answer: &Answer| answer.stderr.contains("in use");
        try_while_busy(is_busy, || run(extant().arg("umount").arg(place))).success();
        *self.watchdog.borrow_mut() = None;
    }

    /// Unmounts; neither check finds an error.
    #[track_caller]
    fn end(&self) {
        self.umount(&self.directory);
        self.assert_checks();
    }

    #[track_caller]
    fn assert_checks(&self) {
        oracle::qemu::assert_checks(&self.image);
        run(extant().args(["image", "check"]).arg(&self.image)).success();
    }

    /// Whether `extant image map` finds data there, and a place in the file.
    #[track_caller]
    fn state_at(&self, offset: u64) -> (bool, bool) {
        let map = run(extant().args(["image", "map", "--json"]).arg(&self.image)).success();
        let map = map.json();
        let parts = map.as_array().unwrap();
        let number = |part: &serde_json::Value, name: &str| part[name].as_u64().unwrap();
        let part = parts.iter().find(|part| {
            let start = number(part, "start");
            (start..start + number(part, "length")).contains(&offset)
        });
        let part = part.unwrap_or_else(|| panic!("nothing at {offset}: {map}"));
        (part["zero"] == false, part.get("offset").is_some())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        for place in [&self.directory, &self.image] {
            while Mount::at(place).unwrap().is_some() {
                if extant_fuse::unmount(place, extant_fuse::Busy::Detach).is_err() {
                    break;
                }
            }
        }
    }
}

#[track_caller]
fn sh(script: &str, directory: &Path) {
    must(tool("sh").args(["-euc", script]).current_dir(directory));
}

#[test]
fn file_system_on_a_loop_device_over_the_disk_survives_fio_and_checks_clean() {
    require!(can_mount(), requires::tool("fio"), requires::tool("mke2fs"));
    for direct_io in [DirectIo::Off, DirectIo::On] {
        let stand = Stand::new("vm.qcow2", 128);
        stand.mount(&[]).success();
        let device = LoopDevice::attach_with(&stand.disk(), direct_io, 512);
        let files = stand.work.directory("files");
        must(tool("mke2fs").args(["-q", "-t", "ext4"]).arg(device.path()));
        must(tool("mount").arg(device.path()).arg(&files));
        let job = [
            "--name=verify",
            "--size=24M",
            "--rw=randwrite",
            "--bs=4k",
            "--ioengine=libaio",
            "--direct=1",
            "--iodepth=32",
            "--verify=crc32c",
            "--fsync=64",
        ];
        let mut fio = tool("fio");
        // It leaves a file in its directory.
        fio.current_dir(stand.work.path());
        let ended = extant_testkit::command::run(
            fio.args(job)
                .arg(format!("--directory={}", files.display())),
        );
        must(tool("umount").arg(&files));
        ended.unwrap();
        oracle::assert_e2fsck_clean(device.path());
        drop(device);
        stand.end();
        let copy = stand.work.path().join("copy.raw");
        oracle::qemu::qemu(&[
            &"convert",
            &"-f",
            &"qcow2",
            &"-O",
            &"raw",
            &stand.image,
            &copy,
        ]);
        oracle::assert_e2fsck_clean(&copy);
    }
}

#[test]
fn fio_verifies_direct_writes_of_the_disk_at_depth() {
    require!(can_mount(), requires::tool("fio"));
    for words in [
        &["--cache", "none"][..],
        &["-o", "threads=1"],
        &["--cache", "writeback"],
    ] {
        let stand = Stand::new("vm.qcow2", 64);
        stand.mount(words).success();
        let job = [
            "--name=verify",
            "--size=32M",
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--ioengine=libaio",
            "--direct=1",
            "--iodepth=16",
            "--verify=crc32c",
        ];
        must(
            tool("fio")
                .current_dir(stand.work.path())
                .args(job)
                .arg(format!("--filename={}", stand.disk().display())),
        );
        stand.end();
    }
}

#[test]
fn sparse_copy_skips_holes_and_equals_the_image() {
    require!(can_mount());
    let stand = Stand::new("vm.qcow2", 64);
    stand.mount(&[]).success();
    let disk = stand.open();
    disk.write_all_at(&noise(1, 3 << 20), 5 << 20).unwrap();
    // Parts of blocks, also beside each other at the same time.
    thread::scope(|scope| {
        for part in 0..8_u8 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..100 {
                    let offset = (40 << 20) + round * 4096 + u64::from(part) * 77;
                    disk.write_all_at(&[part + 1; 77], offset).unwrap();
                }
            });
        }
    });
    let mut found = [0; 8 * 77];
    disk.read_exact_at(&mut found, (40 << 20) + 99 * 4096)
        .unwrap();
    for (part, bytes) in found.chunks(77).enumerate() {
        assert!(bytes.iter().all(|&byte| byte == part as u8 + 1), "{part}");
    }
    drop(disk);
    let allocated = fs::metadata(stand.disk()).unwrap().blocks() * 512;
    assert!(
        (3 * MIB..6 * MIB).contains(&allocated),
        "{allocated} bytes have space"
    );
    let copy = stand.work.path().join("copy.raw");
    must(tool("cp").arg("--sparse=auto").arg(stand.disk()).arg(&copy));
    let metadata = fs::metadata(&copy).unwrap();
    assert_eq!(metadata.len(), 64 * MIB);
    assert!(
        metadata.blocks() * 512 < 6 * MIB,
        "{} sectors",
        metadata.blocks()
    );
    stand.end();
    oracle::qemu::assert_reads_same((&stand.image, "qcow2"), (&copy, "raw"));
}

#[test]
fn fallocate_assigns_punches_and_zeroes_space_of_the_image() {
    require!(can_mount());
    const CLUSTER: u64 = 64 << 10;
    let stand = Stand::new("vm.qcow2", 16);
    let change = |mode: FallocateFlags, offset: u64, length: u64| {
        fallocate(stand.open(), mode, offset, length)
    };
    let keep = FallocateFlags::KEEP_SIZE;
    stand.mount(&[]).success();
    stand.open().write_all_at(&noise(2, 1 << 20), 0).unwrap();
    change(FallocateFlags::empty(), 8 << 20, 1 << 20).unwrap();
    change(FallocateFlags::PUNCH_HOLE | keep, CLUSTER, CLUSTER).unwrap();
    change(FallocateFlags::ZERO_RANGE, 4 * CLUSTER, CLUSTER).unwrap();
    // Neither whole clusters nor whole blocks.
    change(FallocateFlags::PUNCH_HOLE | keep, 6 * CLUSTER + 100, 1000).unwrap();
    let past = change(FallocateFlags::empty(), 15 << 20, 2 << 20);
    assert_eq!(past, Err(Errno::NOSPC));
    let inserted = change(FallocateFlags::INSERT_RANGE, 0, CLUSTER);
    assert_eq!(inserted, Err(Errno::OPNOTSUPP));
    let mut found = vec![0; 1 << 20];
    stand.open().read_exact_at(&mut found, 0).unwrap();
    let mut wanted = noise(2, 1 << 20);
    for (start, length) in [
        (CLUSTER, CLUSTER),
        (4 * CLUSTER, CLUSTER),
        (6 * CLUSTER + 100, 1000),
    ] {
        wanted[start as usize..][..length as usize].fill(0);
    }
    assert!(found == wanted);
    stand.end();
    let (data, has_place) = stand.state_at(0);
    assert!(data && has_place);
    // Assigned, with its place in the file.
    assert!(stand.state_at(8 << 20).1);
    let punched = stand.state_at(CLUSTER);
    assert_eq!(punched, (false, false));
    let zeroed = stand.state_at(4 * CLUSTER);
    assert!(!zeroed.0 && zeroed.1, "{zeroed:?}");

    stand.mount(&["--discard", "ignore"]).success();
    change(FallocateFlags::PUNCH_HOLE | keep, 0, CLUSTER).unwrap();
    stand.end();
    let kept = stand.state_at(0);
    assert!(!kept.0 && kept.1, "{kept:?}");
}

#[test]
fn disk_is_neither_truncated_nor_written_past_its_end() {
    require!(can_mount());
    let stand = Stand::new("vm.qcow2", 16);
    stand.mount(&[]).success();
    let disk = stand.open();
    for size in [0, 15 * MIB, 17 * MIB] {
        let refused = disk.set_len(size).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
    }
    assert!(File::create(stand.disk()).is_err());
    assert_eq!(disk.write_at(&[1; 8192], 16 * MIB - 4096).unwrap(), 4096);
    let full = disk.write_at(&[1; 512], 16 * MIB).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(disk.read_at(&mut [0; 512], 16 * MIB).unwrap(), 0);
    assert_eq!(disk.metadata().unwrap().len(), 16 * MIB);
    drop(disk);
    stand.end();
}

#[test]
fn growable_disk_grows_by_writes_truncation_and_allocation() {
    require!(can_mount());
    for name in ["vm.qcow2", "vm.img"] {
        let stand = Stand::new(name, 1);
        stand.mount(&["--growable"]).success();
        let disk = stand.open();
        let size = || fs::metadata(stand.disk()).unwrap().len();
        disk.write_all_at(&noise(3, 4096), 2 * MIB).unwrap();
        assert_eq!(size(), 2 * MIB + 4096, "{name}");
        disk.set_len(3 * MIB).unwrap();
        assert_eq!(size(), 3 * MIB, "{name}");
        fallocate(&disk, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
        assert_eq!(size(), 4 * MIB, "{name}");
        // Past one L1 entry of a qcow2 image.
        disk.set_len(3 << 30).unwrap();
        disk.write_all_at(&noise(4, 4096), (3 << 30) - 4096)
            .unwrap();
        assert_eq!(size(), 3 << 30, "{name}");
        disk.set_len(MIB).unwrap_err();
        let mut found = vec![0; 4096];
        disk.read_exact_at(&mut found, 2 * MIB).unwrap();
        assert!(found == noise(3, 4096), "{name}");
        drop(disk);
        stand.umount(&stand.directory);
        if name.ends_with("qcow2") {
            stand.assert_checks();
        }
        let info = run(extant().args(["image", "info", "--json"]).arg(&stand.image));
        assert_eq!(info.success().number("/capacity_bytes"), 3 << 30, "{name}");
    }
}

#[test]
fn read_only_mount_shows_the_disk_over_the_image_itself() {
    require!(can_mount());
    let stand = Stand::new("vm.qcow2", 16);
    let head = fs::read(&stand.image).unwrap();
    let ready = stand
        .mount_at(&stand.image, &["--read-only", "--json"])
        .success();
    assert_eq!(ready.valid_json("image mount")["access"], "read-only");
    assert_eq!(ready.text("/file"), stand.image.to_str().unwrap());
    assert!(fs::read(&stand.image).unwrap() == vec![0; 16 << 20]);
    let refused = OpenOptions::new()
        .write(true)
        .open(&stand.image)
        .unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    stand.umount(&stand.image);
    assert!(fs::read(&stand.image).unwrap() == head);
}

#[test]
fn image_that_is_mounted_is_refused_with_its_mount() {
    require!(can_mount());
    let stand = Stand::new("vm.qcow2", 16);
    stand.mount(&[]).success();
    let other = stand.work.directory("other");
    let place = stand.directory.to_str().unwrap();
    stand
        .mount_at(&other, &[])
        .refused(4, &["mounted at", place, "extant image mount"]);
    let mut serve = extant();
    serve.args(["serve", "--socket", "s"]).arg(&stand.image);
    run(serve.current_dir(stand.work.path())).refused(4, &["mounted at", place]);
    let qemu = extant_testkit::command::run(
        tool("qemu-img")
            .args(["check", "-f", "qcow2"])
            .arg(&stand.image),
    );
    assert!(qemu.is_err(), "QEMU does not respect the lock");
    stand
        .mount_at(&stand.work.path().join("missing"), &[])
        .refused(4, &["missing"]);
    // By the name of the image.
    stand.umount(&stand.image);
    stand.assert_checks();
}

/// Blocks whose fsync had returned before the server was killed.
#[test]
fn synced_blocks_are_in_the_image_after_a_kill() {
    require!(can_mount());
    const WRITERS: u64 = 4;
    let stand = Stand::new("vm.qcow2", 256);
    let pid = stand.mount(&["--json"]).success().number("/pid");
    let disk = stand.open();
    let is_enough = AtomicBool::new(false);
    // Each writer has every fourth cluster, in an order that is not that of the disk.
    let offset = |writer: u64, round: u64| ((round * 37 % 1000) * WRITERS + writer) << 16;
    let synced: Vec<u64> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (disk, is_enough) = (&disk, &is_enough);
                scope.spawn(move || {
                    for round in 0..1000 {
                        let data = noise(writer << 32 | round, 8192);
                        let done = disk
                            .write_all_at(&data, offset(writer, round))
                            .and_then(|()| disk.sync_data());
                        if done.is_err() {
                            return round;
                        }
                        if round == 20 {
                            is_enough.store(true, Ordering::Relaxed);
                        }
                    }
                    1000
                })
            })
            .collect();
        wait_until("twenty synced writes", || is_enough.load(Ordering::Relaxed));
        let process = Pid::from_raw(pid as i32).unwrap();
        kill_process(process, Signal::KILL).unwrap();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect()
    });
    drop(disk);
    stand.umount(&stand.directory);
    stand.assert_no_errors();
    stand.mount(&["--read-only"]).success();
    let disk = File::open(stand.disk()).unwrap();
    for (writer, rounds) in (0..).zip(synced) {
        assert!(rounds > 0);
        for round in 0..rounds {
            let mut found = vec![0; 8192];
            disk.read_exact_at(&mut found, offset(writer, round))
                .unwrap();
            let wanted = noise(writer << 32 | round, 8192);
            assert!(found == wanted, "writer {writer}, round {round}");
        }
    }
}

impl Stand {
    /// As after a crash: clusters may be leaked, and nothing else.
    #[track_caller]
    fn assert_no_errors(&self) {
        let mut check = Command::new("qemu-img");
        let answer = run(check.args(["check", "-f", "qcow2"]).arg(&self.image));
        assert!(matches!(answer.code, Some(0 | 3)), "{answer}");
        let answer = run(extant().args(["image", "check"]).arg(&self.image));
        assert!(matches!(answer.code, Some(0 | 3)), "{answer}");
    }
}

#[test]
fn volume_of_a_pool_and_file_inside_an_image_are_mounted() {
    require!(can_mount(), requires::tool("mke2fs"));
    let stand = Stand::new("vm.qcow2", 1);
    sh("mkdir pool", stand.work.path());
    let mut create = extant();
    create.args(["vol", "create", "./pool", "web.qcow2", "4MiB"]);
    run(create.current_dir(stand.work.path())).success();
    let mut mount = extant();
    mount.args(["image", "mount", "--pool", "./pool", "web.qcow2", "mount"]);
    run(mount.current_dir(stand.work.path())).success();
    let disk = stand.directory.join("web.raw");
    assert_eq!(fs::metadata(&disk).unwrap().len(), 4 * MIB);
    fs::OpenOptions::new()
        .write(true)
        .open(&disk)
        .unwrap()
        .write_all_at(&noise(5, 1000), 1000)
        .unwrap();
    stand.umount(&stand.directory);
    oracle::qemu::assert_checks(&stand.work.path().join("pool/web.qcow2"));

    let outer = stand.work.path().join("outer.img");
    must(
        tool("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(&outer)
            .arg("32M"),
    );
    let mut put = extant();
    put.args(["fs", "put"]).arg(&outer);
    run(put
        .arg(stand.work.path().join("pool/web.qcow2"))
        .arg("/web.qcow2"))
    .success();
    let mut mount = extant();
    mount.args(["image", "mount", "--in"]).arg(&outer);
    run(mount.arg("/web.qcow2").arg(&stand.directory)).success();
    let mut found = vec![0; 1000];
    let file = File::open(&disk).unwrap();
    file.read_exact_at(&mut found, 1000).unwrap();
    assert!(found == noise(5, 1000));
    drop(file);
    stand.umount(&stand.directory);
    oracle::assert_e2fsck_clean(&outer);
}
