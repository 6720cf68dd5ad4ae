//! `/dev/fuse`: where requests come from and answers go.
//!
//! One read gives one request, one write takes one answer; both may be done by several threads at once.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::Path;

use extant_space::{Error, ErrorKind, Result};
use rustix::io::{Errno, read, write};

const DEVICE: &str = "/dev/fuse";

/// A connection to the kernel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// What came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing more will.
    End(End),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By its unmount.
    Unmounted,
    /// Somebody cut it (`/sys/fs/fuse/connections/*/abort`).
    Aborted,
}

impl Channel {
    /// One that belongs to a mount.
    pub fn new(device: OwnedFd) -> Self {
        Self(device)
    }

    /// Waits for a request and puts it into `buffer`, which has room for the largest one.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received> {
        let mut was_aborted = false;
        loop {
            match read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Received::Request(len)),
                Err(Errno::NODEV) => return Ok(Received::End(End::Unmounted)),
                Err(Errno::CONNABORTED) if was_aborted => return Ok(Received::End(End::Aborted)),
                // An unmount says so as well, to who was about to get one of the last requests; once.
                Err(Errno::CONNABORTED) => was_aborted = true,
                // The request that woke us was taken back, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(failed("read a request", errno)),
            }
        }
    }

    /// Sends an answer. It is no error when nobody waits for it any more.
    pub fn send(&self, answer: &[u8]) -> Result<()> {
        loop {
            match write(&self.0, answer) {
                Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("send an answer", errno)),
            }
        }
    }

    /// Sends a notice; the errors are the kernel's own.
    pub fn notify(&self, notice: &[u8]) -> rustix::io::Result<()> {
        rustix::io::retry_on_intr(|| write(&self.0, notice)).map(drop)
    }
}

/// Opens the device; it is no connection before it is mounted.
///
/// # Errors
/// `Unsupported` where the kernel has no FUSE; `PermissionDenied`.
pub(crate) fn open_device() -> Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(File::into).map_err(|error| {
        let error = Error::from(error).at(Path::new(DEVICE)).during("open");
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::WrongType => error
                .with_kind(ErrorKind::Unsupported)
                .advice("load the kernel's module with `modprobe fuse`"),
            ErrorKind::PermissionDenied => {
                error.advice("the device is open to all users on most systems")
            }
            _ => error,
        }
    })
}

fn failed(what: &'static str, errno: Errno) -> Error {
    Error::from_errno(errno.raw_os_error())
        .during(what)
        .at(DEVICE)
}
