//! The server: listening sockets, connections within limits, shutdown.
//!
//! Each connection has its own threads. They share the list of connections, which enforces the
//! limits. Shutdown closes the receiving half of each connection: requests that were received are
//! finished, requests that are still in the socket buffer are refused, then the worker finds the
//! end of the stream.

mod address;
mod connections;
mod listener;

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::events::{Event, Observer};
use crate::export::Exports;
use crate::handshake::{self, Terms};
use crate::tls::Tls;
use crate::transmission::{self, Transmission};
use connections::{Connections, Registered};
use extant_nbd::socket::Socket;
use extant_nbd::stream::Stream;
use listener::Listener;

pub use address::{Address, Scheme};
pub use listener::BoundSocket;

/// How long aborted connections may wait for requests that the device has.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Limits on clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections, three quarters of them from one TCP address. At the limit a new client
    /// evicts the oldest one that has not chosen an export; if all have, it is disconnected.
    pub connections: usize,
    /// Most bytes of one read or write, a power of two from 64 KiB to 1 GiB. A connection uses at
    /// most that much memory plus 8 MiB.
    pub request_bytes: u32,
    /// Time limit from the connection to the choice of an export.
    pub handshake: Duration,
}

impl Default for Limits {
    /// 64 connections, 32 MiB, 10 seconds.
    fn default() -> Self {
        Self {
            connections: 64,
            request_bytes: 32 << 20,
            handshake: Duration::from_secs(10),
        }
    }
}

/// Options of a server.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// Limits on clients.
    pub limits: Limits,
    /// TLS certificates; without them TLS is not offered.
    pub tls: Option<Tls>,
    /// Receives events.
    pub observer: Option<Observer>,
}

/// A running NBD server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Listener>>,
}

/// State shared by listeners and connections.
struct Shared {
    exports: Exports,
    options: ServerOptions,
    is_stopping: AtomicBool,
    connections: Connections,
}

impl Server {
    /// A server for `exports` that does not listen yet.
    ///
    /// # Panics
    /// When the largest request is out of bounds.
    pub fn new(exports: Exports, options: ServerOptions) -> Self {
        let request = options.limits.request_bytes;
        assert!(
            request.is_power_of_two() && (1 << 16..=1 << 30).contains(&request),
            "requests of up to {request} bytes"
        );
        let connections = Connections::new(options.limits.connections);
        Self {
            shared: Arc::new(Shared {
                exports,
                options,
                is_stopping: AtomicBool::new(false),
                connections,
            }),
            listeners: Mutex::default(),
        }
    }

    /// Listens at `address` and returns the bound address: port 0 becomes the port that the system
    /// chose.
    ///
    /// # Errors
    /// `InUse` if another process listens there; errors of the system.
    pub fn listen(&self, address: &Address) -> Result<Address> {
        let (listener, address) = Listener::start(address, self.shared.clone())?;
        let mut listeners = self.listeners.lock();
        listeners.push(listener);
        Ok(address)
    }

    /// Accepts clients from a listening socket that its owner keeps open after the server's end
    /// (socket activation). Returns its address, if it has one.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn adopt(&self, socket: BoundSocket) -> Result<Option<Address>> {
        let address = socket.address();
        let address = address.map_err(|source| Error::from(source).during("listen"))?;
        let listener = Listener::accept_from(socket, self.shared.clone())?;
        let mut listeners = self.listeners.lock();
        listeners.push(listener);
        Ok(address)
    }

    /// Serves a connected client.
    pub fn serve(&self, stream: UnixStream) -> Result<()> {
        Shared::start(
            &self.shared,
            Socket::Unix(stream),
            "connected before".to_owned(),
        )
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.count()
    }

    /// Stops accepting clients and requests, finishes the received requests and flushes the
    /// devices. After `grace` the connections of clients that do not read replies are aborted.
    ///
    /// # Errors
    /// `InUse` if a device does not finish a request; the first error of a flush.
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        let shared = &self.shared;
        shared.is_stopping.store(true, Ordering::Relaxed);
        let mut listeners = self.listeners.lock();
        listeners.drain(..).for_each(Listener::stop);
        drop(listeners);
        shared.connections.shutdown(Shutdown::Read);
        if !shared.connections.wait_for_none(grace) {
            shared.connections.shutdown(Shutdown::Both);
            if !shared.connections.wait_for_none(ABORT_GRACE) {
                return Err(Error::new(ErrorKind::InUse)
                    .detail("a device does not finish what it was asked for")
                    .during("shut down"));
            }
        }
        let mut result = Ok(());
        for export in shared.exports.iter() {
            let device = export.device();
            if !export.is_read_only(&device.geometry()) {
                result = result.and(device.flush());
            }
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.shared.is_stopping.load(Ordering::Relaxed) {
            // A caller that needs the error calls `shutdown`.
            let _ = self.shutdown(ABORT_GRACE);
        }
    }
}

impl Shared {
    fn notify(&self, event: &Event<'_>) {
        if let Some(observer) = &self.options.observer {
            observer(event);
        }
    }

    /// Serves a client on a new thread.
    fn start(shared: &Arc<Self>, socket: Socket, peer: String) -> Result<()> {
        let socket = Arc::new(socket);
        let Some(registered) = Registered::new(shared.clone(), socket.clone()) else {
            shared.notify(&Event::Refused { peer: &peer });
            return Ok(());
        };
        let connection = thread::Builder::new().name("nbd connection".to_owned());
        let serve = move || {
            let shared = registered.shared();
            let mut result = shared.run_connection(socket, &peer, &registered);
            if registered.was_evicted() {
                result = Err(Error::new(ErrorKind::InUse)
                    .detail("disconnected in favour of a newer client before it chose an export"));
            }
            shared.notify(&Event::Closed {
                peer: &peer,
                error: result.as_ref().err(),
            });
        };
        match connection.spawn(serve) {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::from(source).during("serve a client")),
        }
    }

    /// Runs a connection: handshake, transmission, close.
    fn run_connection(
        &self,
        socket: Arc<Socket>,
        peer: &str,
        registered: &Registered,
    ) -> Result<()> {
        let limits = &self.options.limits;
        socket.prepare();
        let bounded = socket.set_write_timeout(Some(limits.handshake));
        bounded.map_err(|source| Error::from(source).during("set up the connection"))?;
        let mut stream = Stream::new(socket.clone());
        let terms = Terms {
            exports: &self.exports,
            tls: self.options.tls.as_ref(),
            request_max: limits.request_bytes,
            deadline: Instant::now() + limits.handshake,
            is_stopping: &|| self.is_stopping.load(Ordering::Relaxed),
            claim_slot: &|| registered.claim_slot(),
        };
        let agreed = handshake::negotiate(&mut stream, &terms);
        let result = match agreed {
            Ok(None) => Ok(()),
            Err(error) => Err(error),
            Ok(Some(agreement)) => {
                let name = agreement.export.name();
                self.notify(&Event::Opened { peer, export: name });
                let unbounded = socket.set_write_timeout(None);
                let serve = |()| {
                    transmission::serve(&Transmission {
                        stream: &stream,
                        agreement: &agreement,
                        request_max: limits.request_bytes,
                        is_stopping: &self.is_stopping,
                        report: &|error| {
                            self.notify(&Event::Failed {
                                export: name,
                                error,
                            })
                        },
                    })
                };
                unbounded.map_err(Error::from).and_then(serve)
            }
        };
        stream.close();
        result
    }
}
