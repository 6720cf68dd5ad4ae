//! The data of a file, block by block.
//!
//! A written block after the end of the file contains zeros here by construction: extending the
//! file must not expose anything else.

use std::collections::BTreeMap;

use extant_space::{ByteRange, ErrorKind, ExtentState, FallocateMode};

use super::Format;
use crate::tree::{Content, push_state};

/// A block that is not a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Block {
    Unwritten,
    Written(Vec<u8>),
}

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileData {
    pub size: u64,
    format: Format,
    block_bytes: u64,
    blocks: BTreeMap<u64, Block>,
}

impl FileData {
    pub fn new(format: Format) -> Self {
        Self {
            size: 0,
            format,
            block_bytes: format.block_bytes.into(),
            blocks: BTreeMap::new(),
        }
    }

    /// Makes a file of its contents.
    pub fn from_content(content: &Content, format: Format) -> Self {
        let mut file = Self::new(format);
        let block_bytes = file.block_bytes;
        file.size = content.size;
        for (range, state) in &content.states {
            for number in range.start() / block_bytes..range.end().div_ceil(block_bytes) {
                let bytes = content.blocks.get(&number).cloned();
                let mut bytes = bytes.unwrap_or_default();
                bytes.resize(block_bytes as usize, 0);
                let block = match state {
                    ExtentState::Written => Block::Written(bytes),
                    _ => Block::Unwritten,
                };
                file.blocks.insert(number, block);
            }
        }
        file
    }

    pub fn content(&self) -> Content {
        let mut content = Content {
            size: self.size,
            states: Vec::new(),
            blocks: BTreeMap::new(),
        };
        for (&number, block) in &self.blocks {
            let start = number * self.block_bytes;
            let range = ByteRange::new(start, start + self.block_bytes);
            push_state(&mut content.states, range, block.state());
            if let Block::Written(bytes) = block
                && start < self.size
                && bytes.iter().any(|&byte| byte != 0)
            {
                let length = (self.size - start).min(self.block_bytes) as usize;
                content.blocks.insert(number, bytes[..length].to_vec());
            }
        }
        content
    }

    pub fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The last block that is no hole, and one.
    pub fn blocks_end(&self) -> u64 {
        self.blocks
            .last_key_value()
            .map_or(0, |(number, _)| number + 1)
    }

    fn bytes_max(&self) -> u64 {
        self.format.file_blocks_max * self.block_bytes
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = (offset + length as u64).min(self.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let to = (at / self.block_bytes + 1) * self.block_bytes;
            let to = to.min(end);
            let within = (at % self.block_bytes) as usize;
            match self.blocks.get(&(at / self.block_bytes)) {
                Some(Block::Written(block)) => {
                    bytes.extend_from_slice(&block[within..within + (to - at) as usize]);
                }
                _ => bytes.resize(bytes.len() + (to - at) as usize, 0),
            }
            at = to;
        }
        bytes
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
        let end = offset + bytes.len() as u64;
        if end > self.bytes_max() {
            return Err(ErrorKind::TooLarge);
        }
        for (number, part) in self.parts(ByteRange::new(offset, end)) {
            let start = number * self.block_bytes;
            let from = &bytes[(part.start() - offset) as usize..(part.end() - offset) as usize];
            let within = (part.start() - start) as usize;
            self.written(number)[within..within + from.len()].copy_from_slice(from);
        }
        if !bytes.is_empty() {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    pub fn resize(&mut self, size: u64) -> Result<(), ErrorKind> {
        if size > self.bytes_max() {
            return Err(ErrorKind::TooLarge);
        }
        if size <= self.size {
            self.blocks.split_off(&size.div_ceil(self.block_bytes));
            let number = size / self.block_bytes;
            if let Some(Block::Written(bytes)) = self.blocks.get_mut(&number) {
                bytes[(size % self.block_bytes) as usize..].fill(0);
            }
        }
        self.size = size;
        Ok(())
    }

    /// As `fallocate(2)`, with the edges of write zeroes as in docs/design.md.
    pub fn fallocate(&mut self, mode: FallocateMode, range: ByteRange) -> Result<(), ErrorKind> {
        if range.end() > self.format.extent_blocks_max * self.block_bytes {
            return Err(ErrorKind::TooLarge);
        }
        use FallocateMode as Mode;
        if !self.format.has_extents && mode != Mode::PunchHole {
            return Err(ErrorKind::Unsupported);
        }
        match mode {
            Mode::CollapseRange => return self.collapse(range),
            Mode::InsertRange => return self.insert(range),
            _ => {}
        }
        for (number, part) in self.parts(range) {
            let start = number * self.block_bytes;
            let is_whole = part.len() == self.block_bytes;
            let inside = (part.start() - start) as usize..(part.end() - start) as usize;
            let before = self.blocks.remove(&number);
            let after = match (mode, before) {
                (Mode::PunchHole, _) if is_whole => None,
                (Mode::ZeroRange | Mode::ZeroRangeKeepSize, _) if is_whole => {
                    Some(Block::Unwritten)
                }
                (Mode::PunchHole, None) => None,
                (Mode::WriteZeroes, None | Some(Block::Unwritten)) => {
                    Some(Block::Written(vec![0; self.block_bytes as usize]))
                }
                (_, None) => Some(Block::Unwritten),
                (
                    Mode::PunchHole | Mode::ZeroRange | Mode::ZeroRangeKeepSize | Mode::WriteZeroes,
                    Some(Block::Written(mut bytes)),
                ) => {
                    bytes[inside].fill(0);
                    Some(Block::Written(bytes))
                }
                (_, Some(block)) => Some(block),
            };
            self.blocks.extend(after.map(|block| (number, block)));
        }
        let keeps_size = matches!(
            mode,
            Mode::AllocateKeepSize | Mode::PunchHole | Mode::ZeroRangeKeepSize
        );
        if !keeps_size {
            self.size = self.size.max(range.end());
        }
        Ok(())
    }

    fn collapse(&mut self, range: ByteRange) -> Result<(), ErrorKind> {
        let (first, count) = self.whole_blocks(range)?;
        if range.end() >= self.size {
            return Err(ErrorKind::InvalidArgument);
        }
        let behind = self.blocks.split_off(&(first + count));
        self.blocks.split_off(&first);
        let moved = behind
            .into_iter()
            .map(|(number, block)| (number - count, block));
        self.blocks.extend(moved);
        self.size -= range.len();
        Ok(())
    }

    fn insert(&mut self, range: ByteRange) -> Result<(), ErrorKind> {
        let (first, count) = self.whole_blocks(range)?;
        if self.size + range.len() > self.bytes_max() {
            return Err(ErrorKind::TooLarge);
        }
        if range.start() >= self.size {
            return Err(ErrorKind::InvalidArgument);
        }
        if self.blocks_end() + count > u32::MAX.into() {
            return Err(ErrorKind::InvalidArgument);
        }
        let behind = self.blocks.split_off(&first);
        let moved = behind
            .into_iter()
            .map(|(number, block)| (number + count, block));
        self.blocks.extend(moved);
        self.size += range.len();
        Ok(())
    }

    /// Whether each block of the file is as `before` or as `after` had it, or allocated without
    /// data on the way there: the permitted states after an operation that ran out of space.
    pub fn is_between(&self, before: &Self, after: &Self) -> bool {
        let sizes = before.size.min(after.size)..=before.size.max(after.size);
        let all = self
            .blocks
            .keys()
            .chain(before.blocks.keys())
            .chain(after.blocks.keys());
        sizes.contains(&self.size)
            && all.into_iter().all(|number| {
                let now = self.blocks.get(number);
                let (old, new) = (before.blocks.get(number), after.blocks.get(number));
                let is_on_the_way =
                    old.is_none() && new.is_some() && now == Some(&Block::Unwritten);
                let is_cut = new.is_some_and(|new| self.is_cut_at_end(*number, new, now));
                now == old || now == new || is_on_the_way || is_cut
            })
    }

    /// The last block of a shorter file has zeros where the longer one has data.
    fn is_cut_at_end(&self, number: u64, whole: &Block, now: Option<&Block>) -> bool {
        let (Block::Written(whole), Some(Block::Written(now))) = (whole, now) else {
            return false;
        };
        let start = number * self.block_bytes;
        let end = self.size.saturating_sub(start).min(self.block_bytes) as usize;
        whole[..end] == now[..end]
    }

    fn whole_blocks(&self, range: ByteRange) -> Result<(u64, u64), ErrorKind> {
        let is_whole = |at: u64| at.is_multiple_of(self.block_bytes);
        if is_whole(range.start()) && is_whole(range.end()) {
            Ok((
                range.start() / self.block_bytes,
                range.len() / self.block_bytes,
            ))
        } else {
            Err(ErrorKind::InvalidArgument)
        }
    }

    /// The blocks of a range, with the part of each inside it.
    fn parts(&self, range: ByteRange) -> impl Iterator<Item = (u64, ByteRange)> + use<> {
        let bytes = self.block_bytes;
        let numbers = range.start() / bytes..range.end().div_ceil(bytes);
        numbers.map(move |number| {
            let block = ByteRange::new(number * bytes, (number + 1) * bytes);
            let part = block.intersection(range);
            (number, part.expect("a block of the range"))
        })
    }

    fn written(&mut self, number: u64) -> &mut Vec<u8> {
        let zeros = || vec![0; self.block_bytes as usize];
        let block = self.blocks.entry(number).or_insert(Block::Unwritten);
        if *block == Block::Unwritten {
            *block = Block::Written(zeros());
        }
        match block {
            Block::Written(bytes) => bytes,
            Block::Unwritten => unreachable!("written just now"),
        }
    }
}

impl Block {
    fn state(&self) -> ExtentState {
        match self {
            Self::Unwritten => ExtentState::Unwritten,
            Self::Written(_) => ExtentState::Written,
        }
    }
}
