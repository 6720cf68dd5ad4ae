//! The threads of a copy: each takes the next chunk of the source, reads it, and writes the blocks
//! that are not zeros.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use extant_space::thread::spawn_scoped;
use extant_space::{
    ByteRange, CancelToken, Control, Error, Phase, Preallocation, RateLimiter, Result, SpaceFile,
};
use extant_sys::buffer::{AlignedBuffer, is_zero};
use parking_lot::Mutex;

use super::Conversion;
use super::stride::Stride;
use super::zeros::{data_blocks, zero_blocks};
use crate::data_bitmap::DataBitmap;
use crate::layer::Layer;

/// Copied at once by a thread: a power of two, and at least a cluster.
const PIECE_BYTES: u64 = 2 << 20;
/// Maximum interval between checks for a cancel.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(20);

/// Writes bytes at an offset of the new file; several threads do.
pub(super) type Write<'w> = &'w (dyn Fn(&[u8], u64) -> Result<()> + Sync);

/// Unit of work of a thread.
struct CopyChunk {
    guest: ByteRange,
    stride: Arc<Stride>,
}

/// A running copy.
pub(super) struct Copy<'c> {
    pub(super) conversion: &'c Conversion<'c>,
    /// The new file.
    pub(super) file: &'c dyn SpaceFile,
    pub(super) write: Write<'c>,
    pub(super) occupied: Option<&'c DataBitmap>,
}

impl Copy<'_> {
    /// Copies everything.
    pub(super) fn run(&self, control: Control<'_>) -> Result<()> {
        let conversion = self.conversion;
        let total = conversion.data_bytes();
        let pieces = Mutex::new(self.pieces());
        let stop = CancelToken::new();
        let limiter = RateLimiter::default();
        thread::scope(|scope| {
            let (sender, copied) = mpsc::channel();
            for _ in 0..conversion.options.threads.max(1) {
                let failed = sender.clone();
                let sender = sender.clone();
                let spawned = spawn_scoped(scope, "image copy", || {
                    let sender = sender;
                    let mut buffers = match Buffers::new(conversion.base) {
                        Ok(buffers) => buffers,
                        Err(error) => return drop(sender.send(Err(error))),
                    };
                    loop {
                        let next = pieces.lock().next();
                        let Some(piece) = next else { return };
                        let bytes = piece.guest.len();
                        if limiter
                            .admit(bytes, conversion.options.rate, &stop)
                            .is_err()
                        {
                            return;
                        }
                        let done = self.copy_piece(&piece, &mut buffers);
                        let is_failed = done.is_err();
                        if sender.send(done.map(|()| bytes)).is_err() || is_failed {
                            return;
                        }
                    }
                });
                if let Err(error) = spawned {
                    let _ = failed.send(Err(error));
                }
            }
            drop(sender);
            let mut done = 0;
            let result = loop {
                if let Err(cancelled) = control.cancel.check() {
                    break Err(cancelled);
                }
                match copied.recv_timeout(PROGRESS_INTERVAL) {
                    Ok(Ok(bytes)) => {
                        done += bytes;
                        control.report(Phase::Write, done, total);
                    }
                    Ok(Err(error)) => break Err(error),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
                }
            };
            stop.cancel();
            result
        })
    }

    /// All pieces, in order.
    fn pieces(&self) -> impl Iterator<Item = CopyChunk> + Send {
        let conversion = self.conversion;
        // Over a backing file most of it may be left out; allocated clusters need no new space.
        let is_allocated = conversion.base.is_none()
            && conversion.new.preallocation().space() == Preallocation::Off;
        let strides = conversion
            .data
            .iter()
            .flat_map(|range| range.chunks(Stride::BYTES));
        strides.flat_map(move |part| {
            let place = || {
                let (place, _) = conversion.new.place(part.start());
                ByteRange::new(place, place + part.len())
            };
            let stride = Arc::new(Stride::new(is_allocated.then(place)));
            part.chunks(PIECE_BYTES).map(move |guest| CopyChunk {
                guest,
                stride: Arc::clone(&stride),
            })
        })
    }

    fn copy_piece(&self, piece: &CopyChunk, buffers: &mut Buffers) -> Result<()> {
        let conversion = self.conversion;
        let guest = piece.guest;
        let bytes = &mut buffers.source.as_mut_slice()[..guest.len() as usize];
        conversion.source.read_at(bytes, guest.start())?;
        let (Some(base), Some(under)) = (conversion.base, &mut buffers.base) else {
            return self.write_data(bytes, guest.start(), &piece.stride);
        };
        let under = &mut under.as_mut_slice()[..guest.len() as usize];
        base.read_at(under, guest.start())?;
        for cluster in guest.chunks(conversion.new.cluster_bytes()) {
            let start = (cluster.start() - guest.start()) as usize;
            let inside = start..start + cluster.len() as usize;
            let data = &bytes[inside.clone()];
            if *data == under[inside] {
                continue;
            }
            self.occupy(cluster, is_zero(data));
            self.write_data(data, cluster.start(), &piece.stride)?;
        }
        Ok(())
    }

    /// Writes the blocks that are not zeros, and records their ranges.
    fn write_data(&self, bytes: &[u8], start: u64, stride: &Stride) -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (place, room) = self.conversion.new.place(start + at as u64);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let zeros = zero_blocks(rest).min(room);
            if zeros > 0 {
                stride.leave_out(self.file, ByteRange::new(place, place + zeros as u64))?;
                at += zeros;
                continue;
            }
            let length = data_blocks(rest).min(room);
            stride.allocate(self.file)?;
            (self.write)(&rest[..length], place)?;
            if let Some(occupied) = self.occupied {
                let bits = self.conversion.new.place_bits();
                let last = (place + length as u64 - 1) >> bits;
                (place >> bits..=last).for_each(|cluster| occupied.set(cluster));
            }
            at += length;
        }
        Ok(())
    }

    /// Notes that a cluster differs from the backing file.
    fn occupy(&self, cluster: ByteRange, is_zero: bool) {
        let Some(occupied) = self.occupied else {
            return;
        };
        let (place, _) = self.conversion.new.place(cluster.start());
        let place = place >> self.conversion.new.place_bits();
        if is_zero && self.conversion.new.has_zero_clusters() {
            occupied.set_zero(place)
        } else {
            // Its place is zeros already.
            occupied.set(place)
        }
    }
}

/// Memory of a thread, aligned for direct I/O.
struct Buffers {
    source: AlignedBuffer,
    /// Data of the new image's backing file.
    base: Option<AlignedBuffer>,
}

impl Buffers {
    fn new(base: Option<&Layer>) -> Result<Self> {
        let buffer = || {
            AlignedBuffer::new(PIECE_BYTES as usize)
                .map_err(|source| Error::from(source).during("prepare a buffer"))
        };
        Ok(Self {
            source: buffer()?,
            base: base.map(|_| buffer()).transpose()?,
        })
    }
}
