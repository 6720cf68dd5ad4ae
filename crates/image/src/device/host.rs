//! Images in files of the host, and the files that they name.

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
use crate::hold;
use crate::lock::{self, LockAccess};
use crate::referenced_file::{backing_format, beside};

/// An open and locked file of the host.
pub(super) struct HostImage {
    device: HostDevice,
    /// The whole of a file that is only read and ends inside a block, which the device leaves out.
    whole: Option<LoopDevice<HostFile>>,
}

impl HostImage {
    pub(super) fn open(path: &Path, options: &DeviceOptions) -> Result<Self> {
        let (access, wanted) = match options.access {
            ImageAccess::ReadWrite => (HostAccess::ReadWrite, LockAccess::Write),
            ImageAccess::ReadOnly => (HostAccess::ReadOnly, LockAccess::Read),
        };
        let host = HostOptions {
            access,
            cache: options.cache,
            ..HostOptions::default()
        };
        let device = hold::open_device(path, &host)?;
        lock::lock(&device, wanted).map_err(|error| error.during("open").at(path))?;
        let ends_inside = device.file_bytes()? != device.geometry().size;
        let whole = match options.access {
            ImageAccess::ReadOnly if ends_inside => {
                let options = LoopOptions {
                    logical_block: 1,
                    access: LoopAccess::ReadOnly,
                    ..LoopOptions::default()
                };
                Some(LoopDevice::new(
                    Arc::new(HostFile::open_read(path)?),
                    options,
                )?)
            }
            _ => None,
        };
        Ok(Self { device, whole })
    }

    pub(super) fn into_store(self) -> Arc<dyn Store> {
        match self.whole {
            None => Arc::new(self.device),
            Some(_) => Arc::new(self),
        }
    }

    fn whole(&self) -> &LoopDevice<HostFile> {
        self.whole.as_ref().expect("a store only with it")
    }
}

impl Device for HostImage {
    fn geometry(&self) -> Geometry {
        self.whole().geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.whole().submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.whole().status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.whole().extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.device.visit_layers(at, visit)
    }
}

impl Store for HostImage {
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
pub(super) fn open_data_file(
    image: &Path,
    name: &Path,
    options: &DeviceOptions,
) -> Result<Arc<dyn Store>> {
    let path = beside(image, name)?;
    Ok(HostImage::open(&path, options)?.into_store())
}
