//! Sockets that are listened on, connections within limits, and the end of it all.
//!
//! Each connection has threads of its own. What is shared is the list of connections, by which they are counted, and
//! ended: a shutdown closes the receiving half of each, so that what was read is finished, what still waits in the
//! socket is refused, and then the end of the stream is found.

mod address;
mod connections;
mod listener;

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};

use crate::events::{Event, Observer};
use crate::export::Exports;
use crate::handshake::{self, Terms};
use crate::socket::Socket;
use crate::stream::Stream;
use crate::tls::Tls;
use crate::transmission::{self, Transmission};
use connections::{Connections, Registered};
use listener::Listener;

pub use address::{Address, Scheme};
pub use listener::BoundSocket;

/// How long connections have that were cut, for what the device is still doing.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// What clients may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, three quarters of them from one TCP address. A new client takes the place of the oldest that has not
    /// chosen an export; where all have, it is closed at once.
    pub connections: usize,
    /// Bytes of one read or write, a power of two from 64 KiB to 1 GiB. A connection may take as much memory, and 8 MiB.
    pub request_bytes: u32,
    /// From the connection to the choice of an export.
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

/// What a server is to be like.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// What clients may use.
    pub limits: Limits,
    /// Without it nobody can have TLS.
    pub tls: Option<Tls>,
    /// Is told what happens.
    pub observer: Option<Observer>,
}

/// A running NBD server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Listener>>,
}

/// What listeners and connections have in common.
struct Shared {
    exports: Exports,
    options: ServerOptions,
    is_stopping: AtomicBool,
    connections: Connections,
}

impl Server {
    /// A server for `exports`, which nobody can reach yet.
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

    /// Takes clients at `address`, and returns the address as it is: a TCP port 0 has become one that was free.
    ///
    /// # Errors
    /// `InUse` when somebody else listens there; those of the system.
    pub fn listen(&self, address: &Address) -> Result<Address> {
        let (listener, address) = Listener::start(address, self.shared.clone())?;
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
        Ok(address)
    }

    /// Takes clients from a socket that listens already and goes on when the server ends, and returns its address, if it has one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn adopt(&self, socket: BoundSocket) -> Result<Option<Address>> {
        let address = socket.address();
        let address = address.map_err(|source| Error::from(source).during("listen"))?;
        let listener = Listener::take(socket, self.shared.clone())?;
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
        Ok(address)
    }

    /// Serves a client that is connected already.
    pub fn serve(&self, stream: UnixStream) -> Result<()> {
        Shared::start(
            &self.shared,
            Socket::Unix(stream),
            "connected before".to_owned(),
        )
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.shared.connections.count()
    }

    /// Takes no more clients and no more requests, finishes those that were read within `grace`, and flushes the
    /// devices. Clients that do not take their replies are cut off then.
    ///
    /// # Errors
    /// `InUse` when a device does not finish a request; the first error of a flush.
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        let shared = &self.shared;
        shared.is_stopping.store(true, Ordering::Relaxed);
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.drain(..).for_each(Listener::stop);
        drop(listeners);
        shared.connections.shutdown(Shutdown::Read);
        if !shared.connections.wait_for_none(grace) {
            shared.connections.shutdown(Shutdown::Both);
            if !shared.connections.wait_for_none(CUT_GRACE) {
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
            // Who wants to know the error shuts down before.
            let _ = self.shutdown(CUT_GRACE);
        }
    }
}

impl Shared {
    fn tell(&self, event: &Event<'_>) {
        if let Some(observer) = &self.options.observer {
            observer(event);
        }
    }

    /// Serves a client on a thread of its own.
    fn start(shared: &Arc<Self>, socket: Socket, peer: String) -> Result<()> {
        let socket = Arc::new(socket);
        let Some(registered) = Registered::new(shared.clone(), socket.clone()) else {
            shared.tell(&Event::Refused { peer: &peer });
            return Ok(());
        };
        let connection = thread::Builder::new().name("nbd connection".to_owned());
        let serve = move || {
            let shared = registered.shared();
            let mut result = shared.converse(socket, &peer, &registered);
            if registered.has_left() {
                result = Err(Error::new(ErrorKind::InUse)
                    .detail("made way for another client before it had chosen an export"));
            }
            shared.tell(&Event::Closed {
                peer: &peer,
                error: result.as_ref().err(),
            });
        };
        match connection.spawn(serve) {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::from(source).during("serve a client")),
        }
    }

    /// A connection from its beginning to its end.
    fn converse(&self, socket: Arc<Socket>, peer: &str, registered: &Registered) -> Result<()> {
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
            keep_place: &|| registered.keep_place(),
        };
        let agreed = handshake::negotiate(&mut stream, &terms);
        let result = match agreed {
            Ok(None) => Ok(()),
            Err(error) => Err(error),
            Ok(Some(agreement)) => {
                let name = agreement.export.name();
                self.tell(&Event::Opened { peer, export: name });
                let unbounded = socket.set_write_timeout(None);
                let serve = |()| {
                    transmission::serve(&Transmission {
                        stream: &stream,
                        agreement: &agreement,
                        request_max: limits.request_bytes,
                        is_stopping: &self.is_stopping,
                        report: &|error| {
                            self.tell(&Event::Failed {
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
