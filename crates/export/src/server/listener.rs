//! A listening socket, and the thread that accepts its clients.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::process;
use extant_sys::socket_file::{self, SocketFile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;

use super::{Address, Shared};
use crate::events::Event;
use extant_nbd::socket::Socket;

/// Delay after a failed `accept`, mostly without free descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    /// Wakes the thread. The socket is not shut down, as other processes may share it.
    stop: Arc<OwnedFd>,
    /// The socket's name, if this server created it.
    file: Option<SocketFile>,
    /// As long as it is open, no other file has its inode number.
    socket: Arc<BoundSocket>,
    thread: JoinHandle<()>,
}

/// A listening socket, such as one from a service manager.
#[derive(Debug)]
pub enum BoundSocket {
    /// A named or unnamed Unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`; also returns the bound address.
    pub(super) fn start(address: &Address, shared: Arc<Shared>) -> Result<(Self, Address)> {
        match address {
            Address::Unix(path) => {
                let (socket, file) =
                    bind(path).map_err(|source| Error::from(source).during("listen").at(path))?;
                let mut listener = Self::accept_from(BoundSocket::Unix(socket), shared)?;
                listener.file = Some(file);
                Ok((listener, address.clone()))
            }
            Address::Tcp(wanted) => {
                let (socket, bound) = bind_tcp(*wanted).map_err(|source| {
                    let error = Error::from(source);
                    let detail = match error.kind() {
                        ErrorKind::InUse => {
                            let who = process::tcp_listener(wanted.port());
                            let who = who.unwrap_or_else(|| "another process".to_owned());
                            format!("{wanted}: {who} listens there")
                        }
                        _ => format!("{wanted}: {error}"),
                    };
                    error.detail(detail).during("listen")
                })?;
                let listener = Self::accept_from(BoundSocket::Tcp(socket), shared)?;
                Ok((listener, Address::Tcp(bound)))
            }
        }
    }

    /// Accepts clients from a listening socket.
    pub(super) fn accept_from(socket: BoundSocket, shared: Arc<Shared>) -> Result<Self> {
        let start = || -> io::Result<Self> {
            // Another process that shares the socket may accept a client between poll and accept.
            socket.set_nonblocking()?;
            let socket = Arc::new(socket);
            let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
            let thread = thread::Builder::new()
                .name("nbd listener".to_owned())
                .spawn({
                    let (socket, stop) = (socket.clone(), stop.clone());
                    move || accept_clients(&socket, &stop, &shared)
                })?;
            Ok(Self {
                stop,
                file: None,
                socket,
                thread,
            })
        };
        start().map_err(|source| Error::from(source).during("listen"))
    }

    /// Stops accepting clients.
    pub(super) fn stop(self) {
        // Cannot fail: the counter has room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(file) = self.file {
            file.remove();
        }
        drop(self.socket);
        // A panic was reported by the thread.
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
    /// Its address; `None` for an unnamed socket.
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

    /// Waits for a client; `None` if another process accepted it.
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

fn accept_clients(socket: &BoundSocket, stop: &OwnedFd, shared: &Arc<Shared>) {
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
            shared.notify(&Event::AcceptFailed { error: &error });
            thread::sleep(ACCEPT_RETRY_DELAY);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Binds to a path; the umask decides who may connect.
fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    socket_file::bind(path, 0o777, sends_greeting)
}

/// Whether a server sends the first byte of its greeting in time.
fn sends_greeting(mut client: &UnixStream, timeout: Duration) -> bool {
    let timeout = client.set_read_timeout(Some(timeout));
    timeout.is_ok() && matches!(client.read(&mut [0]), Ok(1))
}
