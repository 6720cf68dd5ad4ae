//! A socket that clients connect to, and the thread that takes them.

use std::fs;
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use super::{Address, Shared};
use crate::events::Event;
use crate::socket::Socket;

/// After a failure to take a client, which is mostly one of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the end of a server is waited for that has been killed and still has its socket.
const END_TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Listener {
    /// Ends the thread. The socket may be somebody else's too, and is left as it is.
    stop: Arc<OwnedFd>,
    /// Of a socket in the file system that is ours.
    name: Option<Name>,
    /// As long as it is open, no other file has its inode number.
    socket: Arc<BoundSocket>,
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
                let bound = bind(path).map_err(|error| error.during("listen").at(path));
                let (socket, name) = bound?;
                let mut listener = Self::take(BoundSocket::Unix(socket), shared)?;
                listener.name = Some(name);
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
            let socket = Arc::new(socket);
            let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
            let thread = thread::Builder::new()
                .name("nbd listener".to_owned())
                .spawn({
                    let (socket, stop) = (socket.clone(), stop.clone());
                    move || take_clients(&socket, &stop, &shared)
                })?;
            Ok(Self {
                stop,
                name: None,
                socket,
                thread,
            })
        };
        start().map_err(|source| Error::from(source).during("listen"))
    }

    /// Takes no more clients; the server is stopping.
    pub(super) fn stop(self) {
        // Cannot fail: the counter has room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(name) = self.name {
            name.remove();
        }
        drop(self.socket);
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

/// The name of a socket, and the inode that it names.
struct Name {
    path: PathBuf,
    inode: (u64, u64),
}

impl Name {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            inode: (metadata.dev(), metadata.ino()),
        })
    }

    /// Removes the name, unless somebody has given it to another socket.
    fn remove(self) {
        let _turn = Turn::take(&self.path);
        if Self::of(&self.path).is_ok_and(|now| now.inode == self.inode) {
            // Somebody may have removed it before.
            let _ = fs::remove_file(self.path);
        }
    }
}

/// Servers take turns at the names of a folder, by a lock on it. Where it cannot be had, they do without.
struct Turn {
    _folder: Option<File>,
}

impl Turn {
    fn take(path: &Path) -> Self {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).ok();
        let deadline = Instant::now() + 2 * END_TIMEOUT;
        let is_taken = |folder: &File| {
            let lock = FlockOperation::NonBlockingLockExclusive;
            flock(folder, lock) == Err(rustix::io::Errno::WOULDBLOCK)
        };
        while folder.as_ref().is_some_and(is_taken) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        Self { _folder: folder }
    }
}

/// Binds to a path. A socket there that nobody listens on is replaced, also when that ends only now.
fn bind(path: &Path) -> Result<(UnixListener, Name)> {
    let _turn = Turn::take(path);
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        let in_use = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            result => return Ok((result?, Name::of(path)?)),
        };
        let is_socket = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?.file_type().is_socket(),
        };
        // So do other files refuse a connection, too.
        let connected = is_socket.then(|| UnixStream::connect(path));
        match connected {
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            Some(Ok(client)) if Instant::now() < deadline && !is_greeted(&client, deadline) => {
                thread::sleep(POLL_INTERVAL);
            }
            _ => {
                return Err(Error::from(in_use)
                    .with_kind(ErrorKind::InUse)
                    .detail("somebody listens there, or it is no socket"));
            }
        }
    }
}

/// Whether a server says something, as it does when it lives.
fn is_greeted(mut client: &UnixStream, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = client.set_read_timeout(Some(left.max(POLL_INTERVAL)));
    timeout.is_ok() && matches!(client.read(&mut [0]), Ok(1))
}
