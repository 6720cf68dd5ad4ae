//! The queue of `/dev/fuse`.
//!
//! A read returns one request and a write sends one reply or notification. Several threads may do
//! both concurrently.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use rustix::io::{Errno, read, write};

use crate::protocol::WRITE_PREFIX;
use crate::protocol::connection::DATA_LENGTH_MAX;
use crate::protocol::reply::{HEADER_LENGTH, Reply};
use crate::queue::{End, Endpoint, Received};

const DEVICE: &str = "/dev/fuse";
/// Alignment of the data in requests and replies, in bytes.
const ALIGNMENT: usize = 4096;
/// The data of an ioctl or a listing may be followed by a structure.
pub(crate) const REPLY_LENGTH_MAX: usize = DATA_LENGTH_MAX as usize + ALIGNMENT;
/// Offset of a reply's header in its buffer, so that the data is aligned.
const REPLY_START: usize = ALIGNMENT - HEADER_LENGTH;
/// Offset of a request in its buffer, so that the data of a write is aligned.
const REQUEST_START: usize = ALIGNMENT - WRITE_PREFIX;

/// A connection to the kernel. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Channel(Arc<OwnedFd>);

/// A worker's endpoint of `/dev/fuse`.
pub(crate) struct DeviceEndpoint {
    channel: Channel,
    request: AlignedBuffer,
    request_len: usize,
    reply: AlignedBuffer,
}

impl Channel {
    /// The connection of a mount.
    pub fn new(device: OwnedFd) -> Self {
        Self(Arc::new(device))
    }

    /// The open device.
    pub fn device(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// Waits for a request and reads it into `buffer`, which must hold the largest request. Returns
    /// its length, or how the connection ended.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<std::result::Result<usize, End>> {
        let mut was_aborted = false;
        loop {
            match read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Ok(len)),
                Err(Errno::NODEV) => return Ok(Err(End::Unmounted)),
                Err(Errno::CONNABORTED) if was_aborted => return Ok(Err(End::Aborted)),
                // An unmount returns this as well, once, to a thread that was about to receive one
                // of the last requests.
                Err(Errno::CONNABORTED) => was_aborted = true,
                // The request was withdrawn, or a signal arrived.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(failed("read a request", errno)),
            }
        }
    }

    /// Sends a reply. A reply that the kernel no longer expects is no error.
    pub fn send(&self, reply: &[u8]) -> Result<()> {
        loop {
            match write(&self.0, reply) {
                Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("send an answer", errno)),
            }
        }
    }

    /// Sends a notification. The errors are the kernel's own.
    pub fn notify(&self, notification: &[u8]) -> rustix::io::Result<()> {
        rustix::io::retry_on_intr(|| write(&self.0, notification)).map(drop)
    }
}

impl DeviceEndpoint {
    pub fn new(channel: &Channel) -> io::Result<Self> {
        let memory = |len: usize| AlignedBuffer::new((ALIGNMENT + len).next_power_of_two());
        Ok(Self {
            channel: channel.clone(),
            request: memory(DATA_LENGTH_MAX as usize)?,
            request_len: 0,
            reply: memory(REPLY_LENGTH_MAX)?,
        })
    }
}

impl Endpoint for DeviceEndpoint {
    fn receive(&mut self) -> Result<Received> {
        let memory = &mut self.request.as_mut_slice()[REQUEST_START..];
        match self.channel.receive(memory)? {
            Ok(len) => {
                self.request_len = len;
                Ok(Received::Request)
            }
            Err(end) => Ok(Received::End(end)),
        }
    }

    fn request(&mut self) -> (&[u8], Reply<'_>) {
        let request = &self.request.as_slice()[REQUEST_START..][..self.request_len];
        let memory = &mut self.reply.as_mut_slice()[REPLY_START..ALIGNMENT + REPLY_LENGTH_MAX];
        (request, Reply::new(memory))
    }

    fn send(&mut self, len: usize) -> Result<()> {
        let reply = &self.reply.as_slice()[REPLY_START..][..len];
        self.channel.send(reply)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Opens the device. It becomes a connection when it is mounted.
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
