//! Writes zeros over ranges of a file, at the given pace.
//!
//! Two ways, chosen once:
//! - direct I/O with many requests in flight, through io_uring, or from a few threads if io_uring
//!   is missing or forbidden;
//! - [`SpaceFile::write_at`](extant_space::SpaceFile::write_at), one request at a time from the
//!   start to the end, if there is no direct I/O (tmpfs, some FUSE, a file inside an image).
//!   Through the page cache of the host, write-out follows behind: while one window is written
//!   out, the next is filled, so a sync at the end is short and other programs keep their cache.
//!
//! Whole blocks take the first way. Edges inside a block are kept until [`finish`] and take the
//! second, which reads the rest of their block first.
//!
//! A request that ended short is sent again for its rest. The first error stops the run; the writer
//! always waits for requests in flight: a late zero could overwrite the data of another process.
//!
//! [`finish`]: ZeroWriter::finish

mod queue;

use std::time::{Duration, Instant};

use extant_space::trace::{Level, Timer};
use extant_space::{ByteRange, Error, HostIo, Phase, Result, ended};
use extant_sys::buffer::AlignedBuffer;
use extant_sys::direct;
use extant_sys::queue::run_threads;
use extant_sys::ring::Ring;
use extant_sys::write_out::{WriteOut, write_out};

use crate::pace::{Pacer, REQUEST_MAX};
use crate::plan::{Plan, Strategy};
use crate::provisioner::Provisioner;
use queue::{QUEUE_DEPTH, ZeroQueue};

/// Threads that stand in for io_uring.
const DIRECT_THREADS: usize = 4;
/// Ranges that are collected before they are written.
const PENDING_MAX: usize = 1024;
/// Dirty data that is written out together, bytes.
const WRITE_OUT_WINDOW: u64 = 8 << 20;
/// Smallest request of the second way, bytes.
const BUFFERED_UNIT: u32 = 512;
/// Shortest time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

enum Engine<'a> {
    Ring(Box<Ring>),
    Threads,
    /// By `write_at`.
    InOrder(WriteOutBehind<'a>),
}

/// Writes zeros to one file.
pub(crate) struct ZeroWriter<'a> {
    engine: Engine<'a>,
    /// The file, as long as direct I/O is on.
    direct: Option<HostIo<'a>>,
    zeros: AlignedBuffer,
    block_bytes: u32,
    pending: Vec<ByteRange>,
    edges: Vec<ByteRange>,
    work: Work<'a>,
    timer: Timer,
}

/// The pace and the progress of a writer.
struct Work<'a> {
    target: Provisioner<'a>,
    pacer: Pacer<'a>,
    done_bytes: u64,
    written_bytes: u64,
    reported: Instant,
}

impl<'a> ZeroWriter<'a> {
    /// `done_bytes` of the target's range need no writing any more, which is for progress alone.
    pub(crate) fn new(target: &Provisioner<'a>, plan: &Plan, done_bytes: u64) -> Result<Self> {
        let host = target.file.host_io();
        // In order means through the page cache, which turns it into large extents.
        let offset_bytes = plan
            .direct_io
            .filter(|_| plan.strategy != Strategy::WriteInOrder)
            .map(|direct| direct.offset_bytes)
            .filter(|&bytes| u64::from(bytes) <= REQUEST_MAX);
        let direct =
            host.filter(|host| offset_bytes.is_some() && direct::set(host.file, true).is_ok());
        let engine = match direct {
            None => Engine::InOrder(WriteOutBehind::new(host)),
            Some(_) => match Ring::new(QUEUE_DEPTH as u32) {
                Ok(ring) if ring.has_timeouts() => Engine::Ring(Box::new(ring)),
                _ => Engine::Threads,
            },
        };
        let block_bytes = match (direct, offset_bytes) {
            (Some(_), Some(bytes)) => plan.block_bytes.max(bytes),
            _ => 1,
        };
        let zeros = AlignedBuffer::resident(REQUEST_MAX as usize)
            .map_err(|source| Error::from(source).during("prepare zeros"))?;
        Ok(Self {
            engine,
            direct,
            zeros,
            block_bytes,
            pending: Vec::new(),
            edges: Vec::new(),
            work: Work {
                target: *target,
                pacer: Pacer::of_file(target.file, target.pace)?,
                done_bytes,
                written_bytes: 0,
                reported: Instant::now(),
            },
            timer: Timer::start(Level::DEBUG),
        })
    }

    /// Zeros `range`, at the latest by [`finish`](Self::finish).
    pub(crate) fn zero(&mut self, range: ByteRange) -> Result<()> {
        let blocks = range.shrink_to_blocks(u64::from(self.block_bytes));
        if blocks.is_empty() {
            self.edges.push(range);
        } else {
            let head = ByteRange::new(range.start(), blocks.start());
            let tail = ByteRange::new(blocks.end(), range.end());
            let edges = [head, tail].into_iter().filter(|edge| !edge.is_empty());
            self.edges.extend(edges);
            self.pending.push(blocks);
        }
        if self.pending.len() + self.edges.len() < PENDING_MAX {
            return Ok(());
        }
        self.write_pending()
    }

    /// Zeros everything that is pending, then the edges. Returns the bytes written.
    /// Nothing is durable before the file is synced.
    pub(crate) fn finish(mut self) -> Result<u64> {
        let written_bytes = self.write_all();
        let (range, timer) = (self.work.target.range, self.timer);
        ended!(
            timer,
            written_bytes,
            DEBUG,
            "overwrite",
            start_bytes = range.start(),
            length_bytes = range.len(),
            written_bytes = self.work.written_bytes
        );
        written_bytes
    }

    fn write_all(&mut self) -> Result<u64> {
        self.write_pending()?;
        self.work.target.check_stop()?;
        if !self.edges.is_empty() {
            self.leave_direct()?;
        }
        for edge in std::mem::take(&mut self.edges) {
            for chunk in edge.chunks(u64::from(self.block_bytes)) {
                self.work.target.check_stop()?;
                let zeros = vec![0; chunk.len() as usize];
                self.work.target.file.write_at(&zeros, chunk.start())?;
                self.work.count(chunk.len());
            }
        }
        self.work.report();
        Ok(self.work.written_bytes)
    }

    fn write_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let (work, zeros) = (&mut self.work, self.zeros.as_slice());
        let Some(direct) = self.direct else {
            let Engine::InOrder(behind) = &mut self.engine else {
                unreachable!("the other engines need direct I/O")
            };
            let mut ranges = pending.into_iter();
            return ranges.try_for_each(|range| work.write_in_order(range, zeros, behind));
        };
        let mut queue = ZeroQueue::new(work, zeros, self.block_bytes, pending);
        loop {
            if let Engine::Ring(_) = &self.engine
                && let Engine::Ring(ring) = std::mem::replace(&mut self.engine, Engine::Threads)
            {
                // A ring that fails is not used again.
                if let Some(ring) = ring.run(direct.file, &mut queue) {
                    self.engine = Engine::Ring(Box::new(ring));
                }
            } else {
                run_threads(direct.file, &mut queue, DIRECT_THREADS);
            }
            if queue.wait_for_pace()?.is_done() {
                return Ok(());
            }
        }
    }

    fn leave_direct(&mut self) -> Result<()> {
        let Some(host) = self.direct.take() else {
            return Ok(());
        };
        self.engine = Engine::InOrder(WriteOutBehind::new(Some(host)));
        direct::set(host.file, false)
            .map_err(|errno| Error::from(std::io::Error::from(errno)).during("leave direct I/O"))
    }
}

impl Drop for ZeroWriter<'_> {
    fn drop(&mut self) {
        let _ = self.leave_direct();
    }
}

impl Work<'_> {
    fn write_in_order(
        &mut self,
        range: ByteRange,
        zeros: &[u8],
        behind: &mut WriteOutBehind<'_>,
    ) -> Result<()> {
        let target = self.target;
        let (mut done, mut reported) = (0, self.reported);
        let before = self.done_bytes;
        self.pacer
            .one_at_a_time(range, BUFFERED_UNIT, target.control, &mut |chunk| {
                target.check_stop()?;
                target
                    .file
                    .write_at(&zeros[..chunk.len() as usize], chunk.start())?;
                behind.written(chunk)?;
                done += chunk.len();
                if reported.elapsed() >= PROGRESS_INTERVAL {
                    reported = Instant::now();
                    target
                        .control
                        .report(Phase::Write, before + done, target.range.len());
                }
                Ok(())
            })?;
        self.reported = reported;
        self.count(done);
        Ok(())
    }

    fn count(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        self.written_bytes += bytes;
    }

    fn report(&mut self) {
        self.reported = Instant::now();
        let control = self.target.control;
        self.pacer.report(control.progress);
        control.report(Phase::Write, self.done_bytes, self.target.range.len());
    }

    fn report_progress(&mut self) {
        if self.reported.elapsed() >= PROGRESS_INTERVAL {
            self.report();
        }
    }
}

/// Write-out of the page cache, two windows behind the writes.
struct WriteOutBehind<'a> {
    /// `None`: the file has no page cache of the host.
    host: Option<HostIo<'a>>,
    filled: ByteRange,
    writing_out: ByteRange,
}

impl<'a> WriteOutBehind<'a> {
    fn new(host: Option<HostIo<'a>>) -> Self {
        Self {
            host,
            filled: ByteRange::default(),
            writing_out: ByteRange::default(),
        }
    }

    /// `range` has been written.
    fn written(&mut self, range: ByteRange) -> Result<()> {
        let Some(host) = self.host else {
            return Ok(());
        };
        let start = if self.filled.end() == range.start() {
            self.filled.start()
        } else {
            range.start()
        };
        self.filled = ByteRange::new(start, range.end());
        if self.filled.len() < WRITE_OUT_WINDOW {
            return Ok(());
        }
        let calls = [
            (self.filled, WriteOut::Start),
            (self.writing_out, WriteOut::Finish),
        ];
        for (range, wait) in calls.into_iter().filter(|(range, _)| !range.is_empty()) {
            write_out(host.file, range, wait)
                .map_err(|source| Error::from(source).during("write zeros").in_range(range))?;
        }
        self.writing_out = self.filled;
        self.filled = ByteRange::new(self.filled.end(), self.filled.end());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
