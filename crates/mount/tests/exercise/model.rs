//! A file as it must be: its bytes, and of each block whether it is a hole, unwritten or written.
//!
//! Model: a block has a set of states that it may be in, mostly of one. There are several where the
//! kernel decides: it writes back whole pages, so a block next to the written one may become
//! written. Looking at the extent map settles it. Content is never uncertain: unwritten blocks read
//! as zeros.

use std::ops::Range;

use bitflags::bitflags;
use extant_space::{Extent, ExtentState, FallocateMode};
use rustix::io::Errno;

bitflags! {
    /// States that a block may be in.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct States: u8 {
        const HOLE = 1;
        const UNWRITTEN = 2;
        const WRITTEN = 4;
    }
}

/// How a write reaches the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// As it is.
    Exact,
    /// As the pages that it touches, at a time chosen by the kernel.
    Pages,
}

const PAGE: u64 = 4096;

/// A file.
#[derive(Clone, Debug)]
pub struct Model {
    bytes: Vec<u8>,
    blocks: Vec<States>,
    block: u64,
}

impl Model {
    /// An empty file, on a file system with this block size.
    pub fn new(block_bytes: u64) -> Self {
        Self {
            bytes: Vec::new(),
            blocks: Vec::new(),
            block: block_bytes,
        }
    }

    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn block_bytes(&self) -> u64 {
        self.block
    }

    /// Result of a read.
    pub fn read(&self, offset: u64, length: usize) -> &[u8] {
        let start = offset.min(self.size()) as usize;
        let end = (start + length).min(self.bytes.len());
        &self.bytes[start..end]
    }

    pub fn write(&mut self, offset: u64, data: &[u8], grain: Grain) {
        let end = offset + data.len() as u64;
        if data.is_empty() {
            return;
        }
        if end > self.size() {
            self.bytes.resize(end as usize, 0);
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(data);
        if grain == Grain::Pages {
            // Also behind the end of the file: it may be longer when the page is written back.
            let pages = offset / PAGE * PAGE..end.next_multiple_of(PAGE);
            for block in self.blocks_of(pages.start, pages.end) {
                *self.states_mut(block) |= States::WRITTEN;
            }
        }
        self.set(offset, end, States::WRITTEN);
    }

    /// Cuts the file or makes it longer.
    ///
    /// Space kept after the new end is freed with its old data. A kernel that caches (`grain`) may
    /// know of data that the file system has not seen, though, and make the file shorter when it
    /// seems to grow there: then it may be kept.
    pub fn resize(&mut self, size: u64, grain: Grain) {
        if size <= self.size() {
            let end = size.div_ceil(self.block) as usize;
            match grain {
                Grain::Exact => self.blocks.truncate(end),
                Grain::Pages => {
                    for states in self.blocks.iter_mut().skip(end) {
                        if *states != States::HOLE {
                            *states = States::HOLE | States::UNWRITTEN;
                        }
                    }
                }
            }
            // The page that the file ends in may wait to be written back, and the file be longer by
            // then.
            for block in size.div_ceil(self.block)..size.next_multiple_of(PAGE) / self.block {
                *self.states_mut(block) |= States::HOLE | States::WRITTEN;
            }
        }
        self.bytes.resize(size as usize, 0);
    }

    /// As `fallocate(2)`, with the edges of write zeroes as in docs/design.md.
    pub fn fallocate(
        &mut self,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        use FallocateMode as Mode;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset + length;
        match mode {
            Mode::CollapseRange => return self.collapse(offset, end),
            Mode::InsertRange => return self.insert(offset, end),
            // Blocks after the end of the file are kept.
            Mode::PunchHole => {
                let end = end.min(self.size().next_multiple_of(self.block));
                self.zero(offset, end);
                self.set_whole(offset, end, States::HOLE);
                return Ok(());
            }
            _ => {}
        }
        let keeps_size = matches!(mode, Mode::AllocateKeepSize | Mode::ZeroRangeKeepSize);
        if !keeps_size && end > self.size() {
            self.bytes.resize(end as usize, 0);
        }
        if matches!(
            mode,
            Mode::ZeroRange | Mode::ZeroRangeKeepSize | Mode::WriteZeroes
        ) {
            self.zero(offset, end);
        }
        match mode {
            Mode::WriteZeroes => self.set(offset, end, States::WRITTEN),
            _ => self.allocate(offset, end),
        }
        if matches!(mode, Mode::ZeroRange | Mode::ZeroRangeKeepSize) {
            self.set_whole(offset, end, States::UNWRITTEN);
        }
        Ok(())
    }

    /// Whether `seek` may have answered so; the difference, if not.
    pub fn judge_seek(
        &self,
        wanted: Seek,
        offset: u64,
        answer: Result<u64, Errno>,
    ) -> Result<(), String> {
        if offset >= self.size() {
            return match answer {
                Err(Errno::NXIO) => Ok(()),
                other => Err(format!("{other:?}, though nothing is there")),
            };
        }
        let data = States::WRITTEN;
        let (wanted_states, passed_states) = match wanted {
            Seek::Data => (data, data.complement()),
            Seek::Hole => (data.complement(), data),
        };
        let (end, is_found) = match answer {
            Ok(at) => (at, at < self.size()),
            Err(Errno::NXIO) if wanted == Seek::Data => (self.size(), false),
            Err(error) => return Err(format!("{error:?}")),
        };
        if end < offset || end > self.size() || wanted == Seek::Data && answer == Ok(self.size()) {
            return Err(format!("{end}, which is not in the file"));
        }
        if is_found && end != offset && end % self.block != 0 {
            return Err(format!("{end} is inside a block"));
        }
        let has = |block, states| self.states(block).intersects(states);
        let mut passed = if end > offset {
            self.blocks_of(offset, end)
        } else {
            0..0
        };
        if let Some(block) = passed.find(|&block| !has(block, passed_states)) {
            return Err(format!("{answer:?} passes over block {block}"));
        }
        if is_found && !has(end / self.block, wanted_states) {
            Err(format!("{end} is something else"))
        } else {
            Ok(())
        }
    }

    /// Compares with an extent map, which resolves uncertain states.
    pub fn settle(&mut self, extents: &[Extent]) -> Result<(), String> {
        let mut found = Vec::new();
        let mut end_before = 0;
        for extent in extents {
            let (start, end) = (extent.logical.start(), extent.logical.end());
            if start % self.block != 0 || end % self.block != 0 || start < end_before {
                return Err(format!("{:?} is out of place", extent.logical));
            }
            end_before = end;
            let state = match extent.state {
                ExtentState::Hole => return Err("a hole in the map".into()),
                ExtentState::Unwritten => States::UNWRITTEN,
                ExtentState::Written => States::WRITTEN,
            };
            found.resize((start / self.block) as usize, States::HOLE);
            found.resize((end / self.block) as usize, state);
        }
        let blocks = found.len().max(self.blocks.len()) as u64;
        for block in 0..blocks {
            let now = found.get(block as usize).copied().unwrap_or(States::HOLE);
            if !self.states(block).contains(now) {
                let wanted = self.states(block);
                return Err(format!(
                    "block {block} of a file of {} bytes is {now:?}, not {wanted:?}",
                    self.size()
                ));
            }
        }
        self.blocks = found;
        Ok(())
    }

    /// Bytes that the data takes, at least and at most.
    pub fn allocated(&self) -> (u64, u64) {
        let count = |is_counted: &dyn Fn(States) -> bool| {
            self.blocks.iter().filter(|&&s| is_counted(s)).count() as u64 * self.block
        };
        let least = count(&|states| !states.contains(States::HOLE));
        (least, count(&|states| states != States::HOLE))
    }

    fn collapse(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let range = self.moved(start, end)?;
        if end >= self.size() {
            return Err(Errno::INVAL);
        }
        self.bytes.drain(start as usize..end as usize);
        let blocks = self.blocks.len();
        self.blocks
            .drain(range.start.min(blocks)..range.end.min(blocks));
        Ok(())
    }

    fn insert(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let range = self.moved(start, end)?;
        if start >= self.size() {
            return Err(Errno::INVAL);
        }
        let at = start as usize;
        self.bytes.splice(at..at, (start..end).map(|_| 0));
        if range.start < self.blocks.len() {
            let holes = range.clone().map(|_| States::HOLE);
            self.blocks.splice(range.start..range.start, holes);
        }
        Ok(())
    }

    fn moved(&self, start: u64, end: u64) -> Result<Range<usize>, Errno> {
        let is_whole = |at: u64| at.is_multiple_of(self.block);
        if is_whole(start) && is_whole(end) {
            Ok((start / self.block) as usize..(end / self.block) as usize)
        } else {
            Err(Errno::INVAL)
        }
    }

    fn zero(&mut self, start: u64, end: u64) {
        let (start, end) = (start.min(self.size()), end.min(self.size()));
        if start < end {
            self.bytes[start as usize..end as usize].fill(0);
        }
    }

    fn allocate(&mut self, start: u64, end: u64) {
        for block in self.blocks_of(start, end) {
            let states = self.states_mut(block);
            if states.contains(States::HOLE) {
                *states = (*states - States::HOLE) | States::UNWRITTEN;
            }
        }
    }

    /// All blocks that the range touches.
    fn set(&mut self, start: u64, end: u64, states: States) {
        for block in self.blocks_of(start, end) {
            *self.states_mut(block) = states;
        }
    }

    /// All whole blocks of the range; the file may end in the last one.
    fn set_whole(&mut self, start: u64, end: u64, states: States) {
        for block in start.div_ceil(self.block)..end / self.block {
            *self.states_mut(block) = states;
        }
    }

    fn states(&self, block: u64) -> States {
        let states = self.blocks.get(block as usize);
        states.copied().unwrap_or(States::HOLE)
    }

    fn states_mut(&mut self, block: u64) -> &mut States {
        let block = block as usize;
        if block >= self.blocks.len() {
            self.blocks.resize(block + 1, States::HOLE);
        }
        &mut self.blocks[block]
    }

    fn blocks_of(&self, start: u64, end: u64) -> Range<u64> {
        start / self.block..end.div_ceil(self.block)
    }
}

/// Whence of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}
