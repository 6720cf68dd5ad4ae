//! A written image of the same size in an ext4 of the engine, in one extent or in one for each
//! block.
//!
//! The free space of a full file system is cut to single blocks, every second one of a filler, and
//! the image takes them a few at a time, in the order in which they become free.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use extant_blockdev::Device;
use extant_ext4::{Assign, File, Filesystem, NewKind, NewNode, Options, Reserve};
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile, SyncMode};

use crate::benches::stack::engine::format;
use crate::benches::stack::pieces::pieces;
use crate::random::Random;

/// A block of the file system, and an extent of a fragmented image.
pub(super) const BLOCK: u64 = 4096;
/// Name of the image in the root directory.
pub(super) const NAME: &str = "image";
const SEED: u64 = 21;
/// Blocks that become free, and are taken, at a time.
const BATCH: usize = 16;
/// Blocks of an extent tree have at most 340 entries, and are split in halves.
const ENTRIES: u64 = 170;

/// Where the blocks of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One after the other.
    Contiguous,
    /// In their order, with a foreign block between each two.
    Spaced,
    /// In no order.
    Scattered,
}

impl Layout {
    pub(super) const ALL: [Self; 3] = [Self::Contiguous, Self::Spaced, Self::Scattered];
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Contiguous => "1 extent",
            Self::Spaced => "fragments in order",
            Self::Scattered => "fragments at random",
        })
    }
}

/// Bytes of the file system for an image of `size`.
pub(super) fn device_bytes(size: u64) -> u64 {
    2 * size + size / 4 + (64 << 20)
}

/// Makes a file system with a written image of `size` on a device of [`device_bytes`]; returns the
/// extents of the image.
pub(super) fn build(layout: Layout, device: Arc<dyn Device>, size: u64) -> Result<usize> {
    format(&*device)?;
    let filesystem = open(device)?;
    let image = create(&filesystem, NAME.as_bytes())?;
    if layout != Layout::Contiguous {
        let filler = create(&filesystem, b"filler")?;
        fill(&filesystem, &filler, size)?;
        let mut places: Vec<u64> = (0..size / BLOCK).map(|block| 2 * block * BLOCK).collect();
        if layout == Layout::Scattered {
            shuffle(&mut places);
        }
        take_places(&filesystem, &filler, &image, &places)?;
    }
    image.fallocate(FallocateMode::Allocate, ByteRange::new(0, size))?;
    let bytes = vec![0xA5; 1 << 20];
    for piece in ByteRange::new(0, size).chunks(1 << 20) {
        image.write_at(&bytes[..piece.len() as usize], piece.start())?;
    }
    image.sync(SyncMode::All)?;
    let extents = pieces(&[&image], size)?[0];
    drop(image);
    filesystem.close()?;
    Ok(extents)
}

/// The file system of [`build`] opened, with nothing in its cache, and the image in it.
pub(super) fn open_image(device: Arc<dyn Device>) -> Result<(Filesystem, File)> {
    let filesystem = open(device)?;
    let image = filesystem.root()?.lookup(NAME.as_bytes())?.file()?;
    Ok((filesystem, image))
}

fn open(device: Arc<dyn Device>) -> Result<Filesystem> {
    let options = Options {
        assign: Assign::Off,
        reserve: Reserve::Take,
        ..Options::default()
    };
    Ok(Filesystem::open(device, options)?)
}

fn create(filesystem: &Filesystem, name: &[u8]) -> Result<File> {
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    Ok(filesystem.root()?.create(name, &new)?.file()?)
}

/// Takes all free blocks but those for the extent trees of two files.
fn fill(filesystem: &Filesystem, filler: &File, size: u64) -> Result<()> {
    let mut end = 0;
    for step in [64 << 20, 1 << 20, BLOCK] {
        while try_allocate(filler, end, step)? {
            end += step;
        }
    }
    ensure!(end >= 2 * size, "a filler of {end} bytes for {size}");
    let trees = 2 * (size / BLOCK).div_ceil(ENTRIES) * BLOCK;
    filler.resize(end - trees)?;
    Ok(filesystem.sync()?)
}

/// Frees `places` of the filler in this order, and allocates the image in them.
fn take_places(filesystem: &Filesystem, filler: &File, image: &File, places: &[u64]) -> Result<()> {
    let mut end = 0;
    for batch in places.chunks(BATCH) {
        for place in batch {
            let range = ByteRange::new(*place, place + BLOCK);
            filler.fallocate(FallocateMode::PunchHole, range)?;
        }
        // A freed block is used after the commit.
        filesystem.sync()?;
        let length = batch.len() as u64 * BLOCK;
        ensure!(try_allocate(image, end, length)?, "no room for the image");
        end += length;
    }
    Ok(())
}

/// `false`: no space is left.
fn try_allocate(file: &File, start: u64, length: u64) -> Result<bool> {
    let range = ByteRange::new(start, start + length);
    match file.fallocate(FallocateMode::Allocate, range) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Fisher and Yates.
fn shuffle(places: &mut [u64]) {
    let mut random = Random::new(SEED);
    for at in (1..places.len()).rev() {
        places.swap(at, (random.fraction() * (at + 1) as f64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use extant_blockdev::MemoryDevice;

    use super::*;

    const SIZE: u64 = 32 << 20;

    fn build_in_memory(layout: Layout) -> (Arc<MemoryDevice>, usize) {
        let device = Arc::new(MemoryDevice::new(device_bytes(SIZE)));
        let extents = build(layout, device.clone(), SIZE).unwrap();
        (device, extents)
    }

    #[test]
    fn image_has_one_extent_or_nearly_one_for_each_block() {
        let blocks = (SIZE / BLOCK) as usize;
        let extents = |layout| build_in_memory(layout).1;
        assert_eq!(extents(Layout::Contiguous), 1);
        for layout in [Layout::Spaced, Layout::Scattered] {
            let found = extents(layout);
            assert!(found > blocks / 50 * 49, "{layout}: {found} of {blocks}");
        }
    }

    #[test]
    fn fragments_in_order_lie_ahead_of_each_other_and_scattered_ones_in_half_of_the_cases() {
        let ahead = |layout| {
            let (device, _) = build_in_memory(layout);
            let (filesystem, image) = open_image(device).unwrap();
            let mut starts = Vec::new();
            image
                .for_each_extent(ByteRange::new(0, SIZE), &mut |extent| {
                    starts.push(extent.physical.unwrap());
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            drop(image);
            filesystem.close().unwrap();
            let steps = starts.windows(2);
            let ahead =
                steps.filter(|step| (1..=4 * BLOCK).contains(&step[1].wrapping_sub(step[0])));
            ahead.count() as f64 / starts.len() as f64
        };
        assert!(ahead(Layout::Spaced) > 0.9);
        assert!(ahead(Layout::Scattered) < 0.1);
    }
}
