//! Images in files of the host and exports of NBD servers, and the files that they name.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{
    Device, Geometry, HostAccess, HostDevice, HostOptions, LoopAccess, LoopDevice, LoopOptions,
    RangeStatus, Request,
};
use extant_hostfs::HostFile;
use extant_space::{ByteRange, Error, ErrorKind, Extent, LayerRange, LayerVisitor, Result};

use super::{DeviceOptions, ImageAccess, ImageDevice, Store};
use crate::format::Header;
use crate::hold::{self, OpenDevice};
use crate::lock::{self, LockAccess};
use crate::referenced_file::{backing_format, beside, data_file_path, explain_missing_data};

/// Opens and locks the file or export of an image.
pub(crate) fn open_image_store(path: &Path, options: &DeviceOptions) -> Result<Arc<dyn Store>> {
    let (access, wanted) = match options.access {
        ImageAccess::ReadWrite => (HostAccess::ReadWrite, LockAccess::Write),
        ImageAccess::ReadOnly => (HostAccess::ReadOnly, LockAccess::Read),
    };
    let host = HostOptions {
        access,
        cache: options.cache,
        engine: options.engine,
        ..HostOptions::default()
    };
    let device = match hold::open_device(path, &host)? {
        OpenDevice::Host(device) => device,
        OpenDevice::Nbd(export) => return Ok(Arc::new(export)),
        OpenDevice::Rbd(image) => return Ok(Arc::new(image)),
    };
    lock::lock(&device, wanted).map_err(|error| error.during("open").at(path))?;
    let ends_inside = device.file_bytes()? != device.geometry().size;
    if options.access == ImageAccess::ReadWrite || !ends_inside {
        return Ok(Arc::new(device));
    }
    let options = LoopOptions {
        logical_block: 1,
        access: LoopAccess::ReadOnly,
        ..LoopOptions::default()
    };
    let whole = LoopDevice::new(Arc::new(HostFile::open_read(path)?), options)?;
    Ok(Arc::new(WholeFile { device, whole }))
}

/// The whole of a file that is only read and ends inside a block, which the device leaves out.
struct WholeFile {
    device: HostDevice,
    whole: LoopDevice<HostFile>,
}

impl Device for WholeFile {
    fn geometry(&self) -> Geometry {
        self.whole.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.whole.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.whole.status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.whole.extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.device.visit_layers(at, visit)
    }
}

impl Store for WholeFile {
    fn file_bytes(&self) -> Result<u64> {
        self.device.file_bytes()
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly))
    }
}

/// Opens the backing file that a header names.
pub(super) fn open_backing(
    image: &Path,
    name: &Path,
    header: &Header,
    options: &DeviceOptions,
    depth: u32,
) -> Result<ImageDevice> {
    let format = backing_format(header, depth)?;
    let path = beside(image, name)?;
    let options = DeviceOptions {
        access: ImageAccess::ReadOnly,
        format: Some(format),
        ..options.clone()
    };
    ImageDevice::open_in_chain(&path, &options, depth + 1)
}

/// Opens the data file that a header names.
pub(super) fn open_data_file(name: &Path, options: &DeviceOptions) -> Result<Arc<dyn Store>> {
    let path = data_file_path(name)?;
    open_image_store(path, options).map_err(|error| explain_missing_data(error, name))
}
