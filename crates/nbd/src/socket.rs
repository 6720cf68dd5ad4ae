//! A connected socket, Unix or TCP.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};

/// Size of the send buffer, if the system permits it.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Most buffers of one `sendmsg` (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// How long a read waits for the first byte.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Not at all: `WouldBlock`.
    No,
    /// `TimedOut` afterwards.
    Until(Instant),
    /// Until there is one, or the stream ends.
    Forever,
}

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// A Unix socket.
    Unix(UnixStream),
    /// TCP.
    Tcp(TcpStream),
}

impl Socket {
    /// Sets socket options; a failure is ignored.
    pub fn prepare(&self) {
        if let Self::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            // Detects a client that lost power.
            let _ = sockopt::set_socket_keepalive(stream, true);
        }
        let _ = sockopt::set_socket_send_buffer_size(self, SEND_BUFFER_BYTES);
    }

    /// Bounds how long a read with [`Wait::Forever`] waits: `WouldBlock` afterwards; `None`: no
    /// limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Bounds how long a client may leave a reply unread; `None`: no limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// The address of a TCP client, in canonical form.
    pub fn peer_address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(stream) => Some(stream.peer_addr().ok()?.ip().to_canonical()),
        }
    }

    /// Ends one or both directions.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails if the client has disconnected, which has the same effect.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// Reads some bytes; 0 at the end of the stream.
    pub fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let flags = match wait {
            Wait::Forever => RecvFlags::empty(),
            Wait::No => RecvFlags::DONTWAIT,
            Wait::Until(deadline) => {
                self.wait_until(deadline)?;
                RecvFlags::DONTWAIT
            }
        };
        let (bytes, _) = retry_on_intr(|| recv(self, &mut *into, flags))?;
        Ok(bytes)
    }

    /// The receive buffer is not empty.
    pub fn has_input(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(
            retry_on_intr(|| recv(self, &mut [0; 1], flags)),
            Ok((1.., _))
        )
    }

    /// Writes all of `parts`, and advances them.
    pub fn write(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let now = &parts[..parts.len().min(PARTS_MAX)];
            let sent = retry_on_intr(|| {
                sendmsg(
                    self,
                    now,
                    &mut SendAncillaryBuffer::default(),
                    SendFlags::NOSIGNAL,
                )
            });
            match sent {
                Ok(bytes) => IoSlice::advance_slices(&mut parts, bytes),
                // `SO_SNDTIMEO` has expired.
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn wait_until(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut events = [PollFd::new(self, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut events, Some(&timeout)))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}
