//! State shared by the mount and the test: the store, the active faults, the counters.
//!
//! One lock guards it all. A request takes it after its latency, and never holds it while
//! it waits.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use extant_space::ByteRange;
use fuser::{Errno, FileType, INodeNo};

use super::store::{Result, Store};
use super::{Counters, DirectIoFault, FallocateFault, Faults, WriteFault};

const TICK: Duration = Duration::from_millis(2);

/// State shared by the mount and the test.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Counts the changes of faults.
    epoch: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) faults: Faults,
    /// Bytes acknowledged since the faults were set.
    written: u64,
    pub(super) counters: Counters,
}

impl Shared {
    pub(super) fn new(capacity_bytes: u64, faults: Faults) -> Self {
        Self {
            state: Mutex::new(State {
                store: Store::new(capacity_bytes),
                faults,
                written: 0,
                counters: Counters::default(),
            }),
            epoch: AtomicU64::new(0),
        }
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        let mut state = self.lock();
        state.faults = faults;
        state.written = 0;
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// The state; a request that panicked must not keep the mount from being undone.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The state, for one more request.
    pub(super) fn request(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.counters.requests += 1;
        state
    }

    /// The state, for one more request that is slow when faults say so.
    pub(super) fn slow_request(&self) -> MutexGuard<'_, State> {
        let latency = self.lock().faults.latency;
        self.request_after(latency)
    }

    /// The same for a sync.
    pub(super) fn slow_sync(&self) -> MutexGuard<'_, State> {
        let latency = {
            let faults = &self.lock().faults;
            faults.latency + faults.sync_latency
        };
        self.request_after(latency)
    }

    fn request_after(&self, latency: Duration) -> MutexGuard<'_, State> {
        let (epoch, start) = (self.epoch.load(Ordering::Relaxed), Instant::now());
        while start.elapsed() < latency && self.epoch.load(Ordering::Relaxed) == epoch {
            thread::sleep(TICK.min(latency.saturating_sub(start.elapsed())));
        }
        self.request()
    }
}

impl State {
    pub(super) fn write(&mut self, number: INodeNo, offset: u64, data: &[u8]) -> Result<u32> {
        self.counters.writes += 1;
        let left = |limit: u64| data.len().min(limit.saturating_sub(self.written) as usize);
        let (kept, acknowledged) = match self.faults.write {
            WriteFault::None => (data.len(), data.len()),
            WriteFault::DroppedAfter(limit) => (left(limit), data.len()),
            WriteFault::FailsAfter(limit, kind) => match left(limit) {
                0 => return Err(Errno::from_i32(kind.errno())),
                some => (some, some),
            },
        };
        let range = ByteRange::at(offset, kept as u64).ok_or(Errno::EFBIG)?;
        self.store.check_room(number, range)?;
        let file = self.store.file(number)?;
        file.write(offset, &data[..kept]);
        file.resize(file.size().max(offset + acknowledged as u64));
        self.store.get(number)?.mtime = SystemTime::now();
        self.written += acknowledged as u64;
        self.counters.bytes_written += acknowledged as u64;
        Ok(acknowledged as u32)
    }

    pub(super) fn fallocate(&mut self, number: INodeNo, range: ByteRange, mode: i32) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;

        self.counters.fallocates += 1;
        let lies = match self.faults.fallocate {
            FallocateFault::None => false,
            FallocateFault::Unsupported => return Err(Errno::EOPNOTSUPP),
            FallocateFault::FalseSuccess => true,
        };
        if !matches!(mode, 0 | KEEP | PUNCH | ZERO | ZERO_KEEP) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !lies && mode == PUNCH {
            self.store.file(number)?.punch(range);
        } else if !lies {
            self.store.check_room(number, range)?;
            let file = self.store.file(number)?;
            file.allocate(range);
            if mode & ZERO != 0 {
                file.zero_existing(range);
            }
        }
        if mode & KEEP == 0 {
            let file = self.store.file(number)?;
            file.resize(file.size().max(range.end()));
        }
        Ok(())
    }

    pub(super) fn check_open(&self, flags: i32) -> Result<()> {
        let refused = self.faults.direct_io == DirectIoFault::Refused;
        if refused && flags & libc::O_DIRECT != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub(super) fn fsync(&mut self) -> Result<()> {
        self.counters.fsyncs += 1;
        match self.faults.fsync {
            Some(kind) => Err(Errno::from_i32(kind.errno())),
            None => Ok(()),
        }
    }

    /// Number, type and name of everything in a directory.
    pub(super) fn list(
        &mut self,
        directory: INodeNo,
    ) -> Result<Vec<(INodeNo, FileType, OsString)>> {
        let mut entries = vec![
            (directory, FileType::Directory, ".".into()),
            (directory, FileType::Directory, "..".into()),
        ];
        for (name, number) in self.store.names(directory)?.clone() {
            entries.push((number, self.store.attributes(number)?.kind, name));
        }
        Ok(entries)
    }
}
