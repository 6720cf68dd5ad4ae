//! Long kernel requests, split so that a cancel is answered in time.
//!
//! `fallocate(2)` cannot be interrupted on most file systems. The length of its requests adapts so
//! that each takes about [`CALL_DURATION_TARGET`].

use std::time::{Duration, Instant};

use extant_space::{ByteRange, FallocateMode, MapDetail, Phase, Result, SpaceFile};

use crate::provisioner::Provisioner;

/// The wanted duration of a request, which bounds the latency of a cancel.
const CALL_DURATION_TARGET: Duration = Duration::from_millis(40);
/// Space asked for in one request: at first, and at most. Large, so that the allocator knows the
/// wanted length; an extent of ext4 ends at 128 MiB, one of XFS at 8 GiB.
const ALLOCATE_BYTES_INITIAL: u64 = 16 << 30;
const ALLOCATE_BYTES_MAX: u64 = 256 << 30;
/// In memory, allocating means zeroing pages.
const ALLOCATE_BYTES_MEMORY: u64 = 32 << 20;
/// Zeroed by the kernel in one request: at first, and at most.
const WRITE_ZEROES_BYTES_INITIAL: u64 = 64 << 20;
const WRITE_ZEROES_BYTES_MAX: u64 = 16 << 30;
/// The same where the layers below may be sent the zeros as data.
const WRITE_THROUGH_BYTES_INITIAL: u64 = 8 << 20;
/// Pieces of a range end at multiples of this, which is a multiple of any block.
const CHUNK_ALIGN_BYTES: u64 = 1 << 20;

/// Allocates the target's range in requests as large as a cancel allows.
pub(crate) fn allocate(target: &Provisioner<'_>, mode: FallocateMode) -> Result<()> {
    let range = target.range;
    let (start, most) = match target.file.map_detail()? {
        MapDetail::Pages => (ALLOCATE_BYTES_MEMORY, ALLOCATE_BYTES_MEMORY),
        _ => (ALLOCATE_BYTES_INITIAL, ALLOCATE_BYTES_MAX),
    };
    in_timed_calls(range, start, most, |piece| {
        target.check_stop()?;
        let done = piece.start() - range.start();
        target.control.report(Phase::Allocate, done, range.len());
        target.file.fallocate(mode, piece)
    })?;
    target
        .control
        .report(Phase::Allocate, range.len(), range.len());
    Ok(())
}

/// Calls `zero`, which has the file system write zeroes, on consecutive pieces of `range`.
pub(crate) fn zero(
    file: &dyn SpaceFile,
    range: ByteRange,
    zero: impl FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    let start = if file.writes_through() {
        WRITE_THROUGH_BYTES_INITIAL
    } else {
        WRITE_ZEROES_BYTES_INITIAL
    };
    in_timed_calls(range, start, WRITE_ZEROES_BYTES_MAX, zero)
}

/// Calls `call` on consecutive pieces, each of a length that takes about [`CALL_DURATION_TARGET`],
/// and cut at whole MiB, so that no block is in two.
fn in_timed_calls(
    range: ByteRange,
    start: u64,
    most: u64,
    mut call: impl FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    let (mut at, mut length) = (range.start(), start);
    while at < range.end() {
        let cut = at.saturating_add(length) & !(CHUNK_ALIGN_BYTES - 1);
        let piece = ByteRange::new(at, range.end().min(cut));
        let began = Instant::now();
        call(piece)?;
        at = piece.end();
        let took = began.elapsed();
        if took > CALL_DURATION_TARGET {
            length = (length / 2).max(CHUNK_ALIGN_BYTES);
        } else if took < CALL_DURATION_TARGET / 4 {
            length = (length * 2).min(most);
        }
    }
    Ok(())
}
