//! Bytes on a connection, in the clear or by TLS.
//!
//! One thread reads and one writes at a time, which their callers see to; with TLS both share the connection's
//! state, whose lock is held while bytes are encrypted or decrypted, and never during I/O on the socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection};

use crate::socket::{Socket, Wait};

/// Encrypted bytes that are read, and about as many that are written, at a time.
const CIPHERTEXT: usize = 64 << 10;
/// How long the end of a stream may take to be said.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Stream {
    socket: Arc<Socket>,
    tls: Option<TlsLayer>,
}

#[derive(Debug)]
struct TlsLayer {
    connection: Mutex<ServerConnection>,
    received: Mutex<Received>,
}

/// Encrypted bytes that were read and not yet decrypted.
#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Stream {
    /// Bytes in the clear.
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self { socket, tls: None }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Goes over to TLS, from the next byte on.
    pub(crate) fn start_tls(
        &mut self,
        config: Arc<ServerConfig>,
        deadline: Instant,
    ) -> io::Result<()> {
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut socket = Handshaking {
            socket: &self.socket,
            deadline,
        };
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        self.tls = Some(TlsLayer {
            connection: Mutex::new(connection),
            received: Mutex::new(Received {
                bytes: vec![0; CIPHERTEXT],
                start: 0,
                end: 0,
            }),
        });
        Ok(())
    }

    /// Some bytes; none at the end. `into` is not empty.
    pub(crate) fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            None => self.socket.read(into, wait),
            Some(tls) => tls.read(&self.socket, into, wait),
        }
    }

    /// Bytes, encrypted or not, wait in the socket.
    pub(crate) fn has_input(&self) -> bool {
        self.socket.has_input()
    }

    /// Readable when there are bytes to be read, but for those of TLS that were received before: a read that does not wait
    /// says whether there are some.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Fills `into`.
    pub(crate) fn read_exact(&self, mut into: &mut [u8], wait: Wait) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into, wait)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => into = &mut into[bytes..],
            }
        }
        Ok(())
    }

    /// Writes all of `parts`, which are used up.
    pub(crate) fn write(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        match &self.tls {
            None => self.socket.write(parts),
            Some(tls) => tls.write(&self.socket, parts),
        }
    }

    /// Lets all who read or write find the end.
    pub(crate) fn abort(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    /// Ends the stream in both directions; nothing is written or read afterwards.
    pub(crate) fn close(&self) {
        if let Some(tls) = &self.tls {
            tls.lock().send_close_notify();
            // Who has gone needs no farewell, and who does not listen is not waited for.
            let _ = self.socket.set_write_timeout(Some(FAREWELL));
            let _ = tls.write(&self.socket, &mut []);
        }
        self.socket.shutdown(Shutdown::Both);
    }
}

impl TlsLayer {
    fn lock(&self) -> MutexGuard<'_, ServerConnection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, socket: &Socket, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut connection = self.lock();
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Bytes, the end that was announced, or one that was not.
                result => return result,
            }
            let Received { bytes, start, end } = &mut *received;
            if start == end {
                drop(connection);
                *end = socket.read(bytes, wait)?;
                *start = 0;
                connection = self.lock();
            }
            let mut rest = &bytes[*start..*end];
            *start += connection.read_tls(&mut rest)?;
            connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn write(&self, socket: &Socket, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut ciphertext = Vec::new();
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                let mut connection = self.lock();
                // Takes no more than fits its buffer.
                let taken = connection.writer().write(rest)?;
                rest = &rest[taken..];
                drain(&mut connection, &mut ciphertext)?;
                drop(connection);
                if ciphertext.len() >= CIPHERTEXT {
                    socket.write(&mut [IoSlice::new(&ciphertext)])?;
                    ciphertext.clear();
                }
            }
        }
        // What the protocol itself has to say as well.
        drain(&mut self.lock(), &mut ciphertext)?;
        socket.write(&mut [IoSlice::new(&ciphertext)])
    }
}

fn drain(connection: &mut ServerConnection, into: &mut Vec<u8>) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(into)?;
    }
    Ok(())
}

/// A socket while the parties get to know each other.
struct Handshaking<'a> {
    socket: &'a Socket,
    deadline: Instant,
}

impl Read for Handshaking<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.read(into, Wait::Until(self.deadline))
    }
}

impl Write for Handshaking<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.write(&mut [IoSlice::new(from)])?;
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
