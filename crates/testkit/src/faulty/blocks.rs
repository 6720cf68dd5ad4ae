//! The contents of one file: blocks that exist, and holes.

use std::collections::BTreeMap;

use extant_space::ByteRange;

/// Unit of allocation.
pub(super) const BLOCK: u64 = 4096;

/// A block of zeros, allocated or written, takes no memory.
#[derive(Debug)]
enum Block {
    Zeros,
    Data(Box<[u8]>),
}

/// Invariant: bytes of the last block past `size` are zero.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    size: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Blocks {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that exist, also past the end.
    pub(super) fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Blocks that `range` touches and that do not exist.
    pub(super) fn missing(&self, range: ByteRange) -> u64 {
        let touched = touched(range);
        touched.end - touched.start - self.blocks.range(touched).count() as u64
    }

    pub(super) fn read(&self, range: ByteRange) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some(range) = range.intersection(ByteRange::new(0, self.size)) else {
            return bytes;
        };
        bytes.resize(range.len() as usize, 0);
        for (&number, block) in self.blocks.range(touched(range)) {
            if let (Block::Data(data), Some(part)) = (block, place(number).intersection(range)) {
                let from = (part.start() % BLOCK) as usize;
                let to = (part.start() - range.start()) as usize;
                let length = part.len() as usize;
                bytes[to..to + length].copy_from_slice(&data[from..from + length]);
            }
        }
        bytes
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = ByteRange::at(offset, bytes.len() as u64).expect("checked by the kernel");
        for part in range.chunks(BLOCK) {
            let from = (part.start() - offset) as usize;
            self.overwrite(part, &bytes[from..from + part.len() as usize]);
        }
        self.size = self.size.max(range.end());
    }

    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            let tail = ByteRange::new(size, size.next_multiple_of(BLOCK));
            self.zero_existing(tail);
            self.blocks.split_off(&size.div_ceil(BLOCK));
        }
        self.size = size;
    }

    /// Blocks of `range` exist; their content is kept.
    pub(super) fn allocate(&mut self, range: ByteRange) {
        for number in touched(range) {
            self.blocks.entry(number).or_insert(Block::Zeros);
        }
    }

    /// Whole blocks of `range` are freed, the rest of it becomes zeros.
    pub(super) fn punch(&mut self, range: ByteRange) {
        self.zero_existing(range);
        let whole = range.shrink_to_blocks(BLOCK);
        let mut rest = self.blocks.split_off(&(whole.start() / BLOCK));
        if !whole.is_empty() {
            rest = rest.split_off(&(whole.end() / BLOCK));
        }
        self.blocks.append(&mut rest);
    }

    /// The existing part of `range` reads as zeros.
    pub(super) fn zero_existing(&mut self, range: ByteRange) {
        let numbers: Vec<u64> = self.blocks.range(touched(range)).map(|(&n, _)| n).collect();
        for number in numbers {
            if let Some(part) = place(number).intersection(range) {
                self.overwrite(part, &[0; BLOCK as usize][..part.len() as usize]);
            }
        }
    }

    /// The first byte from `offset` on that is in a block (`data`) or in none.
    pub(super) fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let first = offset / BLOCK;
        let found = if data {
            *self.blocks.range(first..).next()?.0
        } else {
            (first..)
                .find(|number| !self.blocks.contains_key(number))
                .expect("blocks are finite")
        };
        let found = (found * BLOCK).max(offset);
        if data {
            (found < self.size).then_some(found)
        } else {
            Some(found.min(self.size))
        }
    }

    /// `part` is within one block.
    fn overwrite(&mut self, part: ByteRange, bytes: &[u8]) {
        let block = self
            .blocks
            .entry(part.start() / BLOCK)
            .or_insert(Block::Zeros);
        if bytes.iter().all(|&byte| byte == 0) {
            if part.len() == BLOCK {
                *block = Block::Zeros;
            }
            if matches!(block, Block::Zeros) {
                return;
            }
        }
        if matches!(block, Block::Zeros) {
            *block = Block::Data(vec![0; BLOCK as usize].into());
        }
        if let Block::Data(data) = block {
            let from = (part.start() % BLOCK) as usize;
            data[from..from + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Numbers of the blocks that `range` has bytes of.
fn touched(range: ByteRange) -> std::ops::Range<u64> {
    if range.is_empty() {
        0..0
    } else {
        range.start() / BLOCK..range.end().div_ceil(BLOCK)
    }
}

fn place(number: u64) -> ByteRange {
    ByteRange::new(number * BLOCK, (number + 1) * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    #[test]
    fn read_joins_data_and_holes() {
        let mut file = Blocks::default();
        file.write(4000, &[1; 200]);
        file.resize(20_000);
        let mut expected = vec![0; 5000];
        expected[3000..3200].fill(1);
        assert_eq!(file.read(range(1000, 6000)), expected);
        assert_eq!(file.read(range(19_999, 30_000)), [0]);
        assert_eq!((file.count(), file.missing(range(0, 20_000))), (2, 3));
    }

    #[test]
    fn shrunk_and_grown_file_has_zeros_at_the_old_end() {
        let mut file = Blocks::default();
        file.write(0, &[1; 10_000]);
        file.resize(5000);
        file.resize(10_000);
        let bytes = file.read(range(0, 10_000));
        assert!(bytes[..5000].iter().all(|&b| b == 1) && bytes[5000..].iter().all(|&b| b == 0));
        assert_eq!(file.count(), 2);
    }

    #[test]
    fn punch_frees_whole_blocks_and_zeroes_edges() {
        let mut file = Blocks::default();
        file.write(0, &[1; 20_480]);
        file.punch(range(1000, 13_000));
        assert_eq!(file.count(), 3);
        let bytes = file.read(range(0, 20_480));
        let sum: u64 = bytes.iter().map(|&b| u64::from(b)).sum();
        assert_eq!(sum, 20_480 - 12_000);
        file.punch(range(17_000, 17_001));
        assert_eq!(file.count(), 3);
        file.punch(range(0, 20_480));
        assert_eq!(file.count(), 0);
    }

    #[test]
    fn seek_finds_data_and_holes() {
        let mut file = Blocks::default();
        file.resize(5 * BLOCK);
        file.allocate(range(BLOCK, 3 * BLOCK));
        assert_eq!(file.seek(0, true), Some(BLOCK));
        assert_eq!(file.seek(BLOCK + 5, false), Some(3 * BLOCK));
        assert_eq!(file.seek(3 * BLOCK, true), None);
        file.allocate(range(0, 6 * BLOCK));
        assert_eq!(file.seek(7, false), Some(5 * BLOCK));
        assert_eq!(file.seek(5 * BLOCK, true), None);
    }
}
