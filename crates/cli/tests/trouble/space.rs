//! Not enough room, too large, or over a limit: exit code 3.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use extant_space::ErrorKind;
use extant_testkit::faulty::{FallocateFault, Faults, Faulty, WriteFault};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires};

use crate::support::{
    MIB, Running, as_nobody, assert_names, create, create_command, extant, lengthen, materialize,
    noise, partial_of, run, through, wait_until,
};

#[test]
fn no_space_is_reported_with_the_amount_before_any_write() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let words = [
        "/a: ",
        "100 MiB wanted",
        "64 MiB available",
        "36 MiB missing",
    ];
    create(&fuse.path().join("a"), "100MiB", &[]).refused(3, &words);
    let counters = fuse.counters();
    assert_eq!((counters.writes, counters.fallocates), (0, 0));
    assert_names(fuse.path(), &[]);
}

#[test]
fn no_space_is_reported_before_any_write_on_every_file_system() {
    for filesystem in Filesystem::ALL {
        if filesystem == Filesystem::Btrfs {
            continue;
        }
        require!(filesystem.requirement());
        let scratch = Scratch::new(filesystem, filesystem.size_bytes_min());
        for mode in ["full", "falloc"] {
            let options = ["--preallocation", mode];
            let answer = create(&scratch.path().join("a"), "2G", &options);
            answer.refused(3, &["/a: ", "2 GiB wanted", "missing"]);
            assert_names(scratch.path(), &[]);
        }
    }
}

#[test]
fn file_that_just_fits_is_made() {
    require!(Filesystem::Ext4.requirement());
    // No reserve for root; ext4's reserved blocks are not available to any user.
    let scratch = Scratch::builder(Filesystem::Ext4, 64 * MIB)
        .mkfs_options(&["-m", "0"])
        .build();
    let space = rustix::fs::statvfs(scratch.path()).unwrap();
    let size = space.f_bavail * space.f_frsize;
    let file = scratch.path().join("a");
    create(&file, &size.to_string(), &[]).success();
    assert!(oracle::filefrag(&file).is_extant());
}

#[test]
fn reserve_of_root_is_not_counted_for_others() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let work = Workdir::new();
    let reserve = ["-m", "20"];
    let scratch = Scratch::builder(Filesystem::Ext4, 64 * MIB)
        .mkfs_options(&reserve)
        .build();
    let directory = scratch.user_directory(crate::support::NOBODY);
    let space = rustix::fs::statvfs(scratch.path()).unwrap();
    let size = ((space.f_bavail + space.f_bfree) / 2 * space.f_frsize).to_string();
    let inner = create_command(&directory.join("a"), &size, &[]);
    run(&mut as_nobody(&inner, &work)).refused(3, &["missing"]);
    assert_names(&directory, &[]);
    create(&directory.join("a"), &size, &[]).success();
}

#[test]
fn space_that_runs_out_half_way_leaves_nothing() {
    require!(Faulty::requirement());
    for fallocate in [FallocateFault::None, FallocateFault::Unsupported] {
        let fuse = Faulty::new(64 * MIB, Faults::default());
        fuse.set_faults(Faults {
            fallocate,
            write: WriteFault::FailsAfter(5 * MIB + 17, ErrorKind::NoSpace),
            ..Faults::default()
        });
        let answer = create(&fuse.path().join("a"), "16MiB", &[]);
        answer.refused(3, &["/a: ", "no space left", "bytes"]);
        assert_names(fuse.path(), &[]);
    }
}

#[test]
fn space_taken_by_another_process_leaves_no_file() {
    require!(Filesystem::Ext2.requirement());
    // Without fallocate space is allocated as it is written.
    let scratch = Scratch::new(Filesystem::Ext2, 64 * MIB);
    let file = scratch.path().join("a");
    let command = &mut create_command(&file, "48MiB", &["--rate", "32M"]);
    let running = Running::start(command);
    wait_until("zeros on the disk", || {
        fs::metadata(partial_of(&file)).is_ok_and(|partial| partial.blocks() > 2048)
    });
    let mut other = fs::File::create(scratch.path().join("other")).unwrap();
    let piece = vec![1; MIB as usize];
    while other.write_all(&piece).is_ok() {}
    drop(other);
    running.wait().refused(3, &["/a: ", "no space left"]);
    assert_names(scratch.path(), &["other"]);
}

#[test]
fn few_descriptors_are_enough() {
    require!(requires::tool("prlimit"));
    let work = Workdir::new();
    let directory = work.directory("f");
    let file = directory.join("a");
    let limited = |command: &Command| run(&mut through(&["prlimit", "--nofile=30", "--"], command));
    limited(&create_command(&file, "1MiB", &[])).success();
    let mut write_zeroes = extant();
    write_zeroes.args(["fallocate", "-w", "-l", "64KiB"]);
    limited(write_zeroes.arg(&file)).success();
    lengthen(&file, 2 * MIB);
    limited(extant().arg("materialize").arg(&file)).success();
    assert_names(&directory, &["a"]);
}

#[test]
fn materialize_without_space_changes_nothing() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 32 * MIB);
    let file = scratch.path().join("a");
    fs::write(&file, noise(1, 100_000)).unwrap();
    lengthen(&file, 1 << 30);
    let before = oracle::filefrag(&file);
    materialize(&file, &[]).refused(3, &["/a: ", "missing"]);
    assert_eq!(oracle::filefrag(&file), before);
}

#[test]
fn quota_is_reported_as_such_and_leaves_no_file() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = Scratch::new(Filesystem::Btrfs, 256 * MIB);
    let directory = scratch.limited_directory("limited", 16 * MIB);
    for options in [&["--nocow"][..], &["--preallocation", "falloc"]] {
        let answer = create(&directory.join("a"), "64MiB", options);
        answer.refused(3, &["/a: ", "quota"]);
        assert_names(&directory, &[]);
    }
    create(&directory.join("a"), "4MiB", &["--nocow"]).success();
}

#[test]
fn size_past_the_largest_file_of_the_file_system_is_reported() {
    for (filesystem, size) in [
        (Filesystem::Ext4, "16TiB"),
        (Filesystem::Ext4SmallBlocks, "5TiB"),
        (Filesystem::Ext2, "3TiB"),
    ] {
        require!(filesystem.requirement());
        let scratch = Scratch::new(filesystem, 32 * MIB);
        for mode in ["off", "full"] {
            let options = ["--preallocation", mode];
            let answer = create(&scratch.path().join("a"), size, &options);
            answer.refused(3, &["/a: ", "past the largest file"]);
            assert_names(scratch.path(), &[]);
        }
    }
}

#[test]
fn file_size_limit_of_the_process_is_reported_and_leaves_no_file() {
    require!(requires::tool("sh"));
    let work = Workdir::new();
    let directory = work.directory("f");
    let inner = create_command(&directory.join("a"), "2MiB", &[]);
    // In units of 512 bytes in POSIX, of 1024 in bash: both below 2 MiB.
    let limited = ["sh", "-c", "ulimit -f 1024; exec \"$@\"", "sh"];
    run(&mut through(&limited, &inner)).refused(3, &["/a: ", "ulimit -f"]);
    assert_names(&directory, &[]);
}

#[test]
fn materialize_past_the_limit_of_the_process_keeps_the_data() {
    require!(requires::tool("sh"));
    let work = Workdir::new();
    let file = work.path().join("a");
    let data = noise(2, 5000);
    fs::write(&file, &data).unwrap();
    lengthen(&file, 4 * MIB);
    let mut inner = crate::support::extant();
    inner.arg("materialize").arg(&file);
    let limited = ["sh", "-c", "ulimit -f 1024; exec \"$@\"", "sh"];
    let answer = run(&mut through(&limited, &inner));
    answer.refused(3, &["/a: "]);
    assert_eq!(fs::read(&file).unwrap()[..5000], data);
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 * MIB);
}
