//! The byte stream of a connection, plain or encrypted by TLS.
//!
//! Callers ensure that at most one thread reads and one writes. With TLS both share the state of
//! the connection; its lock is held while bytes are encrypted or decrypted, never during socket
//! I/O.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustls::Connection;

use crate::socket::{Socket, Wait};

/// Encrypted bytes that are read, and approximately that are written, at a time.
const CIPHERTEXT_BYTES: usize = 64 << 10;
/// Time limit for sending the TLS close notification.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The byte stream of a connection.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<Socket>,
    tls: Option<TlsLayer>,
}

#[derive(Debug)]
struct TlsLayer {
    connection: Mutex<Connection>,
    received: Mutex<Received>,
}

/// Encrypted bytes that are not decrypted yet.
#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Stream {
    /// A plain stream.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self { socket, tls: None }
    }

    /// TLS is on.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Starts TLS with the next byte, as a server or a client.
    pub fn start_tls(&mut self, mut connection: Connection, deadline: Instant) -> io::Result<()> {
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
                bytes: vec![0; CIPHERTEXT_BYTES],
                start: 0,
                end: 0,
            }),
        });
        Ok(())
    }

    /// Reads some bytes; 0 at the end of the stream. `into` is not empty.
    pub fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            None => self.socket.read(into, wait),
            Some(tls) => tls.read(&self.socket, into, wait),
        }
    }

    /// The socket's receive buffer is not empty.
    pub fn has_input(&self) -> bool {
        self.socket.has_input()
    }

    /// For polling. It does not report plaintext that the TLS layer has buffered; a non-blocking
    /// read does.
    pub fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Fills `into`.
    pub fn read_exact(&self, mut into: &mut [u8], wait: Wait) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into, wait)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => into = &mut into[bytes..],
            }
        }
        Ok(())
    }

    /// Writes all of `parts`, and advances them.
    pub fn write(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        match &self.tls {
            None => self.socket.write(parts),
            Some(tls) => tls.write(&self.socket, parts),
        }
    }

    /// Limits how long a blocking read and a write may wait.
    pub fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)?;
        self.socket.set_write_timeout(timeout)
    }

    /// Makes every current and later read and write fail.
    pub fn abort(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    /// Ends the stream in both directions; nothing is written or read afterwards.
    pub fn close(&self) {
        if let Some(tls) = &self.tls {
            tls.lock().send_close_notify();
            // Best effort: the client may have disconnected, or may not read.
            let _ = self.socket.set_write_timeout(Some(CLOSE_TIMEOUT));
            let _ = tls.write(&self.socket, &mut []);
        }
        self.socket.shutdown(Shutdown::Both);
    }
}

impl TlsLayer {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock()
    }

    fn read(&self, socket: &Socket, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let mut received = self.received.lock();
        loop {
            let mut connection = self.lock();
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Data, an announced end, or an unexpected one.
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
                // Accepts no more than its buffer holds.
                let taken = connection.writer().write(rest)?;
                rest = &rest[taken..];
                drain(&mut connection, &mut ciphertext)?;
                drop(connection);
                if ciphertext.len() >= CIPHERTEXT_BYTES {
                    socket.write(&mut [IoSlice::new(&ciphertext)])?;
                    ciphertext.clear();
                }
            }
        }
        // Messages of the TLS protocol itself.
        drain(&mut self.lock(), &mut ciphertext)?;
        socket.write(&mut [IoSlice::new(&ciphertext)])
    }
}

fn drain(connection: &mut Connection, into: &mut Vec<u8>) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(into)?;
    }
    Ok(())
}

/// A socket during the TLS handshake, with a deadline.
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
