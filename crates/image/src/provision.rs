//! Space of a file inside an image, made in pieces: so large that they cost nothing, so small that
//! a cancel is answered and a rate is held.
//!
//! The engine does what the kernel does for host files, so there is one way to every result and no
//! plan to choose: space is allocated as a whole, then zeroed by `WRITE_ZEROES`. A file with a
//! block map (ext2, ext3) has neither: its space comes with the zeros that are written from start
//! to end.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{
    ByteRange, Control, Error, ErrorKind, ExtentFlags, ExtentState, FallocateMode, Phase, Result,
    SpaceFile, SyncMode,
};

/// What a piece is to take.
const AIM: Duration = Duration::from_millis(40);
/// A multiple of any block.
const LEAST: u64 = 1 << 20;
const FIRST: u64 = 16 << 20;
/// On devices that take no time at all.
const LARGEST: u64 = 64 << 30;
/// Allocations are as large as can be, so that the allocator sees the full size.
const ALLOCATE_FIRST: u64 = 16 << 30;

/// Work on one file.
pub struct Pieces<'a> {
    file: &'a dyn SpaceFile,
    rate: &'a dyn Fn() -> Option<NonZeroU64>,
    control: Control<'a>,
    /// When the next piece may be zeroed.
    due: Instant,
    /// Zeroed so far.
    zeroed: u64,
    /// For progress: what was done before, and all.
    done_before: u64,
    total: u64,
}

impl<'a> Pieces<'a> {
    /// Work that zeroes at most `rate` bytes per second; the rate may change.
    pub fn new(
        file: &'a dyn SpaceFile,
        rate: &'a dyn Fn() -> Option<NonZeroU64>,
        control: Control<'a>,
    ) -> Self {
        Self {
            file,
            rate,
            control,
            due: Instant::now(),
            zeroed: 0,
            done_before: 0,
            total: 0,
        }
    }

    /// Allocates the holes of `range` and leaves the size as it is.
    pub fn allocate(&self, range: ByteRange) -> Result<()> {
        let largest = ALLOCATE_FIRST.max(LARGEST);
        in_pieces(range, ALLOCATE_FIRST, largest, &mut |piece| {
            self.control.cancel.check()?;
            self.file
                .fallocate(FallocateMode::AllocateKeepSize, piece)?;
            let done = piece.end() - range.start();
            self.control.report(Phase::Allocate, done, range.len());
            Ok(())
        })
    }

    /// The same for what is zeroed right after: a file that cannot have space without data gets it
    /// then.
    pub fn allocate_for_zeroes(&self, range: ByteRange) -> Result<()> {
        match self.allocate(range) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            allocated => allocated,
        }
    }

    /// Of `total` bytes, `missing` will be zeroed.
    pub fn expect(&mut self, missing: u64, total: u64) {
        self.due = Instant::now();
        self.done_before = total - missing;
        self.total = total;
    }

    /// Zeroes `range` and leaves it written; the file grows to its end.
    pub fn write_zeroes(&mut self, range: ByteRange) -> Result<()> {
        let (first, largest) = match (self.rate)() {
            None => (FIRST, LARGEST),
            // Ten chunks per second, if chunks can be that small.
            Some(rate) => {
                let piece = (rate.get() / 10 / LEAST * LEAST).max(LEAST);
                (piece, piece)
            }
        };
        in_pieces(range, first, largest, &mut |piece| {
            self.control.cancel.check()?;
            match self.file.fallocate(FallocateMode::WriteZeroes, piece) {
                Err(error) if error.kind() == ErrorKind::Unsupported => self.write(piece)?,
                zeroed => zeroed?,
            }
            self.zeroed += piece.len();
            let done = self.done_before + self.zeroed;
            self.control
                .report(Phase::Write, done, self.total.max(done));
            self.hold_rate(piece.len())
        })
    }

    /// Holes and unwritten parts of `range`, which is inside the file, become written; data stays.
    /// Durable and verified on return.
    pub fn make_written(&mut self, range: ByteRange) -> Result<()> {
        let found = Missing::of(self.file, range)?;
        if found.written_bytes == range.len() {
            return self.sync();
        }
        if found.hole_bytes > 0 {
            self.allocate_for_zeroes(range)?;
        }
        self.expect(range.len() - found.written_bytes, range.len());
        for extent in self.file.extents(range)? {
            if let (false, Some(part)) = (
                extent.state == ExtentState::Written,
                extent.logical.intersection(range),
            ) {
                self.write_zeroes(part)?;
            }
        }
        self.sync()?;
        verify_state(self.file, range, ExtentState::Written)
    }

    /// Writes zeros from start to end.
    fn write(&self, range: ByteRange) -> Result<()> {
        let zeros = vec![0; LEAST.min(range.len()) as usize];
        let mut at = range.start();
        while at < range.end() {
            self.control.cancel.check()?;
            let length = (range.end() - at).min(LEAST);
            self.file.write_at(&zeros[..length as usize], at)?;
            at += length;
        }
        Ok(())
    }

    /// Makes it durable.
    pub fn sync(&self) -> Result<()> {
        self.control.report(Phase::Sync, self.total, self.total);
        self.file.sync(SyncMode::All)
    }

    /// Waits until as much time has passed as what was zeroed may take. Time that was lost is not
    /// made up for.
    fn hold_rate(&mut self, zeroed: u64) -> Result<()> {
        let Some(rate) = (self.rate)() else {
            return Ok(());
        };
        let took = Duration::from_secs_f64(zeroed as f64 / rate.get() as f64);
        self.due = (self.due + took).max(Instant::now());
        while let Some(left) = self.due.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.control.cancel.check()?;
            thread::sleep(left.min(AIM));
        }
        Ok(())
    }
}

/// Allocated and missing parts of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Bytes that are written.
    pub written_bytes: u64,
    /// Bytes without space.
    pub hole_bytes: u64,
    /// Bytes whose space other files have as well.
    pub shared_bytes: u64,
}

impl Missing {
    /// Reads the map of `range`, which is inside the file.
    pub fn of(file: &dyn SpaceFile, range: ByteRange) -> Result<Self> {
        let mut found = Self::default();
        for extent in file.extents(range)? {
            if extent.flags.contains(ExtentFlags::SHARED) {
                found.shared_bytes += extent.logical.len();
            }
            match extent.state {
                ExtentState::Written => found.written_bytes += extent.logical.len(),
                ExtentState::Hole => found.hole_bytes += extent.logical.len(),
                ExtentState::Unwritten => {}
            }
        }
        Ok(found)
    }
}

/// Fails unless every byte of `range` is in `state` or a better one.
pub fn verify_state(file: &dyn SpaceFile, range: ByteRange, state: ExtentState) -> Result<()> {
    let mut at = range.start();
    for extent in file.extents(range)? {
        if extent.state < state {
            return Err(Error::new(ErrorKind::NotKept)
                .in_range(extent.logical)
                .detail(format!(
                    "the extent map shows {} instead of {state}",
                    extent.state
                )));
        }
        at = extent.logical.end();
    }
    if at >= range.end() {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::NotKept)
            .in_range(ByteRange::new(at, range.end()))
            .detail(format!("the extent map shows a hole instead of {state}")))
    }
}

/// Pieces that end at multiples of their size, but for the last.
fn in_pieces(
    range: ByteRange,
    first: u64,
    largest: u64,
    work: &mut dyn FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    let mut size = first;
    let mut at = range.start();
    while at < range.end() {
        let end = (at / size + 1).saturating_mul(size).min(range.end());
        let started = Instant::now();
        work(ByteRange::new(at, end))?;
        let took = started.elapsed();
        at = end;
        if took > AIM * 2 {
            size = (size / 2).max(LEAST);
        } else if took < AIM / 2 {
            size = (size * 2).min(largest);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_once_and_in_order() {
        let range = ByteRange::new(12_345, (1 << 40) + 77);
        let mut at = range.start();
        let mut count = 0;
        in_pieces(range, FIRST, LARGEST, &mut |piece| {
            assert_eq!(piece.start(), at);
            assert!(!piece.is_empty() && piece.len() <= LARGEST);
            at = piece.end();
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(at, range.end());
        assert!(count > 2);
    }
}
