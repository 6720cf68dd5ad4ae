//! Calls of programs, there and back.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::Ordering;

use extant_testkit::require;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;

use crate::fixture::{Fixture, can_mount, wait_for};
use crate::memory_fs::{CREATED, FLAGS};

fn read_write(fixture: &Fixture, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(fixture.path(name)).unwrap()
}

#[test]
fn written_data_is_read_back_through_the_cache_past_it_and_by_the_server() {
    require!(can_mount());
    for options in [
        "",
        "no_writeback",
        "threads=1",
        "threads=5,no_pin,max_read=8192",
    ] {
        let fixture = Fixture::new(options);
        let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
        fs::write(fixture.path("file"), &data).unwrap();
        assert_eq!(fs::read(fixture.path("file")).unwrap(), data, "{options}");
        assert_eq!(fixture.memory_fs.data("file"), data, "{options}");

        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(fixture.path("file"))
            .unwrap();
        direct.write_all_at(b"direct", 5000).unwrap();
        let mut found = vec![0; 2_000_000];
        direct.read_exact_at(&mut found, 1000).unwrap();
        assert_eq!(&found[4000..4006], b"direct");
        assert_eq!(found[4006..], data[5006..2_001_000], "{options}");
        drop(direct);

        fs::write(fixture.path("file"), b"short").unwrap();
        assert_eq!(fixture.memory_fs.data("file"), b"short");
        fixture.end();
    }
}

#[test]
fn names_are_listed_with_and_without_attributes() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let mut names: Vec<_> = (0..500).map(|number| format!("file-{number:03}")).collect();
    for name in &names {
        fs::write(fixture.path(name), name).unwrap();
    }
    let list = || {
        let entries = fs::read_dir(fixture.directory()).unwrap();
        let mut found: Vec<_> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                assert!(entry.file_type().unwrap().is_file());
                assert_eq!(entry.metadata().unwrap().len(), 8);
                entry.file_name().into_string().unwrap()
            })
            .collect();
        found.sort();
        found
    };
    assert_eq!(list(), names);
    fs::remove_file(fixture.path("file-007")).unwrap();
    names.remove(7);
    assert_eq!(list(), names);
    fixture.end();
}

#[test]
fn attributes_are_those_of_the_server_with_the_time_of_creation() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let file = read_write(&fixture, "file");
    file.set_len(5).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640))
        .unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode()), (5, 0o100640));
    assert_eq!(fixture.memory_fs.data("file").len(), 5);

    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, flags).unwrap();
    assert_eq!(StatxFlags::from_bits_retain(statx.stx_mask) & flags, flags);
    assert_eq!(statx.stx_btime.tv_sec, CREATED);
    assert_eq!((statx.stx_size, statx.stx_mode), (5, 0o100640));

    let statvfs = rustix::fs::statvfs(fixture.directory()).unwrap();
    assert_eq!(
        (statvfs.f_blocks, statvfs.f_bfree, statvfs.f_bavail),
        (1000, 900, 800)
    );
    assert_eq!(
        (statvfs.f_files, statvfs.f_ffree, statvfs.f_namemax),
        (70, 60, 200)
    );
    drop(file);
    fixture.end();
}

#[test]
fn unnamed_file_gets_a_name_by_link() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(fixture.directory(), flags, Mode::RUSR | Mode::WUSR).unwrap();
    let mut file = File::from(file);
    file.write_all(b"unnamed").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(fixture.directory()).unwrap().count(), 0);
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(
        CWD,
        open,
        CWD,
        fixture.path("named"),
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(fs::read(fixture.path("named")).unwrap(), b"unnamed");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    fixture.end();
}

#[test]
fn rename_passes_its_flags_on() {
    require!(can_mount());
    let fixture = Fixture::new("");
    fs::write(fixture.path("a"), "a").unwrap();
    fs::write(fixture.path("b"), "b").unwrap();
    let rename =
        |flags| rustix::fs::renameat_with(CWD, fixture.path("a"), CWD, fixture.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(fixture.path("a")).unwrap(), b"b");
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(fixture.path("b")).unwrap(), b"b");
    assert!(!fixture.path("a").exists());
    fixture.end();
}

#[test]
fn space_is_allocated_punched_and_sought() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let mut file = read_write(&fixture, "file");
    file.write_all(&[1; 8192]).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 8192, 8192).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 16384);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 1024).unwrap();
    let mut found = vec![9; 16384];
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut found).unwrap();
    let expected = [[1; 4096].as_slice(), &[0; 1024], &[1; 3072], &[0; 8192]].concat();
    assert_eq!(found, expected);
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(5120));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(8192)), Err(Errno::NXIO));
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    let refused = rustix::fs::fallocate(&file, collapse, 0, 4096);
    assert_eq!(refused, Err(Errno::OPNOTSUPP));
    drop(file);
    fixture.end();
}

#[test]
fn range_is_copied_by_the_server() {
    require!(can_mount());
    let fixture = Fixture::new("");
    fs::write(fixture.path("from"), b"0123456789").unwrap();
    let (from, to) = (read_write(&fixture, "from"), read_write(&fixture, "to"));
    let (mut read_at, mut write_at) = (2, 1);
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), 100);
    assert_eq!(copied, Ok(8));
    assert_eq!(fixture.memory_fs.data("to"), b"\x0023456789");
    assert_eq!(fs::read(fixture.path("to")).unwrap(), b"\x0023456789");
    drop((from, to));
    fixture.end();
}

#[test]
fn extended_attributes_and_flags_come_from_the_server() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let file = read_write(&fixture, "file");
    let mut value = [0; 16];
    let name = "user.name";
    assert_eq!(
        rustix::fs::fgetxattr(&file, name, &mut value),
        Err(Errno::NODATA)
    );
    rustix::fs::fsetxattr(&file, name, b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(rustix::fs::fgetxattr(&file, name, &mut value), Ok(5));
    assert_eq!(&value[..5], b"value");
    assert_eq!(rustix::fs::fgetxattr_query(&file, name), Ok(5));
    assert_eq!(
        rustix::fs::fgetxattr(&file, name, &mut value[..4]),
        Err(Errno::RANGE)
    );
    assert_eq!(rustix::fs::flistxattr(&file, &mut value), Ok(10));
    assert_eq!(&value[..10], b"user.name\0");
    rustix::fs::fremovexattr(&file, name).unwrap();
    assert_eq!(rustix::fs::fremovexattr(&file, name), Err(Errno::NODATA));

    assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap().bits(), FLAGS);
    let unknown = rustix::fs::ioctl_blksszget(&file).map(drop);
    assert_eq!(unknown, Err(Errno::NOTTY));
    drop(file);
    fixture.end();
}

#[test]
fn sync_of_a_file_and_of_a_directory_arrives() {
    require!(can_mount());
    let fixture = Fixture::new("");
    let file = read_write(&fixture, "file");
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(fixture.directory()).unwrap().sync_all().unwrap();
    assert_eq!(fixture.memory_fs.syncs.load(Ordering::SeqCst), 3);
    drop(file);
    fixture.end();
}

#[test]
fn change_behind_the_kernel_is_seen_after_the_notice_also_with_one_thread() {
    require!(can_mount());
    for options in ["threads=1", "threads=2"] {
        let fixture = Fixture::new(options);
        let file = read_write(&fixture, "file");
        for round in 0..9 {
            // Dirty in the cache: the notification makes the kernel write it back, which a worker
            // has to answer.
            file.write_all_at(&[b'a'; 8192], 0).unwrap();
            let new = [b'0' + round; 8192];
            rustix::fs::fsetxattr(&file, "user.replace", &new, XattrFlags::empty()).unwrap();
            let mut found = [0; 8192];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, new, "round {round}, {options}");
        }
        drop(file);
        fixture.end();
    }
}

#[test]
fn nodes_are_dropped_when_the_kernel_forgets_them() {
    require!(can_mount());
    let fixture = Fixture::new("");
    for number in 0..50 {
        fs::write(fixture.path(&format!("file-{number}")), "data").unwrap();
    }
    assert_eq!(fixture.memory_fs.nodes_in_use(), 50);
    for number in 0..50 {
        fs::remove_file(fixture.path(&format!("file-{number}"))).unwrap();
    }
    // That arrives later.
    wait_for("every node to be forgotten", || {
        fixture.memory_fs.nodes_in_use() == 0
    });
    fixture.end();
}
