//! Random lives.

use extant_ext4::RenameMode;
use extant_space::{FallocateMode, SyncMode};
use fastrand::Rng;

use crate::image::{BIG_BLOCKS, BIG_MAPS, FAST, Format, MANY_GROUPS, MAPS, OLD_FEATURES, PLAIN};
use crate::step::{Kind, Step, Target};

/// Few, so that steps share them.
const PATHS: [&str; 12] = [
    "/a", "/b", "/c", "/d", "/d/a", "/d/b", "/d/c", "/d/e", "/d/e/a", "/d/e/b", "/e", "/e/a",
];
const SLOTS: usize = 3;
/// Bytes of most files.
const SIZE: u64 = 48 << 10;
const XATTRS: [&str; 3] = ["user.a", "user.b", "trusted.c"];

/// The first seed of those with block maps.
pub const MAPPED: u64 = 1 << 32;

/// The format and the steps of a seed. Many steps fail because their files do not exist.
pub fn life(seed: u64) -> (Format, Vec<Step>) {
    let mut random = Rng::with_seed(seed);
    let formats = [PLAIN, OLD_FEATURES, MANY_GROUPS, BIG_BLOCKS, FAST];
    let format = if seed < MAPPED {
        formats[(seed % 5) as usize]
    } else {
        [MAPS, BIG_MAPS][(seed % 2) as usize]
    };
    let block = if format.kibibytes == BIG_BLOCKS.kibibytes {
        4096
    } else {
        1024
    };
    let mut steps = vec![Step::Create("/d".into(), Kind::Directory)];
    steps.extend((0..160).map(|_| step(&mut random, block)));
    (format, steps)
}

fn step(random: &mut Rng, block: u64) -> Step {
    let path = |random: &mut Rng| PATHS[random.usize(..PATHS.len())].to_string();
    let target = |random: &mut Rng| match random.u8(..6) {
        0 => Target::Held(random.usize(..SLOTS)),
        _ => Target::At(PATHS[random.usize(..PATHS.len())].to_string()),
    };
    let offset = |random: &mut Rng| match random.u8(..3) {
        0 => random.u64(..SIZE),
        1 => random.u64(..SIZE / block) * block,
        _ => random.u64(..4000),
    };
    match random.u8(..100) {
        0..14 => Step::Create(path(random), kind(random)),
        14..16 => Step::CreateUnnamed(random.usize(..SLOTS)),
        16..20 => Step::Link(target(random), path(random)),
        20..25 => Step::Unlink(path(random)),
        25..28 => Step::RemoveDirectory(path(random)),
        28..35 => {
            let modes = [
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ];
            let mode = modes[random.usize(..3)];
            Step::Rename(path(random), path(random), mode)
        }
        35..38 => Step::Hold(path(random), random.usize(..SLOTS)),
        38..40 => Step::Release(random.usize(..SLOTS)),
        40..54 => Step::Write(target(random), offset(random), random.usize(1..9000)),
        54..60 => Step::Append(target(random), random.usize(1..5000)),
        60..66 => Step::Resize(target(random), offset(random)),
        66..78 => {
            let mode = FallocateMode::ALL[random.usize(..9)];
            let (mut start, mut length) = (offset(random), random.u64(1..20_000));
            if matches!(
                mode,
                FallocateMode::CollapseRange | FallocateMode::InsertRange
            ) {
                start = start / block * block;
                length = length.next_multiple_of(block);
            }
            Step::Fallocate(target(random), mode, start, length)
        }
        78..82 => {
            let length = [3, 60, 400, 850][random.usize(..4)];
            Step::SetXattr(target(random), XATTRS[random.usize(..3)], length)
        }
        82..84 => Step::RemoveXattr(target(random), XATTRS[random.usize(..3)]),
        84..85 => Step::SetPermissions(target(random), random.u16(..0o1000)),
        85..91 => Step::Sync(target(random), SyncMode::All),
        91..96 => Step::Sync(target(random), SyncMode::Data),
        96..99 => Step::SyncAll,
        _ => Step::Reopen,
    }
}

fn kind(random: &mut Rng) -> Kind {
    match random.u8(..10) {
        0..3 => Kind::Directory,
        3 => Kind::SymbolicLink(random.usize(1..900)),
        4 => Kind::Fifo,
        5 => Kind::Device(random.u32(..100_000)),
        _ => Kind::Regular,
    }
}
