//! The device fails: exit code 1, nothing under the name.

use std::fs;

use extant_space::ErrorKind;
use extant_testkit::faulty::{DirectIoFault, FallocateFault, Faults, Faulty, WriteFault};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, oracle, require};

use crate::support::{
    MIB, Running, assert_names, create, create_command, lengthen, materialize, noise,
    wait_for_space_of,
};

#[test]
fn error_in_the_middle_names_the_place_and_leaves_nothing() {
    require!(Faulty::requirement());
    for fallocate in [FallocateFault::None, FallocateFault::Unsupported] {
        for direct_io in [DirectIoFault::None, DirectIoFault::Refused] {
            let fuse = Faulty::new(64 * MIB, Faults::default());
            fuse.set_faults(Faults {
                fallocate,
                direct_io,
                write: WriteFault::FailsAfter(7 * MIB + 4096, ErrorKind::Io),
                ..Faults::default()
            });
            let answer = create(&fuse.path().join("a"), "16MiB", &[]);
            answer.refused(1, &["/a: ", "bytes ", "put error"]);
            assert_names(fuse.path(), &[]);
        }
    }
}

#[test]
fn error_of_sync_is_an_error_and_leaves_nothing() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    fuse.set_faults(Faults {
        fsync: Some(ErrorKind::Io),
        ..Faults::default()
    });
    for mode in ["full", "falloc", "off"] {
        let options = ["--preallocation", mode];
        let answer = create(&fuse.path().join("a"), "4MiB", &options);
        answer.refused(1, &["/a: ", "sync"]);
        assert_names(fuse.path(), &[]);
    }
}

#[test]
fn error_in_the_middle_keeps_the_partial_file_when_asked() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    fuse.set_faults(Faults {
        write: WriteFault::FailsAfter(5 * MIB, ErrorKind::Io),
        ..Faults::default()
    });
    let file = fuse.path().join("a");
    create(&file, "16MiB", &["--keep-partial"]).refused(1, &["/a: "]);
    assert_names(fuse.path(), &[".a.extant-partial"]);

    fuse.set_faults(Faults::default());
    let before = fuse.counters().bytes_written;
    let answer = create(&file, "16MiB", &["--json"]).success();
    let (resumed, written) = (
        answer.number("/resumed_bytes"),
        answer.number("/zeroed_bytes"),
    );
    assert_eq!(resumed + written, 16 * MIB, "{answer}");
    assert!(resumed >= 4 * MIB, "{answer}");
    assert_eq!(fuse.counters().bytes_written - before, written);
    assert_names(fuse.path(), &["a"]);
}

#[test]
fn device_that_is_thinner_than_it_says_gives_an_error() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::builder(Filesystem::Ext4, 128 * MIB)
        .memory(48 * MIB)
        .build();
    let file = scratch.path().join("a");
    let answer = create(&file, "96MiB", &[]);
    assert!(matches!(answer.code, Some(1 | 3)), "{answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
    assert!(!file.exists());
}

#[test]
fn device_that_shrinks_meanwhile_gives_an_error() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(filesystem.requirement());
        let size = filesystem.size_bytes_min().max(128 * MIB);
        let scratch = Scratch::new(filesystem, size);
        let file = scratch.path().join("a");
        let running = Running::start(&mut create_command(&file, "64MiB", &["--rate", "32M"]));
        wait_for_space_of(&file);
        let backing = fs::File::options()
            .write(true)
            .open(scratch.backing_file().unwrap())
            .unwrap();
        backing.set_len(8 * MIB).unwrap();
        let mut losetup = command::tool("losetup");
        command::run(losetup.arg("--set-capacity").arg(scratch.device().unwrap())).unwrap();
        let answer = running.wait();
        assert!(matches!(answer.code, Some(1 | 4)), "{filesystem}: {answer}");
        assert_eq!(answer.stdout, "", "{answer}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
        assert!(!file.exists(), "{filesystem}");
    }
}

#[test]
fn file_system_without_fallocate_or_direct_io_is_written_in_order() {
    require!(Faulty::requirement());
    for direct_io in [DirectIoFault::None, DirectIoFault::Refused] {
        let fuse = Faulty::new(
            64 * MIB,
            Faults {
                fallocate: FallocateFault::Unsupported,
                direct_io,
                ..Faults::default()
            },
        );
        let file = fuse.path().join("a");
        let answer = create(&file, "8388609", &["--json"]).success();
        assert_eq!(answer.text("/plan/strategy"), "write-in-order");
        assert_eq!(answer.number("/written_bytes"), 8 * MIB + 1);
        assert_eq!(fuse.counters().bytes_written, 8 * MIB + 1);
        assert!(oracle::allocated_bytes(&file) > 8 * MIB);
        oracle::assert_zeros(&file, extant_space::ByteRange::new(0, 8 * MIB + 1));
    }
}

#[test]
fn materialize_after_an_error_keeps_the_data_and_resumes() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let file = fuse.path().join("a");
    let mut data = noise(3, 3 * MIB as usize);
    fs::write(&file, &data).unwrap();
    lengthen(&file, 16 * MIB);
    data.resize(16 * MIB as usize, 0);
    for after in [0, MIB, 5 * MIB + 4096] {
        fuse.set_faults(Faults {
            write: WriteFault::FailsAfter(after, ErrorKind::Io),
            ..Faults::default()
        });
        materialize(&file, &["--shared"]).refused(1, &["/a: ", "put error"]);
        assert!(fs::read(&file).unwrap() == data, "after {after}");
    }
    fuse.set_faults(Faults::default());
    materialize(&file, &["--shared"]).success();
    assert!(fs::read(&file).unwrap() == data);
    assert_eq!(oracle::allocated_bytes(&file), 16 * MIB);
}

#[test]
fn materialize_on_a_device_that_is_gone_is_no_success() {
    require!(Filesystem::Ext4.requirement());
    // The device disappears under a file with holes to be filled.
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let file = scratch.path().join("a");
    fs::write(&file, "").unwrap();
    lengthen(&file, 32 * MIB);
    let backing = scratch.backing_file().unwrap();
    let backing = fs::File::options().write(true).open(backing).unwrap();
    backing.set_len(MIB).unwrap();
    let mut losetup = command::tool("losetup");
    command::run(losetup.arg("--set-capacity").arg(scratch.device().unwrap())).unwrap();
    let answer = materialize(&file, &[]);
    assert!(matches!(answer.code, Some(1 | 4)), "{answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
}
