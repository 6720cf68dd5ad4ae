//! Reads and writes that arrive while others are in flight.
//!
//! A request whose bytes are contiguous in the file is a transfer of the stream of the file's
//! device. Other requests (a cluster to be built, bytes of a backing file) run as a batch of their
//! own while the stream waits. If there are many of them the stream ends, and for some time none is
//! begun, because batches process such requests together.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_blockdev::{Device, Transfer, TransferKind, TransferStream};
use extant_space::{ByteRange, Result};

use super::Qcow2;
use super::mapped::{Source, WriteTarget};
use super::metadata::Epoch;

/// Recent share of requests that did not fit a stream.
#[derive(Default)]
pub(super) struct Asides(AtomicU32);

impl Asides {
    /// The weight of such a request in transfers of a stream, or in batches without one.
    const WEIGHT: u32 = 16;
    const TOO_MANY: u32 = 128;
    const RUNS_MIN: u32 = 64;

    fn are_too_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::TOO_MANY
    }

    fn are_few(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= Self::RUNS_MIN
    }

    // If two threads do so at the same time, either value is good enough.
    fn add(&self) {
        let now = self.0.load(Ordering::Relaxed) + Self::WEIGHT;
        self.0.store(now.min(Self::TOO_MANY), Ordering::Relaxed);
    }

    fn fade(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now > 0 {
            self.0.store(now - 1, Ordering::Relaxed);
        }
    }
}

/// Requirement of a request on the file.
enum Need {
    /// These bytes of it, as long as the epoch is held.
    Bytes(u64, Epoch),
    /// Nothing: they are zeros.
    Nothing,
    /// More than that.
    Aside,
}

/// The guest's stream, over the stream of the data's device.
struct Mapped<'s> {
    image: &'s Qcow2,
    guest: &'s mut dyn TransferStream,
    /// By tag.
    flights: Vec<Option<Flight>>,
}

/// State of a transfer in flight.
struct Flight {
    guest_offset: u64,
    _epoch: Epoch,
}

impl Qcow2 {
    pub(super) fn stream(&self, guest: &mut dyn TransferStream) -> bool {
        if !self.asides.are_few() {
            self.asides.fade();
            return false;
        }
        let mut mapped = Mapped {
            image: self,
            guest,
            flights: Vec::new(),
        };
        self.data_device().run_stream(&mut mapped)
    }

    fn need(&self, kind: TransferKind, range: ByteRange) -> Result<Need> {
        if kind == TransferKind::Write {
            self.make_room()?;
        }
        let mut metadata = self.metadata();
        let epoch = metadata.epoch.clone();
        let (offset, length) = match kind {
            TransferKind::Read => match self.find(&mut metadata, range)? {
                (Source::Zero | Source::AllocatedZero(_), length) if length == range.len() => {
                    return Ok(Need::Nothing);
                }
                (Source::Host(offset) | Source::Shared(offset), length)
                    if !self.ends_before(offset + length) =>
                {
                    (offset, length)
                }
                _ => return Ok(Need::Aside),
            },
            TransferKind::Write => match self.find_target(&mut metadata, range)? {
                (WriteTarget::Host(offset), length) => (offset, length),
                (WriteTarget::Rewrite, _) => return Ok(Need::Aside),
            },
        };
        Ok(if length == range.len() {
            Need::Bytes(offset, epoch)
        } else {
            Need::Aside
        })
    }

    /// Runs the part that needs no request in flight. Returns the file offset of the rest.
    fn route(&self, transfer: &mut Transfer) -> Result<Option<(u64, Epoch)>> {
        transfer.admit(&self.disk_geometry)?;
        if transfer.length == 0 {
            return Ok(None);
        }
        let range = transfer.range();
        let need = self.need(transfer.kind, range);
        match need.map_err(|error| error.in_range_above(range))? {
            Need::Bytes(offset, epoch) => {
                self.asides.fade();
                Ok(Some((offset, epoch)))
            }
            Need::Nothing => {
                transfer.fill_zero();
                Ok(None)
            }
            Need::Aside => {
                self.asides.add();
                transfer.run_as_batch(|operation| self.run(operation))?;
                Ok(None)
            }
        }
    }
}

impl TransferStream for Mapped<'_> {
    fn next(&mut self) -> Option<Transfer> {
        while !self.image.asides.are_too_many() {
            let mut transfer = self.guest.next()?;
            match self.image.route(&mut transfer) {
                Ok(Some((offset, epoch))) => {
                    if transfer.tag >= self.flights.len() {
                        self.flights.resize_with(transfer.tag + 1, || None);
                    }
                    self.flights[transfer.tag] = Some(Flight {
                        guest_offset: transfer.offset,
                        _epoch: epoch,
                    });
                    transfer.offset = offset;
                    return Some(transfer);
                }
                result => self.guest.ended(transfer, result.map(drop)),
            }
        }
        None
    }

    fn ended(&mut self, mut transfer: Transfer, result: Result<()>) {
        let flight = self.flights[transfer.tag].take().expect("it was handed on");
        transfer.offset = flight.guest_offset;
        let result = result.map_err(|error| error.in_range_above(transfer.range()));
        self.guest.ended(transfer, result);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        if self.image.asides.are_too_many() {
            None
        } else {
            self.guest.input()
        }
    }
}
