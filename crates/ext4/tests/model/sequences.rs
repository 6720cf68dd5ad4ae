//! Sequences of one thread: on every format, with room and without.

use extant_testkit::{require, requires};

use crate::generate::{Dialect, Generator, Taste, seeds};
use crate::image::{FORMATS, make};
use crate::reference::Format;
use crate::run::{Room, Start};

const STEPS: usize = 700;

#[test]
fn sequences_with_room_agree_with_the_reference() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for seed in seeds(0..FORMATS.len() as u64) {
        play(seed, Room::Ample);
    }
}

#[test]
fn sequences_that_run_out_of_space_agree_with_the_reference() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    const USUAL: u64 = 2 * FORMATS.len() as u64;
    let seeds = seeds(0..USUAL);
    let are_many = seeds.end - seeds.start >= USUAL;
    let found_none: u32 = seeds.map(|seed| play(seed, Room::Scarce)).sum();
    assert!(found_none > 0 || !are_many, "there was always space");
}

/// Returns how many steps on data found no space.
fn play(seed: u64, room: Room) -> u32 {
    let options = FORMATS[(seed % FORMATS.len() as u64) as usize];
    let format = Format::of(options);
    let taste = [Taste::Mixed, Taste::Data, Taste::Names][(seed % 3) as usize];
    eprintln!(
        "EXTANT_MODEL_SEEDS={seed}..{}: {room:?}, {taste:?}, mke2fs {options}",
        seed + 1
    );
    let (mebibytes, extra) = match room {
        Room::Ample => (64, " -N 2048"),
        Room::Scarce => (8, " -N 200"),
    };
    let device = make(&format!("{options}{extra}"), mebibytes);
    let start = Start::new(device, format, room);
    let blocks_max = match room {
        // An operation may take some more, and so may metadata.
        Room::Ample => (16 << 20) / u64::from(format.block_bytes),
        Room::Scarce => u64::MAX,
    };
    let mut generator = Generator::new(seed, taste, Dialect::Engine, format, blocks_max);
    start.run(STEPS, &mut |reference| generator.next(reference))
}
