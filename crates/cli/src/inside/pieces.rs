//! Long operations in pieces: so large that they cost nothing, so small that a cancel is answered and a rate is held.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, Control, FallocateMode, Phase, Result, SpaceFile, SyncMode};

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
    rate: Option<NonZeroU64>,
    control: Control<'a>,
    started: Instant,
    /// Zeroed so far.
    zeroed: u64,
    /// For progress: what was done before, and all.
    done_before: u64,
    total: u64,
}

impl<'a> Pieces<'a> {
    /// Work that zeroes at most `rate` bytes a second.
    pub fn new(file: &'a dyn SpaceFile, rate: Option<NonZeroU64>, control: Control<'a>) -> Self {
        Self {
            file,
            rate,
            control,
            started: Instant::now(),
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

    /// Of `total` bytes, `missing` will be zeroed.
    pub fn expect(&mut self, missing: u64, total: u64) {
        self.started = Instant::now();
        self.done_before = total - missing;
        self.total = total;
    }

    /// Zeroes `range` and leaves it written; the file grows to its end.
    pub fn write_zeroes(&mut self, range: ByteRange) -> Result<()> {
        let (first, largest) = match self.rate {
            None => (FIRST, LARGEST),
            // Ten pieces a second, as far as pieces can be so small.
            Some(rate) => {
                let piece = (rate.get() / 10 / LEAST * LEAST).max(LEAST);
                (piece, piece)
            }
        };
        in_pieces(range, first, largest, &mut |piece| {
            self.control.cancel.check()?;
            self.file.fallocate(FallocateMode::WriteZeroes, piece)?;
            self.zeroed += piece.len();
            let done = self.done_before + self.zeroed;
            self.control
                .report(Phase::Write, done, self.total.max(done));
            self.hold_rate()
        })
    }

    /// Makes it durable.
    pub fn sync(&self) -> Result<()> {
        self.control.report(Phase::Sync, self.total, self.total);
        self.file.sync(SyncMode::All)
    }

    /// Waits until as much time has passed as what was zeroed may take.
    fn hold_rate(&self) -> Result<()> {
        let Some(rate) = self.rate else { return Ok(()) };
        let due = Duration::from_secs_f64(self.zeroed as f64 / rate.get() as f64);
        while let Some(left) = due.checked_sub(self.started.elapsed()) {
            self.control.cancel.check()?;
            thread::sleep(left.min(AIM));
        }
        Ok(())
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
