//! Copies an image into a new one, of another format, shape or preallocation.
//!
//! Model: the map of the source says where data is. The new image is laid out for that, its space is made in one piece, and several
//! threads copy; then come the tables, then zeros where the preallocation wants them. Holes and zeros are never read, and
//! pieces that turn out to be zeros are not written: they are zeros in the new image already. A thin one has no clusters for them.
//!
//! The new image has its name when it is complete; until then nothing is there.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use extant_hostfs::{CreateReport, FillOrder, Filling, HostFile};
use extant_space::{ByteRange, ByteSize, Control, Error, ErrorKind, Phase, Result, SpaceFile};

use crate::layer::Layer;
use crate::new_image::NewImage;
use crate::occupied::Occupied;
use crate::options::{Format, ImageOptions};

/// Copied at once by a thread.
const PIECE_BYTES: u64 = 2 << 20;
/// What is looked at for zeros, and left out.
const ZERO_BYTES: usize = 64 << 10;
/// A cancel is looked for at least this often.
const LOOK: Duration = Duration::from_millis(20);

/// How a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// Threads that copy, at least one.
    pub threads: usize,
    /// Bytes of data copied in a second, at most.
    pub rate: Option<NonZeroU64>,
}

impl Default for CopyOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: (processors * 2).min(8),
            rate: None,
        }
    }
}

/// A new image with the contents of another.
pub struct Conversion<'a> {
    source: &'a Layer,
    new: NewImage,
    data: Vec<ByteRange>,
    options: CopyOptions,
}

impl<'a> Conversion<'a> {
    /// Lays out the image that `image` asks for, with the data of `source`.
    ///
    /// # Errors
    /// `InvalidArgument` when the disk would be smaller than the source, `Unsupported` for a new image with a backing or a data file; those of
    /// [`NewImage::new`] and of the map of the source.
    pub fn new(source: &'a Layer, image: &ImageOptions, options: CopyOptions) -> Result<Self> {
        if image.virtual_bytes < source.virtual_bytes() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "the new disk of {} is smaller than the {} that it is to hold",
                ByteSize(image.virtual_bytes),
                ByteSize(source.virtual_bytes())
            )));
        }
        let unsupported = |what: &str| {
            let detail = format!("a copy with a {what} of its own is not supported");
            Err(Error::new(ErrorKind::Unsupported).detail(detail))
        };
        if image.format == Format::Qcow2 && image.qcow2.backing.is_some() {
            return unsupported("backing file");
        }
        if image.format == Format::Qcow2 && image.qcow2.data_file.is_some() {
            return unsupported("data file");
        }
        source.check_complete()?;
        let mut data: Vec<ByteRange> = Vec::new();
        let all = ByteRange::new(0, source.virtual_bytes());
        source.for_each_extent(all, &mut |extent| {
            match data.last_mut() {
                _ if extent.is_zero => {}
                Some(last) if last.end() == extent.guest.start() => {
                    *last = ByteRange::new(last.start(), extent.guest.end());
                }
                _ => data.push(extent.guest),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Self {
            source,
            new: NewImage::holding(image, &data)?,
            data,
            options,
        })
    }

    /// The image that is made.
    pub fn image(&self) -> &NewImage {
        &self.new
    }

    /// Bytes of the source that are copied.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.len()).sum()
    }

    /// Fills `file`, which has the size of the new image and is all zeros. Nothing is synced.
    ///
    /// # Errors
    /// Those of reading and writing, and `Cancelled`. The file is worth nothing then.
    pub fn fill(&self, file: &dyn SpaceFile, control: Control<'_>) -> Result<()> {
        let occupied = self.new.occupied();
        self.copy(file, occupied.as_ref(), control)?;
        self.new.write_occupied(file, occupied.as_ref(), control)
    }

    fn copy(
        &self,
        file: &dyn SpaceFile,
        occupied: Option<&Occupied>,
        control: Control<'_>,
    ) -> Result<()> {
        let total = self.data_bytes();
        let pieces = Mutex::new(self.data.iter().flat_map(|range| range.chunks(PIECE_BYTES)));
        let is_over = AtomicBool::new(false);
        let started = Instant::now();
        thread::scope(|scope| {
            let (sender, copied) = mpsc::channel();
            for _ in 0..self.options.threads.max(1) {
                let sender = sender.clone();
                scope.spawn(|| {
                    let sender = sender;
                    let mut buffer = vec![0; PIECE_BYTES as usize];
                    while !is_over.load(Ordering::Relaxed) {
                        let next = pieces
                            .lock()
                            .unwrap_or_else(|error| error.into_inner())
                            .next();
                        let Some(piece) = next else { return };
                        let buffer = &mut buffer[..piece.len() as usize];
                        let done = self.copy_piece(file, occupied, piece, buffer);
                        let is_failed = done.is_err();
                        if sender.send(done.map(|()| piece.len())).is_err() || is_failed {
                            return;
                        }
                        if self.options.rate.is_some() {
                            self.hold_rate(started, &is_over, piece.len());
                        }
                    }
                });
            }
            drop(sender);
            let mut done = 0;
            let result = loop {
                if let Err(cancelled) = control.cancel.check() {
                    break Err(cancelled);
                }
                match copied.recv_timeout(LOOK) {
                    Ok(Ok(bytes)) => {
                        done += bytes;
                        control.report(Phase::Write, done, total);
                    }
                    Ok(Err(error)) => break Err(error),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
                }
            };
            is_over.store(true, Ordering::Relaxed);
            result
        })
    }

    fn copy_piece(
        &self,
        file: &dyn SpaceFile,
        occupied: Option<&Occupied>,
        piece: ByteRange,
        buffer: &mut [u8],
    ) -> Result<()> {
        self.source.read_at(buffer, piece.start())?;
        let mut at = 0;
        while at < buffer.len() {
            let rest = &buffer[at..];
            let zeros = zero_blocks(rest);
            if zeros > 0 {
                at += zeros;
                continue;
            }
            let (place, room) = self.new.place(piece.start() + at as u64);
            let length = data_blocks(rest).min(usize::try_from(room).unwrap_or(usize::MAX));
            file.write_at(&rest[..length], place)?;
            if let Some(occupied) = occupied {
                let bits = self.new.place_bits();
                let last = (place + length as u64 - 1) >> bits;
                (place >> bits..=last).for_each(|cluster| occupied.set(cluster));
            }
            at += length;
        }
        Ok(())
    }

    /// Each thread keeps its share of the rate.
    fn hold_rate(&self, started: Instant, is_over: &AtomicBool, bytes: u64) {
        let Some(rate) = self.options.rate else {
            return;
        };
        let share = rate.get() as f64 / self.options.threads.max(1) as f64;
        let until = Instant::now().max(started) + Duration::from_secs_f64(bytes as f64 / share);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(left.min(LOOK));
        }
    }
}

/// Bytes of whole blocks of zeros at the start.
fn zero_blocks(bytes: &[u8]) -> usize {
    let blocks = bytes.chunks(ZERO_BYTES).take_while(|block| is_zero(block));
    blocks.map(<[u8]>::len).sum()
}

/// Bytes up to the next block of zeros.
fn data_blocks(bytes: &[u8]) -> usize {
    let blocks = bytes.chunks(ZERO_BYTES).take_while(|block| !is_zero(block));
    blocks.map(<[u8]>::len).sum()
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

/// Copies `source` into a new image of the host at `path`.
///
/// Of `file`, the size and everything about preallocation are the image's to say.
///
/// # Errors
/// Those of [`Conversion::new`], [`Conversion::fill`] and [`extant_hostfs::create`]; nothing is left then.
pub fn convert(
    source: &Layer,
    path: &Path,
    image: &ImageOptions,
    file: &extant_hostfs::CreateOptions,
    options: CopyOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    let conversion = Conversion::new(source, image, options)?;
    let mut file = file.clone();
    file.size_bytes = conversion.image().file_bytes();
    file.allocation_bytes = None;
    file.preallocation = conversion.image().preallocation().space();
    let fill = |file: &HostFile, control: Control<'_>| conversion.fill(file, control);
    let filling = Filling {
        order: FillOrder::BeforeZeros,
        fill: &fill,
    };
    extant_hostfs::create_filled(path, &file, &filling, control)
}
