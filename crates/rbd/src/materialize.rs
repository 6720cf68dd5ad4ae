//! Makes an image thick: objects that do not exist are written with zeros, and data is preserved.
//!
//! Survey: librbd says which objects exist, and how long each is. Plan: the first piece is zeroed
//! with `rbd_aio_write_zeroes` and its THICK flag, which sends no data; if the cluster does not
//! keep it, zeros are sent as data. Write: many objects are in flight. Verify: a second survey
//! finds every object at its full length. Repeating does the rest: the survey is the record.
//!
//! How a daemon stores an object, and that it has space for it, no interface shows: a store may
//! skip or compress zeros.
//!
//! A cancel does not wait for the cluster.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use extant_space::{ByteRange, Control, Error, ErrorKind, Phase, RateLimiter, Result};
use extant_sys::buffer::AlignedBuffer;

use crate::cancellable::{self, CHECK_INTERVAL};
use crate::image::{Image, ObjectDetail};
use crate::sys::{Aio, Flights, Memory};

/// Bytes in flight.
const IN_FLIGHT_BYTES: u64 = 128 << 20;
/// Most bytes of a request.
const PIECE_BYTES_MAX: u64 = 32 << 20;
/// Bytes whose objects are asked for at once.
const SURVEY_BYTES: u64 = 16 << 30;

/// How objects are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaterializeOptions {
    /// Bytes in a second, at most.
    pub rate: Option<NonZeroU64>,
    /// Zeros are sent as data, without a trial of the other way.
    pub sends_data: bool,
    /// The part to be written; `None`: all of the image.
    pub range: Option<ByteRange>,
}

/// How zeros reached the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroMethod {
    /// By requests for zeros (THICK).
    WriteZeroes,
    /// As data.
    Data,
}

/// Result of the second survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedObjects {
    /// Every object exists and has its full length. What a daemon stores for it is not shown.
    FullLength,
}

/// Result of [`materialize`].
#[derive(Clone, Debug, PartialEq)]
pub struct MaterializeReport {
    /// Bytes of the image, or of its part.
    pub size_bytes: u64,
    /// Bytes that were in objects before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written.
    pub zeroed_bytes: u64,
    /// How; `None` if nothing was missing.
    pub method: Option<ZeroMethod>,
    /// How the result was verified.
    pub verified: VerifiedObjects,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Writes zeros to all of an image that is in no object yet; durable and verified on return. The
/// image is [open for changes](crate::RbdAccess::ReadWrite).
///
/// # Errors
/// `Unsupported` for an image with a parent, which a write would hide; `NotKept` if the cluster
/// acknowledges zeros and keeps none; `Cancelled`, at most 100 ms after the cancel; `NoSpace`, and
/// others of the cluster. Data is as before then, and repeating does the rest.
pub fn materialize(
    image: &Arc<Image>,
    options: MaterializeOptions,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    let started = Instant::now();
    let target = Target::new(image, options, control)?;
    if image.overlap()? > 0 {
        return Err(Error::new(ErrorKind::Unsupported)
            .at(image.place())
            .detail("the image is a clone, and shows its parent where it has no objects")
            .advice("flatten it first (rbd flatten)"));
    }
    let missing = target.survey(Phase::Scan)?;
    let mut zeroed_bytes = total(&missing);
    let already_written_bytes = target.range.len() - zeroed_bytes;
    let mut method = None;
    if !missing.is_empty() {
        let chosen = target.choose(&missing)?;
        target.write(&missing, chosen, already_written_bytes)?;
        target.flush()?;
        method = Some(chosen);
    }
    let mut rest = target.survey(Phase::Verify)?;
    if method == Some(ZeroMethod::WriteZeroes) && !rest.is_empty() {
        zeroed_bytes += total(&rest);
        target.write(&rest, ZeroMethod::Data, target.range.len() - total(&rest))?;
        target.flush()?;
        rest = target.survey(Phase::Verify)?;
    }
    if let Some(first) = rest.first() {
        return Err(Error::new(ErrorKind::NotKept)
            .at(image.place())
            .in_range(*first)
            .detail(format!(
                "the cluster has acknowledged zeros, and {} bytes are in no object",
                total(&rest)
            )));
    }
    Ok(MaterializeReport {
        size_bytes: target.range.len(),
        already_written_bytes,
        zeroed_bytes,
        method,
        verified: VerifiedObjects::FullLength,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

/// Overwrites a range with zeros, which are sent as data; durable on return. The image is
/// [open for changes](crate::RbdAccess::ReadWrite). What a daemon keeps of the old content, no
/// interface shows.
///
/// # Errors
/// `Cancelled`; those of the cluster.
pub fn overwrite(
    image: &Arc<Image>,
    options: MaterializeOptions,
    control: Control<'_>,
) -> Result<()> {
    let target = Target::new(image, options, control)?;
    target.write(&[target.range], ZeroMethod::Data, 0)?;
    target.flush()
}

fn total(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

/// An image on its way.
struct Target<'a> {
    image: &'a Arc<Image>,
    options: MaterializeOptions,
    control: Control<'a>,
    range: ByteRange,
}

impl<'a> Target<'a> {
    fn new(
        image: &'a Arc<Image>,
        options: MaterializeOptions,
        control: Control<'a>,
    ) -> Result<Self> {
        let whole = ByteRange::new(0, image.size()?);
        let range = match options.range {
            None => whole,
            Some(range) => range.intersection(whole).unwrap_or(ByteRange::new(0, 0)),
        };
        Ok(Self {
            image,
            options,
            control,
            range,
        })
    }

    /// The parts that are in no object.
    fn survey(&self, phase: Phase) -> Result<Vec<ByteRange>> {
        let mut missing = Vec::new();
        let size = self.range.len();
        for window in self.range.chunks(self.whole_stripes(SURVEY_BYTES)) {
            let done = window.start() - self.range.start();
            self.control.report(phase, done, size);
            missing.extend(self.missing_in(window)?);
        }
        self.control.report(phase, size, size);
        Ok(missing)
    }

    fn missing_in(&self, window: ByteRange) -> Result<Vec<ByteRange>> {
        let found = cancellable::call(self.image, self.control.cancel, move |image| {
            image.data_in(window, ObjectDetail::Bytes)
        })?;
        let mut missing = Vec::new();
        let mut at = window.start();
        for data in found {
            if data.start() > at {
                missing.push(ByteRange::new(at, data.start()));
            }
            at = at.max(data.end());
        }
        if at < window.end() {
            missing.push(ByteRange::new(at, window.end()));
        }
        Ok(missing)
    }

    /// Tries zeros without data on the first piece.
    fn choose(&self, missing: &[ByteRange]) -> Result<ZeroMethod> {
        if self.options.sends_data {
            return Ok(ZeroMethod::Data);
        }
        let piece_bytes = self.piece_bytes();
        let trial = missing
            .iter()
            .find_map(|range| range.chunks(piece_bytes).next());
        let trial = trial.expect("something is missing");
        self.write(
            &[trial],
            ZeroMethod::WriteZeroes,
            self.range.len() - total(missing),
        )?;
        self.flush()?;
        Ok(match self.missing_in(trial)?[..] {
            [] => ZeroMethod::WriteZeroes,
            _ => ZeroMethod::Data,
        })
    }

    /// Writes zeros to `ranges`, many pieces at a time; `done_bytes` are done before.
    fn write(&self, ranges: &[ByteRange], method: ZeroMethod, done_bytes: u64) -> Result<()> {
        let piece_bytes = self.piece_bytes();
        let depth = (IN_FLIGHT_BYTES / piece_bytes).clamp(4, 64) as usize;
        let zeros = match method {
            ZeroMethod::WriteZeroes => None,
            ZeroMethod::Data => {
                let bytes = piece_bytes.next_power_of_two().max(4096);
                Some(Arc::new(AlignedBuffer::new(bytes as usize)?))
            }
        };
        let flights = Flights::new();
        let limiter = RateLimiter::default();
        let mut pieces = ranges.iter().flat_map(|range| range.chunks(piece_bytes));
        let mut lengths = vec![0; depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut done_bytes = done_bytes;
        let mut step = || {
            while let Some(&tag) = free.last() {
                let Some(range) = pieces.next() else { break };
                limiter.admit(range.len(), self.options.rate, self.control.cancel)?;
                free.pop();
                lengths[tag] = range.len();
                let (aio, memory) = match &zeros {
                    None => (Aio::Zeroes { range, thick: true }, Memory::None),
                    Some(zeros) => (
                        Aio::Write {
                            offset: range.start(),
                        },
                        Memory::Shared(Arc::clone(zeros), range.len() as usize),
                    ),
                };
                flights.start(self.image.handle(), tag, aio, memory);
            }
            self.control.cancel.check()?;
            flights.wait(CHECK_INTERVAL);
            for ended in flights.take() {
                let written = ended.result;
                written.map_err(|error| self.image.explain(error.during("write zeroes")))?;
                done_bytes += lengths[ended.tag];
                free.push(ended.tag);
                self.control
                    .report(Phase::Write, done_bytes, self.range.len());
            }
            Ok(free.len() < depth)
        };
        let result = loop {
            match step() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        cancellable::leave(self.image, flights);
        result
    }

    fn flush(&self) -> Result<()> {
        let size = self.range.len();
        self.control.report(Phase::Sync, size, size);
        self.image.flush(self.control.cancel)
    }

    /// Bytes of one request: a stripe, so that requests share no object.
    fn piece_bytes(&self) -> u64 {
        self.whole_stripes(self.image.stripe_bytes())
            .min(PIECE_BYTES_MAX)
    }

    /// At most `bytes`, in whole stripes.
    fn whole_stripes(&self, bytes: u64) -> u64 {
        let stripe = self.image.stripe_bytes();
        (bytes / stripe).max(1) * stripe
    }
}
