//! `--through` and `extant assign` on a file system on a loop device over a file of another one.
//! The state below is that of filefrag.

use std::fs;
use std::path::{Path, PathBuf};

use extant_space::{ByteRange, ExtentState};
use extant_testkit::scratch::{DirectIo, Filesystem, Scratch};
use extant_testkit::{oracle, require, requires};

use crate::support::{Answer, MIB, create, extant, materialize, run};

const SIZE: u64 = 32 * MIB;

/// ext4 in a file of ext4.
pub struct Stack {
    // Dropped in this order.
    inner: Scratch,
    outer: Scratch,
}

impl Stack {
    /// Over a buffered loop device.
    pub fn new() -> Self {
        Self::over(DirectIo::Off)
    }

    fn over(direct_io: DirectIo) -> Self {
        let outer = Scratch::new(Filesystem::Ext4, 256 * MIB);
        let inner = Scratch::builder(Filesystem::Ext4, 160 * MIB).backed_in(outer.path());
        Self {
            inner: match direct_io {
                DirectIo::On => inner.sector_bytes(4096).direct_io().build(),
                DirectIo::Off => inner.build(),
            },
            outer,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.inner.path().join(name)
    }

    pub fn below(&self) -> &Path {
        self.inner.backing_file().unwrap()
    }

    /// The loop device over the file below.
    pub fn device(&self) -> &Path {
        self.inner.device().unwrap()
    }

    /// The device that the file below is on.
    pub fn device_below(&self) -> &Path {
        self.outer.device().unwrap()
    }

    /// Bytes of the file `name` in `state` in the file below.
    fn bytes_below(&self, name: &str, state: ExtentState) -> u64 {
        let below = oracle::filefrag(self.below()).with_holes();
        let places = oracle::filefrag(&self.path(name)).extents;
        let parts = places.iter().flat_map(|extent| {
            let place = ByteRange::at(extent.physical.unwrap(), extent.logical.len()).unwrap();
            below.iter().filter_map(move |extent| extent.clip(place))
        });
        let found = parts.filter(|extent| extent.state == state);
        found.map(|extent| extent.logical.len()).sum()
    }
}

macro_rules! needs {
    () => {
        require!(
            requires::root(),
            Filesystem::Ext4.requirement(),
            requires::tool("filefrag"),
            requires::disk_below_temporary_files()
        );
    };
}

fn command(words: &[&str], path: &Path) -> Answer {
    run(extant().args(words).arg(path))
}

#[test]
fn created_file_is_written_or_reserved_in_the_file_below() {
    needs!();
    for direct_io in [DirectIo::Off, DirectIo::On] {
        let stack = Stack::over(direct_io);
        let full = create(&stack.path("full"), "32MiB", &["--through", "--json"]).success();
        assert_eq!(
            full.text("/layers/0/layer"),
            stack.below().to_str().unwrap()
        );
        assert_eq!(full.number("/layers/0/written_bytes"), SIZE, "{full}");
        let words = ["--through", "--preallocation", "falloc", "--json"];
        let reserved = create(&stack.path("falloc"), "32MiB", &words).success();
        assert_eq!(reserved.number("/layers/0/hole_bytes"), 0, "{reserved}");
        let words = ["--through", "--allocation", "8MiB", "--format", "qcow2"];
        create(&stack.path("disk.qcow2"), "32MiB", &words).success();
        assert_eq!(stack.bytes_below("full", ExtentState::Written), SIZE);
        assert_eq!(stack.bytes_below("falloc", ExtentState::Hole), 0);
        assert_eq!(stack.bytes_below("falloc", ExtentState::Written), 0);
        assert_eq!(stack.bytes_below("disk.qcow2", ExtentState::Hole), 0);
    }
}

#[test]
fn fallocate_reaches_the_file_below_and_refuses_modes_without_space() {
    needs!();
    let stack = Stack::new();
    let fallocate = |words: &[&str], name: &str| {
        let words = [&["fallocate", "--through", "-l", "16MiB"], words].concat();
        command(&words, &stack.path(name))
    };
    fallocate(&[], "allocated").success();
    fallocate(&["-n"], "allocated").success();
    fallocate(&["-w"], "written").success();
    assert_eq!(stack.bytes_below("allocated", ExtentState::Hole), 0);
    assert_eq!(stack.bytes_below("written", ExtentState::Written), 16 * MIB);
    let refused = |answer: Answer, word: &str| {
        assert_eq!(answer.code, Some(1), "{answer}");
        assert!(answer.stderr.contains(word), "{answer}");
    };
    refused(fallocate(&["-p"], "allocated"), "--through");
    let btrfs = Filesystem::Btrfs;
    require!(btrfs.requirement());
    let scratch = Scratch::new(btrfs, btrfs.size_bytes_min());
    let words = ["fallocate", "--through", "-w", "-l", "1MiB"];
    refused(command(&words, &scratch.path().join("a")), "btrfs");
}

#[test]
fn assign_and_materialize_report_each_layer_and_map_shows_it() {
    needs!();
    let stack = Stack::new();
    let path = stack.path("file");
    fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let part = ["assign", "--length", "8MiB", "--json"];
    let part = command(&part, &path).success();
    part.valid_json("assign");
    assert_eq!(part.number("/allocated_bytes"), 8 * MIB, "{part}");
    assert_eq!(part.number("/layers/0/unwritten_bytes"), 8 * MIB, "{part}");
    let words = command(&["assign"], &path).success();
    assert!(words.stdout.contains("2 layers below"), "{words}");
    assert!(
        words.stdout.contains("backing: 32 MiB unwritten"),
        "{words}"
    );
    let map = command(&["map", "--through", "--json"], &path).success();
    for (at, depth) in [(0, 0), (1, 1), (2, 2)] {
        assert_eq!(map.number(&format!("/files/{at}/depth")), depth, "{map}");
        let unwritten = map.number(&format!("/files/{at}/summary/unwritten_bytes"));
        assert_eq!(unwritten, SIZE, "{map}");
    }
    assert_eq!(map.number("/total/unwritten_bytes"), SIZE, "{map}");
    let text = command(&["map", "--through"], &path).success();
    assert!(text.stdout.contains("\n> backing "), "{text}");
    assert!(text.stdout.contains("\n> > backing "), "{text}");
    let done = materialize(&path, &["--through", "--json"]).success();
    assert_eq!(done.number("/zeroed_bytes"), SIZE, "{done}");
    assert_eq!(done.number("/layers/1/written_bytes"), SIZE, "{done}");
    assert_eq!(stack.bytes_below("file", ExtentState::Written), SIZE);
    command(&["assign"], Path::new("/dev/shm")).refused(4, &["/dev/shm"]);
}
