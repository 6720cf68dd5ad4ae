//! Steps that are about data.

use extant_ext4::InodeFlags;
use extant_space::{ByteRange, FallocateMode};

use super::{Dialect, Generator, Taste};
use crate::operation::{Data, Operation, Place, Tooth};
use crate::reference::Reference;

/// Pages of the kernel: it punches up to the end of the one that a file ends in.
const PAGE: u64 = 4096;

impl Generator {
    pub(super) fn data_step(&mut self, reference: &Reference) -> Operation {
        let place = self.file(reference);
        let block = u64::from(reference.format.block_bytes);
        let size = reference.file(&place).map_or(0, |(_, file)| file.size);
        match self.rng.u32(0..100) {
            0..30 => {
                let length = self.length() as usize;
                let offset = self.offset(size, block);
                // There, append-only files are written to at their end.
                let offset = if self.dialect == Dialect::Kernel && may_only_grow(reference, &place)
                {
                    offset.min(size)
                } else {
                    offset
                };
                let seed = self.rng.u8(..);
                Operation::Write(place, offset, Data { length, seed })
            }
            30..42 => {
                let length = self.length() as usize;
                Operation::Read(place, self.offset(size, block), length)
            }
            42..52 => Operation::Resize(place, self.offset(size, block)),
            52..57 => Operation::Extents(place, self.range(size, block)),
            57..62 if self.dialect == Dialect::Kernel && may_only_grow(reference, &place) => {
                Operation::Extents(place, self.range(size, block))
            }
            57..62 => self.comb_step(place, size / block),
            _ => {
                let mode = self.mode();
                let range = self.range_for(mode, size, block);
                Operation::Fallocate(place, mode, range)
            }
        }
    }

    fn comb_step(&mut self, place: Place, blocks: u64) -> Operation {
        let most = match self.taste {
            Taste::Data => 400,
            _ => 40,
        };
        let count = self.rng.u64(1..most);
        let first = self.rng.u64(0..=blocks.min(2000));
        let can_punch = blocks > 0 || self.dialect == Dialect::Engine;
        let tooth = if self.chance(60) || !can_punch {
            Tooth::Written(self.rng.u8(..))
        } else {
            Tooth::Punched
        };
        match (self.dialect, tooth) {
            // So that nothing past the end is punched.
            (Dialect::Kernel, Tooth::Punched) => {
                let count = count.min(blocks.saturating_sub(first) / 2).max(1);
                Operation::Comb(place, first.min(blocks.saturating_sub(1)), count, tooth)
            }
            _ => Operation::Comb(place, first, count, tooth),
        }
    }

    fn mode(&mut self) -> FallocateMode {
        loop {
            let mode = *self.pick(&FallocateMode::ALL);
            if !self.has_extents && self.chance(80) {
                return FallocateMode::PunchHole;
            }
            let is_known = !matches!(
                mode,
                FallocateMode::UnshareRange | FallocateMode::WriteZeroes
            );
            if is_known || self.dialect == Dialect::Engine {
                return mode;
            }
        }
    }

    fn range_for(&mut self, mode: FallocateMode, size: u64, block: u64) -> ByteRange {
        let range = self.range(size, block);
        let (start, end) = (range.start(), range.end());
        match mode {
            FallocateMode::CollapseRange | FallocateMode::InsertRange if self.chance(90) => {
                let start = start.min(size) / block * block;
                let end = if self.chance(70) {
                    end.min(start + 60 * block)
                } else {
                    end
                };
                ByteRange::new(start, end.next_multiple_of(block).max(start + block))
            }
            FallocateMode::PunchHole if self.dialect == Dialect::Kernel => {
                let start = start.min(size.saturating_sub(1));
                // Past the end of the file, the kernel punches up to the end of its page.
                let end = if block == PAGE && end > size {
                    size.next_multiple_of(PAGE)
                } else {
                    end.min(size)
                };
                ByteRange::new(start, end.max(start + 1))
            }
            _ => range,
        }
    }

    fn range(&mut self, size: u64, block: u64) -> ByteRange {
        let start = self.offset(size, block);
        let length = match self.rng.u32(0..50) {
            0 => 0,
            1..20 => self.rng.u64(1..40) * block,
            20 => self.rng.u64(0..1 << 20),
            _ => self.length(),
        };
        let start = if self.chance(40) {
            start / block * block
        } else {
            start
        };
        ByteRange::new(start, start + length)
    }

    /// Bytes of a request: around a few blocks, seldom more.
    fn length(&mut self) -> u64 {
        match self.rng.u32(0..20) {
            0..6 => self.rng.u64(1..600),
            6..14 => self.rng.u64(1..20_000),
            14..19 => self.rng.u64(1..100_000),
            _ => self.rng.u64(1..400_000),
        }
    }

    /// In a file, at its end, after it, and at the maximum file size.
    fn offset(&mut self, size: u64, block: u64) -> u64 {
        let near = size.min(4 << 20);
        match self.rng.u32(0..40) {
            0..18 => self.rng.u64(0..=near),
            18..24 => self.rng.u64(0..=near) / block * block,
            24..28 => size.min(8 << 20),
            28..32 => near + self.rng.u64(0..100_000),
            32..37 => self.rng.u64(0..500_000),
            37 => self.rng.u64(0..8 << 20),
            38 => (1 << 40) + self.rng.u64(0..1 << 24),
            _ if self.taste == Taste::Data => self.far(block),
            _ => 0,
        }
    }

    /// Around the end of the largest file.
    fn far(&mut self, block: u64) -> u64 {
        let most = self.file_blocks_max * block;
        match self.dialect {
            Dialect::Engine => most - self.rng.u64(0..8 * block) + 2 * block,
            // Nothing that the kernel would do in part.
            Dialect::Kernel => most - self.rng.u64((1 << 20)..(2 << 20)),
        }
    }
}

fn may_only_grow(reference: &Reference, place: &Place) -> bool {
    let found = reference.find(place);
    found.is_ok_and(|id| reference.object(id).flags.contains(InodeFlags::APPEND))
}
