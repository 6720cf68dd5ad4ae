//! A socket that clients connect to, and the thread that takes them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use rustix::net::Shutdown;

use super::{Address, Shared};
use crate::events::Event;
use crate::socket::Socket;

/// After a failure to take a client, which is mostly one of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    socket: Arc<Listening>,
    /// Of a socket in the file system.
    path: Option<PathBuf>,
    thread: JoinHandle<()>,
}

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`; also returns what it has become.
    pub(super) fn start(address: &Address, shared: Arc<Shared>) -> Result<(Self, Address)> {
        let (socket, path, bound) = match address {
            Address::Unix(path) => {
                let listener = bind(path).map_err(|error| error.during("listen").at(path))?;
                (
                    Listening::Unix(listener),
                    Some(path.clone()),
                    address.clone(),
                )
            }
            Address::Tcp(wanted) => {
                let (listener, bound) = bind_tcp(*wanted).map_err(|source| {
                    let error = Error::from(source);
                    let detail = format!("{wanted}: {error}");
                    error.detail(detail).during("listen")
                })?;
                (Listening::Tcp(listener), None, Address::Tcp(bound))
            }
        };
        let socket = Arc::new(socket);
        let thread = thread::Builder::new()
            .name("nbd listener".to_owned())
            .spawn({
                let socket = socket.clone();
                move || take_clients(&socket, &shared)
            });
        let thread = thread.map_err(|source| Error::from(source).during("listen"))?;
        Ok((
            Self {
                socket,
                path,
                thread,
            },
            bound,
        ))
    }

    /// Takes no more clients; the server is stopping.
    pub(super) fn stop(self) {
        // Wakes the thread, which may already be on its way.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        if let Some(path) = self.path {
            // Somebody may have removed it before.
            let _ = fs::remove_file(path);
        }
        // A panic was shown where it happened.
        let _ = self.thread.join();
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Listening {
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
}

fn take_clients(socket: &Listening, shared: &Arc<Shared>) {
    loop {
        let taken = socket
            .accept()
            .map_err(|source| Error::from(source).during("accept"))
            .and_then(|(socket, peer)| Shared::start(shared, socket, peer));
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
