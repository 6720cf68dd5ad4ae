//! `fallocate` at every kind of edge: the engine behaves like the kernel.

use extant_space::{ByteRange, FallocateMode};
use extant_testkit::require;

use crate::engine::Engine;
use crate::image::make;
use crate::mounted::{Mounted, needs};
use crate::operation::{Data, Made, Name, Operation, Outcome, Owner, Path, Place};
use crate::reference::Format;
use crate::system::System;

/// Pages of the kernel.
const PAGE: u64 = 4096;

/// Modes that the kernel has for ext4 on a loop device.
const MODES: [FallocateMode; 7] = [
    FallocateMode::Allocate,
    FallocateMode::AllocateKeepSize,
    FallocateMode::PunchHole,
    FallocateMode::ZeroRange,
    FallocateMode::ZeroRangeKeepSize,
    FallocateMode::CollapseRange,
    FallocateMode::InsertRange,
];

#[test]
fn every_mode_at_every_edge_matches_the_kernel() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in [
        "-t ext4 -b 4096 -N 2048",
        "-t ext4 -b 1024 -N 2048",
        "-t ext3 -b 4096 -N 2048",
        "-t ext3 -b 1024 -N 2048",
    ] {
        let format = Format::of(options);
        let device = make(options, 128);
        let mounted = Mounted::new(&device);
        let mut pair = Pair {
            system: System::new(mounted.path(), format.block_bytes),
            engine: Engine::open(device),
            files: 0,
            has_extents: format.has_extents,
        };
        let block = u64::from(format.block_bytes);
        for range in ranges(block) {
            for mode in MODES {
                pair.compare(block, mode, range);
            }
        }
        let most = format.extent_blocks_max * block;
        for (mode, start, end) in [
            (FallocateMode::Allocate, most - block, most + 1),
            (FallocateMode::PunchHole, most, most + block),
            (FallocateMode::PunchHole, most - 2 * block, most),
            (FallocateMode::ZeroRangeKeepSize, most - 1, most),
            (FallocateMode::InsertRange, 0, most - 4 * block),
            (FallocateMode::InsertRange, 0, most - 20 * block),
            (FallocateMode::CollapseRange, most, most + block),
        ] {
            pair.compare(block, mode, ByteRange::new(start, end));
        }
        pair.compare_sizes(format.file_blocks_max * block);
        drop(pair.system);
        mounted.unmount();
        crate::image::assert_clean(&pair.engine.close());
    }
}

struct Pair {
    system: System,
    engine: Engine,
    files: u32,
    has_extents: bool,
}

impl Pair {
    fn compare(&mut self, block: u64, mode: FallocateMode, range: ByteRange) {
        let place = self.make_file(block);
        let step = |range| Operation::Fallocate(place.clone(), mode, range);
        let text = || format!("{mode} of {range} with blocks of {block}");
        let by_kernel = self.system.apply(&step(range));
        let range = match mode {
            FallocateMode::PunchHole => punched_by_kernel(range, size(block)),
            _ => Some(range),
        };
        let by_engine = range.map_or(Outcome::Done, |range| self.engine.apply(&step(range)));
        assert!(
            by_engine.agrees(&by_kernel),
            "{}: {by_engine:?}, not {by_kernel:?}",
            text()
        );
        let found = self.engine.content(&place).unwrap();
        let wanted = self.system.content_at(&place).unwrap();
        assert_eq!(wanted.difference(&found), None, "{}", text());
    }

    /// The largest size of a file, and one more byte.
    fn compare_sizes(&mut self, most: u64) {
        let place = self.make_file(4096);
        for size in [most, most + 1, 0] {
            let step = Operation::Resize(place.clone(), size);
            let by_kernel = self.system.apply(&step);
            let by_engine = self.engine.apply(&step);
            assert!(
                by_engine.agrees(&by_kernel),
                "{size} bytes: {by_engine:?}, not {by_kernel:?}"
            );
            assert_eq!(by_kernel == Outcome::Done, size <= most, "{size} bytes");
        }
    }

    /// Three blocks written, two a hole, three unwritten, two and a half written; and unwritten
    /// ones up to the 14th, past the end. A block map has nothing unwritten.
    fn make_file(&mut self, block: u64) -> Place {
        let name = format!("file {}", self.files);
        self.files += 1;
        let root = Place::At(Path::default());
        let place = Place::At(Path::default().join(name.as_bytes()));
        let owner = Owner {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            umask: 0,
        };
        let write = |from: u64, to: u64| {
            let data = Data {
                length: (to - from) as usize,
                seed: 77,
            };
            Operation::Write(place.clone(), from, data)
        };
        let allocate = |mode, from: u64, to: u64| {
            Operation::Fallocate(
                place.clone(),
                mode,
                ByteRange::new(from * block, to * block),
            )
        };
        for step in [
            Operation::Create(Name::new(root, name.as_bytes()), Made::Regular, owner),
            write(0, 3 * block),
            write(8 * block, size(block)),
            allocate(FallocateMode::Allocate, 5, 8),
            allocate(FallocateMode::AllocateKeepSize, 10, 14),
        ] {
            if !self.has_extents && matches!(step, Operation::Fallocate(..)) {
                continue;
            }
            assert_eq!(self.system.apply(&step), Outcome::Done);
            assert_eq!(self.engine.apply(&step), Outcome::Done);
        }
        place
    }
}

fn size(block: u64) -> u64 {
    10 * block + block / 2
}

/// The range that the kernel punches. It uses pages at the end of the file: blocks after the last
/// page stay allocated even inside the range, and blocks on it are freed even outside the range.
/// Here the range becomes a hole, and nothing else.
fn punched_by_kernel(range: ByteRange, size: u64) -> Option<ByteRange> {
    let is_refused = range.is_empty() || range.end() > 1 << 40;
    match () {
        () if is_refused || range.end() <= size => Some(range),
        () if range.start() >= size => None,
        () => Some(ByteRange::new(range.start(), size.next_multiple_of(PAGE))),
    }
}

fn ranges(block: u64) -> Vec<ByteRange> {
    let ends = [
        0,
        block + 7,
        3 * block,
        3 * block + 5,
        6 * block,
        8 * block + 1,
        10 * block,
        size(block) - 1,
        size(block),
        11 * block,
        12 * block,
        14 * block,
        20 * block,
    ];
    let mut ranges = vec![ByteRange::new(block, block)];
    for (number, &start) in ends.iter().enumerate() {
        ranges.extend(
            ends[number + 1..]
                .iter()
                .map(|&end| ByteRange::new(start, end)),
        );
    }
    ranges
}
