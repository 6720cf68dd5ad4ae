//! The file system with faults works without them, and fails as configured.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, ErrorKind};
use extant_testkit::faulty::{
    DirectIoFault, FallocateFault, Faults, Faulty, RenameFault, WriteFault,
};
use extant_testkit::{command, oracle, require, requires};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with, statvfs};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.open(path).unwrap()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("a failure").raw_os_error()
}

fn raw(errno: Errno) -> Option<i32> {
    Some(errno.raw_os_error())
}

#[test]
fn faulty_without_faults_serves_ordinary_programs() {
    require!(Faulty::requirement(), requires::tool("cp"));
    let faulty = Faulty::new(64 * MIB, Faults::default());
    let root = faulty.path();
    let directory = root.join("directory/inner");
    fs::create_dir_all(&directory).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(directory.join("a"), &bytes).unwrap();
    fs::set_permissions(directory.join("a"), PermissionsExt::from_mode(0o640)).unwrap();
    command::run(
        command::tool("cp")
            .args(["-rp"])
            .args([&root.join("directory"), &root.join("copy")]),
    )
    .unwrap();
    oracle::assert_same_bytes(&directory.join("a"), &root.join("copy/inner/a"));
    assert_eq!(
        fs::metadata(root.join("copy/inner/a")).unwrap().mode() & 0o777,
        0o640
    );

    for number in 0..300 {
        create(&directory.join(format!("a file with a long name {number}")));
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 301);
    assert_eq!(errno(fs::remove_dir(&directory)), raw(Errno::NOTEMPTY));
    fs::remove_dir_all(root.join("directory")).unwrap();
    assert!(!directory.exists());

    let space = statvfs(root).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 64 * MIB);
    let used = (space.f_blocks - space.f_bfree) * space.f_frsize;
    assert_eq!(used, oracle::allocated_bytes(&root.join("copy/inner/a")));
    assert_eq!(faulty.counters().bytes_written, 2 * bytes.len() as u64);
}

#[test]
fn removed_file_stays_usable_while_open_and_then_frees_its_space() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let path = faulty.path().join("f");
    let file = create(&path);
    fs::remove_file(&path).unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    drop(file);
    let start = Instant::now();
    // The kernel sends FORGET asynchronously.
    while statvfs(faulty.path()).unwrap().f_bfree != 16 * MIB / 4096 {
        assert!(start.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn fallocate_works_until_the_space_is_gone() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let path = faulty.path().join("f");
    let mut file = create(&path);
    fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB).unwrap();
    assert_eq!(
        (
            oracle::allocated_bytes(&path),
            file.metadata().unwrap().len()
        ),
        (8 * MIB, 8 * MIB)
    );
    fallocate(&file, FallocateFlags::KEEP_SIZE, 8 * MIB, 8 * MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8 * MIB);
    let full = fallocate(&file, FallocateFlags::empty(), 16 * MIB, 1);
    assert_eq!(full.unwrap_err(), Errno::NOSPC);
    assert_eq!(
        errno(create(&faulty.path().join("g")).write_all(&[1])),
        raw(Errno::NOSPC)
    );

    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, MIB, 15 * MIB).unwrap();
    assert_eq!(oracle::allocated_bytes(&path), MIB);
    file.write_all_at(&[1; 5000], 0).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 5000).unwrap();
    oracle::assert_zeros(&path, ByteRange::new(0, 8 * MIB));
    let hole = file.seek(SeekFrom::End(0)).unwrap();
    assert_eq!(hole, 8 * MIB);
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)),
        Ok(MIB)
    );
    let collapsed = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapsed.unwrap_err(), Errno::OPNOTSUPP);
}

#[test]
fn fallocate_faults_refuse_or_lie() {
    require!(Faulty::requirement());
    let refuses = Faults {
        fallocate: FallocateFault::Unsupported,
        ..Faults::default()
    };
    let faulty = Faulty::new(16 * MIB, refuses);
    let path = faulty.path().join("f");
    let file = create(&path);
    let refused = fallocate(&file, FallocateFlags::empty(), 0, MIB);
    assert_eq!(refused.unwrap_err(), Errno::OPNOTSUPP);
    faulty.set_faults(Faults {
        fallocate: FallocateFault::FalseSuccess,
        ..Faults::default()
    });
    fallocate(&file, FallocateFlags::empty(), 0, MIB).unwrap();
    let attributes = file.metadata().unwrap();
    assert_eq!((attributes.len(), attributes.blocks()), (MIB, 0));
    assert_eq!(faulty.counters().fallocates, 2);
}

#[test]
fn writes_are_dropped_after_the_given_byte() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let path = faulty.path().join("f");
    let mut file = create(&path);
    file.write_all(&[1; 8192]).unwrap();
    faulty.set_faults(Faults {
        write: WriteFault::DroppedAfter(6000),
        ..Faults::default()
    });
    for _ in 0..4 {
        file.write_all(&[1; 4096]).unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 8192 + 4 * 4096);
    assert!(bytes[..14_192].iter().all(|&b| b == 1));
    assert!(bytes[14_192..].iter().all(|&b| b == 0));
    assert_eq!(oracle::allocated_bytes(&path), 16_384);
    assert_eq!(faulty.counters().bytes_written, 8192 + 4 * 4096);
}

#[test]
fn writes_fail_after_the_given_byte() {
    require!(Faulty::requirement());
    for (kind, expected) in [
        (ErrorKind::Io, Errno::IO),
        (ErrorKind::NoSpace, Errno::NOSPC),
        (ErrorKind::QuotaExceeded, Errno::DQUOT),
    ] {
        let faults = Faults {
            write: WriteFault::FailsAfter(6000, kind),
            ..Faults::default()
        };
        let faulty = Faulty::new(16 * MIB, faults);
        let mut file = create(&faulty.path().join("f"));
        assert_eq!(errno(file.write_all(&[1; 10_000])), raw(expected));
        assert_eq!(file.metadata().unwrap().len(), 6000);
        faulty.set_faults(Faults::default());
        file.write_all(&[1; 4000]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_000);
    }
}

#[test]
fn fsync_and_flagged_rename_fail_on_request() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let (one, other) = (faulty.path().join("a"), faulty.path().join("b"));
    let file = create(&one);
    fs::write(&other, b"b").unwrap();
    file.sync_all().unwrap();
    let rename = |flags| renameat_with(CWD, &one, CWD, &other, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"b");

    faulty.set_faults(Faults {
        fsync: Some(ErrorKind::Io),
        rename: RenameFault::NoFlags,
        ..Faults::default()
    });
    assert_eq!(errno(file.sync_all()), raw(Errno::IO));
    assert_eq!(errno(file.sync_data()), raw(Errno::IO));
    // To a free name: with a taken one the kernel would not even ask.
    let free = faulty.path().join("c");
    let kept = renameat_with(CWD, &one, CWD, &free, RenameFlags::NOREPLACE);
    assert_eq!(kept, Err(Errno::INVAL));
    fs::rename(&one, &other).unwrap();
    assert!(!one.exists());
    assert_eq!(fs::read(&other).unwrap(), b"b");
    assert_eq!(faulty.counters().fsyncs, 3);
}

#[test]
fn slow_writes_are_slow_together_and_end_with_the_fault() {
    require!(Faulty::requirement());
    let latency = Duration::from_millis(500);
    let faulty = Faulty::new(
        16 * MIB,
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let file = create(&faulty.path().join("f"));
    file.set_len(MIB).unwrap();
    let write = |block: u64| file.write_all_at(&[1; 4096], block * 4096).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        for block in 0..3 {
            scope.spawn(move || write(block));
        }
    });
    assert!(start.elapsed() >= latency);
    assert!(start.elapsed() < 3 * latency, "{:?}", start.elapsed());

    faulty.set_faults(Faults {
        latency: Duration::from_secs(3600),
        ..Faults::default()
    });
    thread::scope(|scope| {
        scope.spawn(|| write(9));
        thread::sleep(Duration::from_millis(20));
        faulty.set_faults(Faults::default());
    });
    assert_eq!(faulty.counters().writes, 4);
}

#[test]
fn direct_io_reaches_the_store() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let path = faulty.path().join("f");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let mut file = options.custom_flags(libc::O_DIRECT).open(&path).unwrap();
    // An aligned half of a buffer that need not be aligned itself.
    let buffer = vec![7; 16_384];
    let from = buffer.as_ptr().align_offset(4096);
    file.write_all(&buffer[from..from + 8192]).unwrap();
    let mut read = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, [7; 8192]);

    faulty.set_faults(Faults {
        direct_io: DirectIoFault::Refused,
        ..Faults::default()
    });
    let mut options = OpenOptions::new();
    let options = options
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT);
    assert_eq!(errno(options.open(&path)), raw(Errno::INVAL));
    assert_eq!(
        errno(options.open(faulty.path().join("new"))),
        raw(Errno::INVAL)
    );
    File::open(&path).unwrap();
}

#[test]
fn dropped_while_a_file_is_open_is_unmounted() {
    require!(Faulty::requirement());
    let faulty = Faulty::new(16 * MIB, Faults::default());
    let place = faulty.path().to_owned();
    let file = create(&place.join("f"));
    drop(faulty);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.to_str().unwrap()));
    assert!(!place.exists());
    drop(file);
}
