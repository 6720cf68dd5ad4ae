//! A socket that clients connect to, and the thread that takes them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;

use super::{Address, Shared};
use crate::events::Event;
use crate::socket::Socket;

/// After a failure to take a client, which is mostly one of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    /// Ends the thread. The socket may be somebody else's too, and is left as it is.
    stop: Arc<OwnedFd>,
    /// Of a socket in the file system that is ours.
    path: Option<PathBuf>,
    thread: JoinHandle<()>,
}

/// A socket that listens already, such as one that a service manager has opened.
#[derive(Debug)]
pub enum BoundSocket {
    /// A socket in the file system, or without a name.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`; also returns what it has become.
    pub(super) fn start(address: &Address, shared: Arc<Shared>) -> Result<(Self, Address)> {
        match address {
            Address::Unix(path) => {
                let socket = bind(path).map_err(|error| error.during("listen").at(path))?;
                let mut listener = Self::take(BoundSocket::Unix(socket), shared)?;
                listener.path = Some(path.clone());
                Ok((listener, address.clone()))
            }
            Address::Tcp(wanted) => {
                let (socket, bound) = bind_tcp(*wanted).map_err(|source| {
                    let error = Error::from(source);
                    let detail = match error.kind() {
                        ErrorKind::InUse => format!("{wanted}: another process listens there"),
                        _ => format!("{wanted}: {error}"),
                    };
                    error.detail(detail).during("listen")
                })?;
                let listener = Self::take(BoundSocket::Tcp(socket), shared)?;
                Ok((listener, Address::Tcp(bound)))
            }
        }
    }

    /// Takes clients from a socket that listens.
    pub(super) fn take(socket: BoundSocket, shared: Arc<Shared>) -> Result<Self> {
        let start = || -> io::Result<Self> {
            // Who shares the socket may take a client that was seen here.
            socket.set_nonblocking()?;
            let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
            let thread = thread::Builder::new()
                .name("nbd listener".to_owned())
                .spawn({
                    let stop = stop.clone();
                    move || take_clients(&socket, &stop, &shared)
                })?;
            Ok(Self {
                stop,
                path: None,
                thread,
            })
        };
        start().map_err(|source| Error::from(source).during("listen"))
    }

    /// Takes no more clients; the server is stopping.
    pub(super) fn stop(self) {
        // Cannot fail: the counter has room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(path) = self.path {
            // Somebody may have removed it before.
            let _ = fs::remove_file(path);
        }
        // A panic was shown where it happened.
        let _ = self.thread.join();
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl BoundSocket {
    /// Where clients find it; `None` for a socket without a name in the file system.
    pub(super) fn address(&self) -> io::Result<Option<Address>> {
        Ok(match self {
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                address
                    .as_pathname()
                    .map(|path| Address::Unix(path.to_path_buf()))
            }
            Self::Tcp(listener) => Some(Address::Tcp(listener.local_addr()?)),
        })
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Socket::Unix(stream), "a local client".to_owned()))
            }
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Socket::Tcp(stream), peer.to_string()))
            }
        }
    }

    /// Waits for a client; `None` when another process has taken it.
    fn next(&self, stop: &OwnedFd) -> io::Result<Option<(Socket, String)>> {
        let mut events = [
            PollFd::new(self, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        retry_on_intr(|| poll(&mut events, None))?;
        match self.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            taken => taken.map(Some),
        }
    }
}

fn take_clients(socket: &BoundSocket, stop: &OwnedFd, shared: &Arc<Shared>) {
    loop {
        let taken = socket
            .next(stop)
            .map_err(|source| Error::from(source).during("accept"))
            .and_then(|taken| match taken {
                Some((socket, peer)) => Shared::start(shared, socket, peer),
                None => Ok(()),
            });
        if shared.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = taken {
            shared.tell(&Event::AcceptFailed { error: &error });
            thread::sleep(PAUSE);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Binds to a path; a socket there that nobody listens on goes.
fn bind(path: &Path) -> Result<UnixListener> {
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        result => return Ok(result?),
    };
    let is_socket = fs::symlink_metadata(path)?.file_type().is_socket();
    match UnixStream::connect(path) {
        // So say other files, too.
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path)?;
            Ok(UnixListener::bind(path)?)
        }
        _ => Err(Error::from(in_use)
            .with_kind(ErrorKind::InUse)
            .detail("somebody listens there, or it is no socket")),
    }
}
