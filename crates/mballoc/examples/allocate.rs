//! Four files that grow at the same time, and the runs that they get.
//!
//!     cargo run -p extant-mballoc --example allocate
//!
//! The allocator gives out blocks; the caller would write the bitmaps.

#![forbid(unsafe_code)]

use std::thread;

use extant_mballoc::{
    Allocator, BitmapSource, Block, BlockRange, Free, Geometry, GroupNumber, Options, Request,
};
use extant_space::Result;

const BLOCKS_PER_GROUP: u32 = 32_768;
const GROUPS: u64 = 16;
/// Blocks that each file asks for, 16 at a time.
const FILE_BLOCKS: u32 = 4096;

/// Groups without a block in use.
struct Empty;

impl BitmapSource for Empty {
    fn free_blocks(&self, _group: GroupNumber) -> u32 {
        BLOCKS_PER_GROUP
    }

    fn load(&self, _group: GroupNumber, used: &mut [u64]) -> Result<()> {
        used.fill(0);
        Ok(())
    }
}

fn main() {
    if let Err(error) = allocate() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn allocate() -> Result<()> {
    let geometry = Geometry {
        first: Block(0),
        end: Block(GROUPS * u64::from(BLOCKS_PER_GROUP)),
        blocks_per_group: BLOCKS_PER_GROUP,
    };
    let allocator = Allocator::open(geometry, Options::default(), Empty)?;
    let all = allocator.free_blocks();
    thread::scope(|scope| {
        let files: Vec<_> = (12..16)
            .map(|number| {
                let allocator = &allocator;
                scope.spawn(move || grow_and_free(allocator, number))
            })
            .collect();
        for (number, file) in (12..).zip(files) {
            let extents = file.join().expect("the thread does not panic")?;
            println!("file {number}: {FILE_BLOCKS} blocks in {extents} extents");
        }
        Ok::<_, extant_space::Error>(())
    })?;
    assert_eq!(allocator.free_blocks(), all);
    println!("all of {all} blocks are free again");
    Ok(())
}

/// Returns the number of extents that the file had.
fn grow_and_free(allocator: &Allocator, number: u64) -> Result<usize> {
    let file = allocator.owner(number, 0);
    let mut extents: Vec<BlockRange> = Vec::new();
    let mut blocks = 0;
    while blocks < FILE_BLOCKS {
        let run = file.allocate(&Request::data(16))?.keep();
        blocks += run.count();
        match extents.last_mut() {
            Some(last) if last.end() == run.start() => {
                *last = BlockRange::new(last.start(), last.count() + run.count());
            }
            _ => extents.push(run),
        }
    }
    for &extent in &extents {
        file.free(extent, Free::Now)?;
    }
    Ok(extents.len())
}
