//! The trait of devices.

use std::fs::File;
use std::ops::ControlFlow;

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, LayerRange, LayerVisitor, Result,
};

use crate::{Geometry, Operation, Persistence, Request, TransferStream, Zeroing};

/// The contents of a range of a device, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeStatus {
    /// No space behind it; reads as zeros.
    Hole,
    /// Space is behind it; reads as zeros.
    Zero,
    /// Any contents; the answer of a device without this information.
    Data,
}

/// Result of an assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// The range has its place.
    Done,
    /// The device does not assign; nothing happened.
    Refused,
}

/// A block device.
///
/// All methods take `&self` and may be called from several threads at a time. Requests of one
/// batch, and those of several threads, run concurrently and in any order. A caller that needs an
/// order waits for the first request to return. If concurrent writes overlap, each byte is that of
/// one of them.
pub trait Device: Send + Sync {
    /// Current properties of the device. Only the size may change while it is open.
    fn geometry(&self) -> Geometry;

    /// Follows a size change of the underlying file or device; returns the size of the device. A
    /// device of fixed size has nothing to check.
    fn refresh(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    /// Makes the device `size` bytes long, a multiple of its logical block; the new part reads as
    /// zeros. One that has this size already, or more, is not changed.
    ///
    /// # Errors
    /// `Unsupported` for a device of fixed size; those of the storage, after which the device has
    /// its old size.
    fn grow(&self, size: u64) -> Result<()> {
        if size <= self.geometry().size {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported).detail("the device has a fixed size"))
    }

    /// Runs a batch, and returns when every request of it has its result, which is in the request.
    /// The range of an error is one of this device, wherever below it something failed.
    fn submit(&self, requests: &mut [Request<'_>]);

    /// Runs the transfers of `stream` until none is in flight and there is no next one. Returns
    /// whether it can, now: a device without that support accepts no stream.
    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        let _ = stream;
        false
    }

    /// Alignment in bytes, of addresses and of lengths, at which transfers of a stream may name
    /// memory that is [shared](crate::TransferMemory::Shared). `None`: they may not.
    fn shared_memory_alignment(&self) -> Option<usize> {
        None
    }

    /// Visits the status of `range`, in order and without gaps, until `visit` breaks. A device
    /// without this information reports [`RangeStatus::Data`].
    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Visits the extents below `range`, in order and without gaps, until `visit` breaks;
    /// neighbours may be alike. Unwritten and written space are distinguished if the device has
    /// [`Features::EXTENTS`](crate::Features::EXTENTS), and flags are given if the layer below has
    /// some. Physical offsets are not reported.
    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.status(range, &mut |logical, status| {
            visit(Extent {
                logical,
                physical: None,
                state: match status {
                    RangeStatus::Hole => ExtentState::Hole,
                    RangeStatus::Zero => ExtentState::Unwritten,
                    RangeStatus::Data => ExtentState::Written,
                },
                flags: ExtentFlags::empty(),
            })
        })
    }

    /// Visits the extents of this device's own map that store `at`, and those of the layers below
    /// it, until `visit` breaks. Each range is followed to the lowest layer before the next one.
    /// Layers without a map are not visited.
    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let _ = (at, visit);
        Ok(ControlFlow::Continue(()))
    }

    /// Opens, for reading, the file or disk of the host whose bytes are those of this device at the
    /// same offsets. `None` for a device that has no such file.
    fn open_store(&self) -> Result<Option<File>> {
        Ok(None)
    }

    /// Runs one operation.
    fn run(&self, operation: Operation<'_>) -> Result<()> {
        let mut requests = [Request::new(operation)];
        self.submit(&mut requests);
        let [request] = requests;
        request.into_result()
    }

    /// Fills `into` from `offset`.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let mut requests = [Request::read(offset, into)];
        self.submit(&mut requests);
        let [request] = requests;
        request.into_result()
    }

    /// Writes `from` at `offset`.
    fn write_at(&self, from: &[u8], offset: u64, persistence: Persistence) -> Result<()> {
        let mut requests = [Request::write(offset, from, persistence)];
        self.submit(&mut requests);
        let [request] = requests;
        request.into_result()
    }

    /// Makes every write durable that has completed.
    fn flush(&self) -> Result<()> {
        self.run(Operation::Flush)
    }

    /// Says that the contents are no longer needed.
    fn discard(&self, range: ByteRange) -> Result<()> {
        self.run(Operation::Discard(range))
    }

    /// Makes the range read as zeros.
    fn write_zeroes(&self, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        self.run(Operation::WriteZeroes(range, zeroing))
    }

    /// Gives the range its place. An error is one of the storage (no space left, I/O), which a
    /// caller who only gave a hint may pass over.
    fn assign(&self, range: ByteRange) -> Result<Assigned> {
        match self.run(Operation::Assign(range)) {
            Ok(()) => Ok(Assigned::Done),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Assigned::Refused),
            Err(error) => Err(error),
        }
    }
}

impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }

    fn refresh(&self) -> Result<u64> {
        (**self).refresh()
    }

    fn grow(&self, size: u64) -> Result<()> {
        (**self).grow(size)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        (**self).submit(requests);
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        (**self).run_stream(stream)
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        (**self).shared_memory_alignment()
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        (**self).status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        (**self).extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        (**self).visit_layers(at, visit)
    }

    fn open_store(&self) -> Result<Option<File>> {
        (**self).open_store()
    }
}
