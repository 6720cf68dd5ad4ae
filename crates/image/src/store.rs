//! The storage of an image: a device that can grow.

mod file;

use extant_blockdev::{Device, HostDevice, LoopDevice};
use extant_nbd::NbdDevice;
use extant_rbd::RbdDevice;
use extant_space::{Error, ErrorKind, Result, SpaceFile};

pub(crate) use file::StoreFile;

/// A device over a file, which an image makes longer as it needs.
pub trait Store: Device {
    /// Bytes of the file; the device may leave out a rest of a block at its end.
    fn file_bytes(&self) -> Result<u64>;

    /// Cuts the file, or makes it longer by a hole; the device has that size afterwards.
    ///
    /// # Errors
    /// `Unsupported` for a store of fixed size, such as a block device.
    fn resize(&self, file_bytes: u64) -> Result<()>;
}

impl Store for HostDevice {
    fn file_bytes(&self) -> Result<u64> {
        self.file_bytes()
    }

    fn resize(&self, file_bytes: u64) -> Result<()> {
        self.resize(file_bytes).map(drop)
    }
}

/// An export has a fixed size.
impl Store for NbdDevice {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported).detail("an NBD export has a fixed size"))
    }
}

/// As a disk.
impl Store for RbdDevice {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported).detail("an RBD image keeps its size here"))
    }
}

impl<F: SpaceFile + ?Sized> Store for LoopDevice<F> {
    fn file_bytes(&self) -> Result<u64> {
        self.file().size()
    }

    fn resize(&self, file_bytes: u64) -> Result<()> {
        self.file().resize(file_bytes)?;
        self.refresh().map(drop)
    }
}
