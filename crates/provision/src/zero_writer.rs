//! Writes zeros over ranges with many requests in flight, at the given pace.
//!
//! Three backends, chosen once: io_uring with direct I/O; direct I/O from a few threads if io_uring
//! is missing or forbidden; the page cache if there is no direct I/O (tmpfs, some FUSE), with early
//! writeback.
//!
//! Whole blocks use the fast path. Edges inside a block are kept until [`finish`] and use the page
//! cache, which reads the rest of their block first.
//!
//! A request that ended short is sent again for its rest. The first error stops the run; the writer
//! always waits for requests in flight: a late zero could overwrite the data of another process.
//!
//! [`finish`]: ZeroWriter::finish

mod buffered;
mod threads;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, Control, Error, Phase, Result, SpaceFile};
use extant_sys::buffer::AlignedBuffer;

use buffered::BufferedWriter;
use threads::{ThreadWriter, Write};

use crate::exclusion::check_lease;
use crate::file::HostFile;
use crate::pace::{Admission, Pacer, REQUEST_MAX};
use crate::plan::{Plan, Strategy};
use crate::sys::lease::WriteLease;
use crate::sys::uring::{Completion, UringWriter};
use crate::target::RangeTarget;

/// Requests at a time; the pace allows fewer on slow disks.
const QUEUE_DEPTH: usize = 16;
/// Threads that stand in for io_uring.
const DIRECT_THREADS: usize = 4;
/// Longest time between two checks for a cancel.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Shortest time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

enum Engine<'f> {
    Uring(Box<UringWriter<'f>>),
    Threads(ThreadWriter),
}

impl<'f> Engine<'f> {
    fn direct(file: &'f HostFile) -> Result<Self> {
        match UringWriter::new(file.as_file(), zeros()?, QUEUE_DEPTH as u32) {
            Ok(engine) => Ok(Self::Uring(Box::new(engine))),
            Err(zeros) => Self::direct_threads(file, zeros),
        }
    }

    fn direct_threads(file: &'f HostFile, zeros: AlignedBuffer) -> Result<Self> {
        let zeros = Arc::new(zeros);
        Self::threads(file, DIRECT_THREADS, |file| {
            let zeros = zeros.clone();
            Box::new(move |offset, len| {
                let written = file.write_at(&zeros.as_slice()[..len as usize], offset)?;
                Ok(written as u32)
            })
        })
    }

    fn buffered(file: &'f HostFile) -> Result<Self> {
        let mut zeros = Some(zeros()?);
        Self::threads(file, 1, |file| {
            let zeros = zeros.take().expect("one thread only");
            let mut writer = BufferedWriter::new(file, zeros);
            Box::new(move |offset, len| writer.write(offset, len))
        })
    }

    fn threads(file: &HostFile, count: usize, write: impl FnMut(File) -> Write) -> Result<Self> {
        let files: io::Result<Vec<File>> = (0..count).map(|_| file.as_file().try_clone()).collect();
        files
            .and_then(|files| ThreadWriter::new(files.into_iter().map(write).collect()))
            .map(Self::Threads)
            .map_err(|source| file.error(source).during("start writers"))
    }

    fn submit(&mut self, tag: u64, offset: u64, len: u32) -> io::Result<()> {
        match self {
            Self::Uring(engine) => engine.submit(tag, offset, len),
            Self::Threads(engine) => engine.submit(tag, offset, len),
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Option<Completion>> {
        match self {
            Self::Uring(engine) => engine.wait(timeout),
            Self::Threads(engine) => Ok(engine.wait(timeout)),
        }
    }
}

fn zeros() -> Result<AlignedBuffer> {
    AlignedBuffer::resident(REQUEST_MAX as usize)
        .map_err(|source| Error::from(source).during("prepare zeros"))
}

/// One request on its way.
#[derive(Clone, Copy)]
struct Flight {
    range: ByteRange,
    started: Instant,
}

/// Writes zeros to one file.
pub(crate) struct ZeroWriter<'a> {
    file: &'a HostFile,
    engine: Engine<'a>,
    is_direct: bool,
    block_bytes: u32,
    pacer: Pacer,
    control: Control<'a>,
    lease: Option<&'a WriteLease<'a>>,
    flights: [Option<Flight>; QUEUE_DEPTH],
    in_flight_bytes: u64,
    edges: Vec<ByteRange>,
    done_bytes: u64,
    total_bytes: u64,
    written_bytes: u64,
    told: Instant,
}

impl<'a> ZeroWriter<'a> {
    /// `done_bytes` of the target's range need no writing any more, which is for progress alone.
    pub(crate) fn new(target: &RangeTarget<'a>, plan: &Plan, done_bytes: u64) -> Result<Self> {
        let file = target.file;
        // In order means through the page cache, which turns it into large extents.
        let direct = plan
            .direct_io
            .filter(|_| plan.strategy != Strategy::WriteInOrder)
            .filter(|direct| u64::from(direct.offset_bytes) <= REQUEST_MAX);
        let is_direct = direct.is_some() && file.set_direct(true).is_ok();
        let engine = if is_direct {
            Engine::direct(file)?
        } else {
            Engine::buffered(file)?
        };
        Ok(Self {
            file,
            engine,
            is_direct,
            block_bytes: direct
                .filter(|_| is_direct)
                .map_or(1, |direct| plan.block_bytes.max(direct.offset_bytes)),
            pacer: Pacer::of_file(file, target.pace)?,
            control: target.control,
            lease: target.lease,
            flights: [None; QUEUE_DEPTH],
            in_flight_bytes: 0,
            edges: Vec::new(),
            done_bytes,
            total_bytes: target.range.len(),
            written_bytes: 0,
            told: Instant::now(),
        })
    }

    /// Zeros `range`: starts it, and waits only while the pace or the queue asks for it.
    pub(crate) fn zero(&mut self, range: ByteRange) -> Result<()> {
        let blocks = if self.is_direct {
            range.shrink_to_blocks(u64::from(self.block_bytes))
        } else {
            range
        };
        if blocks.is_empty() {
            self.edges.push(range);
            return Ok(());
        }
        let (head, tail) = (
            ByteRange::new(range.start(), blocks.start()),
            ByteRange::new(blocks.end(), range.end()),
        );
        self.edges
            .extend([head, tail].into_iter().filter(|edge| !edge.is_empty()));
        let mut at = blocks.start();
        while at < blocks.end() {
            let bytes = u64::from(self.admission()?).min(blocks.end() - at);
            self.start(ByteRange::new(at, at + bytes))?;
            at += bytes;
        }
        Ok(())
    }

    /// Waits for everything, then zeros the edges. Returns the bytes written.
    /// Nothing is durable before the file is synced.
    pub(crate) fn finish(mut self) -> Result<u64> {
        while self.in_flight() > 0 {
            self.reap(CANCEL_CHECK_INTERVAL)?;
            self.check_stop()?;
        }
        self.check_stop()?;
        if self.is_direct && !self.edges.is_empty() {
            self.leave_direct()?;
        }
        for edge in std::mem::take(&mut self.edges) {
            for piece in edge.chunks(u64::from(self.block_bytes)) {
                self.check_stop()?;
                self.file
                    .write_at(&vec![0; piece.len() as usize], piece.start())?;
                self.count(piece.len());
            }
        }
        self.pacer.report(self.control.progress);
        self.control
            .report(Phase::Write, self.done_bytes, self.total_bytes);
        Ok(self.written_bytes)
    }

    /// Bytes the next request may have, once it may start.
    fn admission(&mut self) -> Result<u32> {
        loop {
            self.check_stop()?;
            let in_flight = self.in_flight();
            // What the pacer admits must be started: it is asked only when there is a slot.
            if in_flight as usize == QUEUE_DEPTH {
                self.reap(CANCEL_CHECK_INTERVAL)?;
                self.report_progress();
                continue;
            }
            let admission = self.pacer.admit(
                Instant::now(),
                in_flight,
                self.in_flight_bytes,
                self.block_bytes.max(512),
            );
            match admission {
                Admission::Now(bytes) => return Ok(bytes),
                Admission::Later(wait) if in_flight > 0 => {
                    self.reap(wait.min(CANCEL_CHECK_INTERVAL))?
                }
                Admission::Later(wait) => std::thread::sleep(wait.min(CANCEL_CHECK_INTERVAL)),
            }
            self.report_progress();
        }
    }

    /// Fails when the operation was cancelled, or when another process waits to open the file.
    fn check_stop(&self) -> Result<()> {
        self.control.cancel.check()?;
        check_lease(self.file, self.lease)
    }

    fn in_flight(&self) -> u32 {
        self.flights.iter().flatten().count() as u32
    }

    fn start(&mut self, range: ByteRange) -> Result<()> {
        let slot = self
            .flights
            .iter()
            .position(Option::is_none)
            .expect("admission leaves a slot free");
        self.flights[slot] = Some(Flight {
            range,
            started: Instant::now(),
        });
        self.in_flight_bytes += range.len();
        self.engine
            .submit(slot as u64, range.start(), range.len() as u32)
            .map_err(|source| {
                self.file
                    .error(source)
                    .during("write zeros")
                    .in_range(range)
            })?;
        // Take what has ended already; the queue stays full without a wait.
        self.reap(Duration::ZERO)
    }

    fn reap(&mut self, timeout: Duration) -> Result<()> {
        let waited = self
            .engine
            .wait(timeout)
            .map_err(|source| self.file.error(source).during("wait for writes"))?;
        let Some(completion) = waited else {
            return Ok(());
        };
        let slot = completion.tag as usize;
        let flight = self.flights[slot].take().expect("a tag in use");
        self.in_flight_bytes -= flight.range.len();
        let fail = |source: io::Error| {
            self.file
                .error(source)
                .during("write zeros")
                .in_range(flight.range)
        };
        let written = match completion.result {
            Ok(0) => {
                return Err(fail(io::Error::from_raw_os_error(libc::EIO))
                    .detail("the file system wrote nothing and gave no reason"));
            }
            Ok(written) => u64::from(written),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => 0,
            Err(error) => return Err(fail(error)),
        };
        let now = Instant::now();
        self.pacer
            .completed(now, written, now.saturating_duration_since(flight.started));
        self.count(written);
        self.report_progress();
        let rest = ByteRange::new(flight.range.start() + written, flight.range.end());
        if rest.is_empty() {
            return Ok(());
        }
        self.start(rest)
    }

    fn count(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        self.written_bytes += bytes;
    }

    fn report_progress(&mut self) {
        if self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            self.pacer.report(self.control.progress);
            self.control
                .report(Phase::Write, self.done_bytes, self.total_bytes);
        }
    }

    fn leave_direct(&mut self) -> Result<()> {
        self.is_direct = false;
        self.file
            .set_direct(false)
            .map_err(|errno| self.file.error(errno).during("leave direct I/O"))
    }
}

impl Drop for ZeroWriter<'_> {
    fn drop(&mut self) {
        // After an error or a cancel: nothing may land later. The engine's results do not matter.
        while self.in_flight() > 0 {
            match self.engine.wait(Duration::from_secs(1)) {
                Ok(Some(completion)) => self.flights[completion.tag as usize] = None,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        if self.is_direct {
            let _ = self.file.set_direct(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_space::{CancelToken, Silent};
    use extant_testkit::require;
    use extant_testkit::requires::Requirement;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::file::Access;
    use crate::filesystem::FileSystem;
    use crate::pace::Pace;

    const SIZE: u64 = 5 << 20;

    /// Zeros random ranges of a file full of ones, by one engine, and compares with a vector.
    fn check(engine: impl for<'f> Fn(&'f HostFile) -> Result<Engine<'f>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let cancel = CancelToken::new();
        let ranges = prop::collection::vec((0..SIZE, 1..SIZE / 2), 1..6);
        let mut runner = TestRunner::new(Config {
            cases: 24,
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(&ranges, |ranges| {
            std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
            let file = HostFile::open(&path, Access::ReadWrite).unwrap();
            let filesystem = FileSystem::under(&file).unwrap();
            let target = RangeTarget {
                file: &file,
                filesystem: &filesystem,
                range: ByteRange::new(0, SIZE),
                pace: &Pace::Full,
                control: Control::new(&cancel, &Silent),
                lease: None,
            };
            let plan = Plan::by_writing(&file, &filesystem, "test");
            let mut writer = ZeroWriter::new(&target, &plan, 0).unwrap();
            writer.engine = engine(&file).unwrap();
            let mut model = vec![1; SIZE as usize];
            let mut wanted = 0;
            for (at, len) in ranges {
                let range = ByteRange::new(at, SIZE.min(at + len));
                writer.zero(range).unwrap();
                model[at as usize..range.end() as usize].fill(0);
                wanted += range.len();
            }
            prop_assert_eq!(writer.finish().unwrap(), wanted);
            prop_assert!(std::fs::read(&path).unwrap() == model);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }

    #[test]
    fn edges_are_left_alone_after_a_cancel() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let file = HostFile::open(&path, Access::ReadWrite).unwrap();
        let filesystem = FileSystem::under(&file).unwrap();
        let cancel = CancelToken::new();
        let target = RangeTarget {
            file: &file,
            filesystem: &filesystem,
            range: ByteRange::new(0, 8192),
            pace: &Pace::Full,
            control: Control::new(&cancel, &Silent),
            lease: None,
        };
        let plan = Plan::by_writing(&file, &filesystem, "test");
        let mut writer = ZeroWriter::new(&target, &plan, 0).unwrap();
        writer.edges = vec![ByteRange::new(10, 20), ByteRange::new(5000, 5010)];
        cancel.cancel();
        let error = writer.finish().unwrap_err();
        assert_eq!(error.kind(), extant_space::ErrorKind::Cancelled);
        assert!(std::fs::read(&path).unwrap() == [1; 8192]);
    }

    #[test]
    fn uring_zeros_the_ranges_and_nothing_else() {
        let has_uring = io_uring::IoUring::new(1).is_ok();
        require!(Requirement::new("io_uring in the kernel", has_uring));
        check(|file| {
            let engine = Engine::direct(file)?;
            assert!(matches!(engine, Engine::Uring(_)));
            Ok(engine)
        });
    }

    #[test]
    fn threads_zero_the_ranges_and_nothing_else() {
        check(|file| Engine::direct_threads(file, zeros()?));
    }

    #[test]
    fn page_cache_zeros_the_ranges_and_nothing_else() {
        check(|file| Engine::buffered(file));
    }
}
