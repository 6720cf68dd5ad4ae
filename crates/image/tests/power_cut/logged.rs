//! A file in memory that logs its operations, and its content after a power cut.
//!
//! After a cut a disk has all synced data, and any subset of the sectors written since.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, Result,
    SpaceFile, SyncMode,
};

const SECTOR: usize = 512;

/// One change of the file.
#[derive(Clone)]
pub enum Change {
    Write(u64, Vec<u8>),
    Resize(u64),
    Punch(ByteRange),
    Sync,
}

/// The files changed, in order.
pub type Order = Arc<Mutex<Vec<usize>>>;

/// A file in memory, and the log of its operations.
#[derive(Default)]
pub struct Logged(Mutex<(Vec<u8>, Vec<Change>)>, Option<(usize, Order)>);

impl Logged {
    pub fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new((bytes, Vec::new())), None))
    }

    /// One of several, by number.
    pub fn one_of(bytes: Vec<u8>, number: usize, order: &Order) -> Arc<Self> {
        let place = Some((number, Arc::clone(order)));
        Arc::new(Self(Mutex::new((bytes, Vec::new())), place))
    }

    fn do_it(&self, change: Change) {
        if let Some((number, order)) = &self.1 {
            order.lock().unwrap().push(*number);
        }
        let (bytes, log) = &mut *self.0.lock().unwrap();
        apply(bytes, &change);
        log.push(change);
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().0.clone()
    }

    pub fn log(&self) -> Vec<Change> {
        self.0.lock().unwrap().1.clone()
    }
}

pub fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, data) => {
            let end = *at as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(data);
        }
        Change::Resize(size) => bytes.resize(*size as usize, 0),
        Change::Punch(range) => {
            let end = (range.end() as usize).min(bytes.len());
            if let Some(hole) = bytes.get_mut(range.start() as usize..end) {
                hole.fill(0);
            }
        }
        Change::Sync => {}
    }
}

impl SpaceFile for Logged {
    fn size(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().0.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (bytes, _) = &*self.0.lock().unwrap();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.do_it(Change::Write(offset, buffer.to_vec()));
        Ok(())
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.do_it(Change::Resize(size_bytes));
        Ok(())
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        match mode {
            FallocateMode::AllocateKeepSize => Ok(()),
            FallocateMode::PunchHole | FallocateMode::WriteZeroes => {
                self.do_it(Change::Punch(range));
                Ok(())
            }
            _ => Err(Error::new(ErrorKind::Unsupported)),
        }
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = visit(Extent {
            logical: range,
            physical: None,
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        });
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        self.do_it(Change::Sync);
        Ok(())
    }
}

/// The disk when the power is cut after `log`: all synced data, and any subset of the sectors
/// written since.
pub fn after_cut(before: &[u8], log: &[Change], seed: u64) -> Vec<u8> {
    let synced = log
        .iter()
        .rposition(|change| matches!(change, Change::Sync))
        .unwrap_or(0);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = before.to_vec();
    for (index, change) in log.iter().enumerate() {
        match change {
            _ if index < synced || seed == 0 => apply(&mut disk, change),
            // Sizes and holes are of the file system, which keeps their order.
            Change::Write(at, data) => {
                for (number, sector) in data.chunks(SECTOR).enumerate() {
                    if random.bool() {
                        let at = at + (number * SECTOR) as u64;
                        apply(&mut disk, &Change::Write(at, sector.to_vec()));
                    }
                }
            }
            _ => apply(&mut disk, change),
        }
    }
    disk
}
