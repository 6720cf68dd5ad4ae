//! Images in files of the host, and the files that they name.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::{
    Device, Geometry, HostAccess, HostDevice, HostOptions, LoopAccess, LoopDevice, LoopOptions,
    RangeStatus, Request,
};
use extant_hostfs::HostFile;
use extant_space::{ByteRange, Error, ErrorKind, Extent, Result};

use super::{CHAIN_MAX, DeviceOptions, ImageAccess, ImageDevice, Store};
use crate::Format;
use crate::format::Header;
use crate::lock::{self, Use};

/// An open and locked file of the host.
pub(super) struct HostImage {
    device: HostDevice,
    /// The whole of a file that is only read and ends inside a block, which the device leaves out.
    whole: Option<LoopDevice<HostFile>>,
}

impl HostImage {
    pub(super) fn open(path: &Path, options: &DeviceOptions) -> Result<Self> {
        let (access, wanted) = match options.access {
            ImageAccess::ReadWrite => (HostAccess::ReadWrite, Use::Write),
            ImageAccess::ReadOnly => (HostAccess::ReadOnly, Use::Read),
        };
        let host = HostOptions {
            access,
            cache: options.cache,
            ..HostOptions::default()
        };
        let device = HostDevice::open(path, &host)?;
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
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> std::ops::ControlFlow<()>,
    ) -> Result<()> {
        self.whole().status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> std::ops::ControlFlow<()>,
    ) -> Result<()> {
        self.whole().extents(range, visit)
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
    if depth == CHAIN_MAX {
        return Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "more than {CHAIN_MAX} backing files, or they lead to each other"
        )));
    }
    let format = match header.extensions.backing_format().as_deref() {
        Some("qcow2") => Format::Qcow2,
        Some("raw") => Format::Raw,
        Some(other) => {
            return Err(Error::new(ErrorKind::Unsupported).detail(format!(
                "the backing file is of format {other:?}, which is not read here"
            )));
        }
        None => {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("the image does not say the format of its backing file")
                .advice("give the backing file, or set its format (qemu-img rebase -u -F)"));
        }
    };
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

/// A name that an image holds is a path from its folder, or a protocol and what that wants.
fn beside(image: &Path, name: &Path) -> Result<PathBuf> {
    let bytes = name.as_os_str().as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let protocol = bytes.iter().position(|byte| *byte == b':');
    if protocol.is_some_and(|end| end > 0 && bytes[..end].iter().all(is_word)) {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail(format!(
                "{} is no path but a protocol of QEMU",
                name.display()
            ))
            .advice("give the file"));
    }
    Ok(image.parent().unwrap_or(Path::new("")).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_from_the_folder_of_the_image() {
        let image = Path::new("/srv/vm/disk.qcow2");
        let path = |name: &str| beside(image, Path::new(name)).unwrap();
        assert_eq!(path("base.raw"), Path::new("/srv/vm/base.raw"));
        assert_eq!(path("/base.raw"), Path::new("/base.raw"));
        assert_eq!(path("./a:b"), Path::new("/srv/vm/./a:b"));
        for name in [
            "nbd://host/x",
            "json:{\"driver\":\"raw\"}",
            "file:/etc/passwd",
        ] {
            let error = beside(image, Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}
