//! A qcow2 image that grows while it is open.
//!
//! Model: growth closes the device, edits the file as `extant image resize` does, and opens the
//! device again, over the same locked file. Requests wait meanwhile. So growth has one
//! implementation, and the requests of images that do not grow have no lock for it.
//!
//! Invariant: `device` is `None` only after it could not be opened again; then every request fails.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, Features, Geometry, Limits, RangeStatus, Request, TransferStream};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, Extent, LayerRange, LayerVisitor, Result,
    Silent,
};
use parking_lot::RwLock;

use crate::device::{DeviceOptions, ImageDevice, Store, open_image_store};
use crate::image_file::ImageFile;
use crate::image_format::Format;
use crate::preallocation::Preallocation;
use crate::resize::{ResizeOptions, resize};
use crate::store::StoreFile;

/// The disk in a qcow2 image without backing file and data file; it can grow.
pub struct GrowingImage {
    store: Arc<dyn Store>,
    options: DeviceOptions,
    device: RwLock<Option<ImageDevice>>,
}

impl GrowingImage {
    /// Opens the qcow2 image at `path`, as [`ImageDevice::open`] does; files that it names are
    /// refused.
    ///
    /// # Errors
    /// Those of [`ImageDevice::open`].
    pub fn open(path: &Path, options: DeviceOptions) -> Result<Self> {
        let store = open_image_store(path, &options)?;
        Self::open_store(store, options).map_err(|error| error.during("open").at(path))
    }

    /// The same for an image in `store`, which the caller has locked.
    ///
    /// # Errors
    /// Those of [`ImageDevice::open_store`].
    pub fn open_store(store: Arc<dyn Store>, options: DeviceOptions) -> Result<Self> {
        let device = ImageDevice::open_store(Arc::clone(&store), &options)?;
        Ok(Self {
            store,
            options,
            device: RwLock::new(Some(device)),
        })
    }

    fn with<T>(&self, call: impl FnOnce(&ImageDevice) -> Result<T>) -> Result<T> {
        match &*self.device.read() {
            Some(device) => call(device),
            None => Err(closed()),
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Io).detail("the image could not be opened again after it had grown")
}

impl Device for GrowingImage {
    fn geometry(&self) -> Geometry {
        let closed = Geometry {
            size: 0,
            logical_block: 512,
            physical_block: 512,
            limits: Limits::NONE,
            features: Features::empty(),
        };
        let device = self.device.read();
        device.as_ref().map_or(closed, Device::geometry)
    }

    fn grow(&self, size: u64) -> Result<()> {
        let mut held = self.device.write();
        let device = held.as_ref().ok_or_else(closed)?;
        if size <= device.geometry().size {
            return Ok(());
        }
        device.flush()?;
        // Closed, which ends its use of the file.
        *held = None;
        let file = ImageFile::held(Arc::new(StoreFile(Arc::clone(&self.store))));
        let options = ResizeOptions {
            preallocation: Some(Preallocation::Off),
            may_shrink: false,
        };
        let control = CancelToken::new();
        let control = Control::new(&control, &Silent);
        let grown = resize(&file, Format::Qcow2, size, &options, control);
        *held = Some(ImageDevice::open_store(
            Arc::clone(&self.store),
            &self.options,
        )?);
        grown.map(drop)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        match &*self.device.read() {
            Some(device) => device.submit(requests),
            None => requests
                .iter_mut()
                .for_each(|request| request.complete(Err(closed()))),
        }
    }

    fn run_stream(&self, _: &mut dyn TransferStream) -> bool {
        // A stream may last as long as its client, and growth would wait for it.
        false
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.with(|device| device.status(range, visit))
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.with(|device| device.extents(range, visit))
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.with(|device| device.visit_layers(at, visit))
    }
}
