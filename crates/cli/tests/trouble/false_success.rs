//! File systems that report success without effect: an error, never success.

use std::fs;

use extant_testkit::faulty::{FallocateFault, Faults, Faulty, WriteFault};
use extant_testkit::{oracle, require};

use crate::support::{MIB, assert_names, create, lengthen, materialize, noise};

fn dropping(after: u64) -> Faults {
    Faults {
        fallocate: FallocateFault::Unsupported,
        write: WriteFault::DroppedAfter(after),
        ..Faults::default()
    }
}

#[test]
fn dropped_writes_are_found_out_and_leave_nothing() {
    require!(Faulty::requirement());
    for after in [0, 1, 5 * MIB, 16 * MIB - 4096] {
        let fuse = Faulty::new(64 * MIB, Faults::default());
        fuse.set_faults(dropping(after));
        let answer = create(&fuse.path().join("a"), "16MiB", &[]);
        answer.refused(1, &["/a: ", "reported success"]);
        assert_names(fuse.path(), &[]);
    }
}

#[test]
fn dropped_writes_under_a_forced_name_keep_the_old_file() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let file = fuse.path().join("a");
    fs::write(&file, "precious").unwrap();
    fuse.set_faults(dropping(MIB));
    create(&file, "8MiB", &["--force"]).refused(1, &["reported success"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_names(fuse.path(), &["a"]);
}

#[test]
fn fallocate_with_false_success_is_detected() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    fuse.set_faults(Faults {
        fallocate: FallocateFault::FalseSuccess,
        ..Faults::default()
    });
    let file = fuse.path().join("a");
    let answer = create(&file, "16MiB", &["--preallocation", "falloc"]);
    answer.refused(1, &["/a: ", "reported success"]);
    assert_names(fuse.path(), &[]);
}

#[test]
fn fallocate_with_false_success_does_not_skip_the_writing() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    fuse.set_faults(Faults {
        fallocate: FallocateFault::FalseSuccess,
        ..Faults::default()
    });
    let file = fuse.path().join("a");
    create(&file, "16MiB", &[]).success();
    assert_eq!(oracle::allocated_bytes(&file), 16 * MIB);
    assert!(fuse.counters().bytes_written >= 16 * MIB);
}

#[test]
fn fallocate_with_space_mapped_as_data_does_not_skip_the_writing() {
    require!(Faulty::requirement());
    // Holes and data are all that can be seen here: allocated space counts as data.
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let file = fuse.path().join("a");
    let answer = create(&file, "16MiB", &["--json"]).success();
    assert_eq!(answer.number("/written_bytes"), 16 * MIB);
    assert!(fuse.counters().bytes_written >= 16 * MIB);

    // The same for a file that exists.
    let old = fuse.path().join("old");
    let data = noise(4, 10_000);
    fs::write(&old, &data).unwrap();
    lengthen(&old, 4 * MIB);
    let before = fuse.counters().bytes_written;
    let answer = materialize(&old, &["--shared", "--json"]).success();
    let written = fuse.counters().bytes_written - before;
    assert!(written >= 4 * MIB - 12_288, "{written}: {answer}");
    assert_eq!(fs::read(&old).unwrap()[..10_000], data);
}

#[test]
fn materialize_on_a_file_system_that_drops_writes_is_found_out() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let file = fuse.path().join("a");
    let data = noise(5, MIB as usize);
    fs::write(&file, &data).unwrap();
    lengthen(&file, 8 * MIB);
    fuse.set_faults(dropping(MIB));
    materialize(&file, &["--shared"]).refused(1, &["/a: ", "reported success"]);
    assert!(fs::read(&file).unwrap()[..MIB as usize] == data);
}
