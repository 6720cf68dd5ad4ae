//! Random reads, writes and changes of space on files of a real mount, compared with models in
//! memory.
//!
//! Like fsx, with every mode of `fallocate`, extent maps, direct I/O and mappings in one sequence:
//! the kernel's cache state after one kind of access must be right for every other kind. Each of
//! several workers has files of its own. All is unmounted and mounted again periodically. At the
//! end our check and e2fsck verify the image.
//!
//!     EXTANT_EXERCISE_SEEDS=A..B EXTANT_EXERCISE_OPERATIONS=N cargo test -p extant-mount --test exercise
//!
//! runs N steps for each seed and each kind of mount; `EXTANT_EXERCISE_WORKERS=1` uses one worker.
//! A failure prints the line that repeats it and the last steps.

mod companion;
mod generate;
mod model;
mod mounted;
mod operation;
mod player;
mod run;

use extant_testkit::{fuse_rings, require, requires};

use run::{Kind, exercise};

/// Runs a kind of mount, with this default number of steps.
fn run(kind: &Kind, operations: u64) {
    require!(
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("cc")
    );
    exercise(kind, operations);
}

#[test]
fn files_are_as_the_model_with_a_writeback_cache() {
    let kind = Kind {
        name: "files_are_as_the_model_with_a_writeback_cache",
        mount: "writeback",
        format: "-b 4096",
    };
    run(&kind, 9000);
}

#[test]
fn files_are_as_the_model_without_a_writeback_cache() {
    let kind = Kind {
        name: "files_are_as_the_model_without_a_writeback_cache",
        mount: "no_writeback",
        format: "-b 4096",
    };
    run(&kind, 6000);
}

#[test]
fn files_are_as_the_model_through_io_uring() {
    let kind = Kind {
        name: "files_are_as_the_model_through_io_uring",
        mount: if fuse_rings::are_offered() {
            "writeback,io_uring"
        } else {
            "writeback"
        },
        format: "-b 4096",
    };
    run(&kind, 6000);
}

#[test]
fn files_are_as_the_model_with_blocks_smaller_than_pages() {
    let kind = Kind {
        name: "files_are_as_the_model_with_blocks_smaller_than_pages",
        mount: "writeback,threads=1",
        format: "-b 1024",
    };
    run(&kind, 5000);
}
