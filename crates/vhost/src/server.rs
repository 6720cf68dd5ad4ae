//! The server of one volume: its socket, its client, resizes, shutdown.
//!
//! One thread accepts a client, handles its messages, and accepts the next one when it has left;
//! others wait meanwhile. A client that leaves is no error: its requests in flight are completed.
//!
//! Resizes: the thread follows the size of the device every second, and at `follow_size`. When it
//! has changed, the client is asked to read the configuration, and the guest sees the new capacity.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::socket_file::{self, SocketFile};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, retry_on_intr, write};
use vhost::vhost_user::{BackendReqHandler, Error as ProtocolError};

use crate::channel::Channel;
use crate::connection::Connection;
use crate::events::{Event, Observer};
use crate::volume::Volume;

/// Interval of checks of the device's size.
const RESIZE_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Delay after a failed `accept`, mostly without free descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time for a message that has begun to arrive, once its socket is closed.
const ABORT_GRACE: Duration = Duration::from_secs(1);
/// Permissions of the socket: a client reads and writes everything.
const SOCKET_MODE: u32 = 0o600;

/// Options of a server.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// Receives events.
    pub observer: Option<Observer>,
}

/// A running server of one volume. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    /// The socket's name, if this server created it.
    file: Option<SocketFile>,
    /// Ends when the thread does.
    ended: Receiver<()>,
}

struct Shared {
    volume: Arc<Volume>,
    observer: Option<Observer>,
    is_stopping: AtomicBool,
    /// Wakes the thread.
    wake: OwnedFd,
    /// The connected client.
    client: Mutex<Option<UnixStream>>,
}

impl Server {
    /// Serves `volume` on a socket at `path`, which only its owner can use: a client can do
    /// everything with the volume.
    ///
    /// # Errors
    /// `InUse` if another process listens there; errors of the system.
    pub fn listen(volume: Volume, path: &Path, options: ServerOptions) -> Result<Self> {
        let bound = socket_file::bind(path, SOCKET_MODE, is_serving);
        let (listener, file) =
            bound.map_err(|error| Error::from(error).during("listen").at(path))?;
        let mut server = Self::adopt(volume, listener, options)?;
        server.file = Some(file);
        Ok(server)
    }

    /// Serves `volume` on a listening socket whose owner keeps its name (socket activation).
    ///
    /// # Errors
    /// Errors of the system.
    pub fn adopt(volume: Volume, listener: UnixListener, options: ServerOptions) -> Result<Self> {
        let start = || -> io::Result<Self> {
            listener.set_nonblocking(true)?;
            let shared = Arc::new(Shared {
                volume: Arc::new(volume),
                observer: options.observer,
                is_stopping: AtomicBool::new(false),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                client: Mutex::default(),
            });
            let (end, ended) = channel::<()>();
            thread::Builder::new()
                .name("vhost server".to_owned())
                .spawn({
                    let shared = shared.clone();
                    move || {
                        shared.serve_clients(&listener);
                        drop(end);
                    }
                })?;
            Ok(Self {
                shared,
                file: None,
                ended,
            })
        };
        start().map_err(|source| Error::from(source).during("listen"))
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.shared.volume
    }

    /// Checks the size of the device now, and notifies the client if it has changed.
    pub fn follow_size(&self) {
        self.shared.wake();
    }

    /// Stops taking requests, completes those in flight, and flushes the device. After `grace` the
    /// connection of a client that stalls in a message is aborted.
    ///
    /// # Errors
    /// `InUse` if the device does not finish a request; the error of the flush.
    pub fn shutdown(mut self, grace: Duration) -> Result<()> {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> Result<()> {
        let shared = &self.shared;
        shared.is_stopping.store(true, Ordering::Relaxed);
        shared.wake();
        if let Some(file) = self.file.take() {
            file.remove();
        }
        let has_ended = |timeout| {
            use std::sync::mpsc::RecvTimeoutError::Disconnected;
            self.ended.recv_timeout(timeout) == Err(Disconnected)
        };
        if !has_ended(grace) {
            if let Some(client) = &*shared.client.lock() {
                let _ = client.shutdown(std::net::Shutdown::Both);
            }
            if !has_ended(ABORT_GRACE) {
                return Err(Error::new(ErrorKind::InUse)
                    .detail("a device does not complete its requests")
                    .during("shut down"));
            }
        }
        if shared.volume.is_read_only() {
            return Ok(());
        }
        shared.volume.device().flush()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.shared.is_stopping.load(Ordering::Relaxed) {
            // A caller that needs the error calls `shutdown`.
            let _ = self.stop(ABORT_GRACE);
        }
    }
}

/// Whether a server keeps the connection open. It sends nothing by itself.
fn is_serving(mut client: &UnixStream, timeout: Duration) -> bool {
    let bounded = client.set_read_timeout(Some(timeout));
    bounded.is_ok() && !matches!(client.read(&mut [0]), Ok(0))
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ByInput,
    ByOthers,
}

impl Shared {
    fn notify(&self, event: &Event<'_>) {
        event.trace();
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    fn wake(&self) {
        // Cannot fail: the counter has room.
        let _ = write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Waits for input, a wake-up, or the timeout.
    fn wait(&self, input: &impl std::os::fd::AsFd, timeout: Option<&Timespec>) -> Result<Woken> {
        let mut events = [
            PollFd::new(input, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        retry_on_intr(|| poll(&mut events, timeout))
            .map_err(|source| Error::from(io::Error::from(source)).during("wait"))?;
        if events[0].revents().is_empty() {
            let _ = read(&self.wake, &mut [0; 8]);
            return Ok(Woken::ByOthers);
        }
        Ok(Woken::ByInput)
    }

    fn serve_clients(&self, listener: &UnixListener) {
        while !self.is_stopping() {
            if !matches!(self.wait(listener, None), Ok(Woken::ByInput)) {
                continue;
            }
            let client = match listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => {
                    thread::sleep(ACCEPT_RETRY_DELAY);
                    continue;
                }
            };
            let volume = self.volume.name();
            self.notify(&Event::Opened { volume });
            let result = self.serve(client);
            *self.client.lock() = None;
            self.notify(&Event::Closed {
                volume,
                error: result.as_ref().err(),
            });
        }
    }

    /// Serves one client until it leaves or the server stops.
    fn serve(&self, client: UnixStream) -> Result<()> {
        let clone = || client.try_clone();
        let clones = clone().and_then(|first| Ok((first, clone()?)));
        let (socket, kept) =
            clones.map_err(|source| Error::from(source).during("set up the connection"))?;
        *self.client.lock() = Some(kept);
        let connection = Connection::new(self.volume.clone(), self.observer.clone());
        let connection = Arc::new(StdMutex::new(connection));
        let mut messages = BackendReqHandler::from_stream(client, connection);
        let mut channel = None;
        let mut reported = self.size();
        loop {
            let woken = self.wait(&socket, Some(&RESIZE_INTERVAL))?;
            if self.is_stopping() {
                return Ok(());
            }
            if woken == Woken::ByOthers {
                reported = self.report_size(reported, channel.as_mut());
                continue;
            }
            if let Some(brought) = Channel::peek(&socket) {
                channel = Some(brought);
            }
            match messages.handle_request() {
                Ok(()) => {}
                Err(ProtocolError::Disconnected) => return Ok(()),
                Err(error) => {
                    return Err(Error::new(ErrorKind::InvalidArgument)
                        .detail(error.to_string())
                        .during("handle a message"));
                }
            }
        }
    }

    /// The current size; that before it if the device does not say.
    fn size(&self) -> u64 {
        // A failure is one of the next requests.
        let _ = self.volume.device().refresh();
        self.volume.capacity_bytes()
    }

    fn report_size(&self, reported: u64, channel: Option<&mut Channel>) -> u64 {
        let bytes = self.size();
        if bytes == reported {
            return reported;
        }
        let Some(channel) = channel else {
            // A client without a channel reads the configuration when it likes.
            return bytes;
        };
        // A client that does not read its channel does not learn it.
        if channel.send_config_change().is_ok() {
            let volume = self.volume.name();
            self.notify(&Event::Resized { volume, bytes });
        }
        bytes
    }
}
