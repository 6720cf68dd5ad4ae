//! A space file in memory, naive, that refuses the requests chosen by a test and counts requests.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, Result,
    SpaceFile, SyncMode,
};

/// The unit in which the file has states.
const BLOCK: u64 = 512;

/// Bytes, and a state for each block of them.
#[derive(Default)]
pub struct PageFile {
    inside: Mutex<Inside>,
    pub syncs: AtomicU64,
}

#[derive(Default)]
struct Inside {
    bytes: Vec<u8>,
    states: Vec<ExtentState>,
    refused: Vec<FallocateMode>,
    full: bool,
    sync_fails: bool,
    calls: Vec<(FallocateMode, ByteRange)>,
}

#[allow(dead_code)]
impl PageFile {
    pub fn new(size: u64) -> Self {
        let file = Self::default();
        file.resize(size).unwrap();
        file
    }

    pub fn refuse(&self, modes: &[FallocateMode]) {
        self.inside.lock().unwrap().refused = modes.to_vec();
    }

    /// Every allocation fails.
    pub fn fill_up(&self) {
        self.inside.lock().unwrap().full = true;
    }

    pub fn fail_syncs(&self) {
        self.inside.lock().unwrap().sync_fails = true;
    }

    /// Every fallocate so far, refused ones among them; forgotten afterwards.
    pub fn take_calls(&self) -> Vec<(FallocateMode, ByteRange)> {
        std::mem::take(&mut self.inside.lock().unwrap().calls)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.inside.lock().unwrap().bytes.clone()
    }
}

impl Inside {
    fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
        let blocks = size.div_ceil(BLOCK) as usize;
        self.states.resize(blocks, ExtentState::Hole);
    }

    fn states_of(&mut self, range: ByteRange) -> &mut [ExtentState] {
        let last = range.end().div_ceil(BLOCK);
        &mut self.states[(range.start() / BLOCK) as usize..last as usize]
    }
}

fn no_space(range: ByteRange) -> Error {
    Error::new(ErrorKind::NoSpace).at("backing").in_range(range)
}

impl SpaceFile for PageFile {
    fn size(&self) -> Result<u64> {
        Ok(self.inside.lock().unwrap().bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let inside = self.inside.lock().unwrap();
        let Some(rest) = inside.bytes.get(offset as usize..) else {
            return Ok(0);
        };
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let mut inside = self.inside.lock().unwrap();
        let range = ByteRange::at(offset, buffer.len() as u64).unwrap();
        if range.end() > inside.bytes.len() as u64 {
            inside.resize(range.end());
        }
        if inside.full && inside.states_of(range).contains(&ExtentState::Hole) {
            return Err(no_space(range));
        }
        inside.bytes[offset as usize..][..buffer.len()].copy_from_slice(buffer);
        inside.states_of(range).fill(ExtentState::Written);
        Ok(())
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.inside.lock().unwrap().resize(size_bytes);
        Ok(())
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let mut inside = self.inside.lock().unwrap();
        inside.calls.push((mode, range));
        if inside.refused.contains(&mode) {
            return Err(Error::new(ErrorKind::Unsupported));
        }
        if inside.full && mode != FallocateMode::PunchHole {
            return Err(no_space(range));
        }
        assert!(
            range.end() <= inside.bytes.len() as u64,
            "{mode} past the end"
        );
        let zeroed = match mode {
            FallocateMode::AllocateKeepSize => {
                for state in inside.states_of(range) {
                    *state = (*state).max(ExtentState::Unwritten);
                }
                return Ok(());
            }
            FallocateMode::PunchHole => ExtentState::Hole,
            FallocateMode::ZeroRangeKeepSize => ExtentState::Unwritten,
            FallocateMode::WriteZeroes => ExtentState::Written,
            _ => panic!("a device has no use for '{mode}'"),
        };
        inside.bytes[range.start() as usize..range.end() as usize].fill(0);
        inside.states_of(range).fill(zeroed);
        Ok(())
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let inside = self.inside.lock().unwrap();
        let size = inside.bytes.len() as u64;
        let inside_file = range.start().min(size)..range.end().min(size);
        for piece in ByteRange::new(inside_file.start, inside_file.end).chunks(BLOCK) {
            let extent = Extent {
                logical: piece,
                physical: None,
                state: inside.states[(piece.start() / BLOCK) as usize],
                flags: ExtentFlags::empty(),
            };
            if visit(extent).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        assert_eq!(mode, SyncMode::Data);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if self.inside.lock().unwrap().sync_fails {
            Err(Error::new(ErrorKind::Io).at("backing").during("sync"))
        } else {
            Ok(())
        }
    }
}
