//! Connected sockets, with a deadline.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::socket::Socket;
use crate::uri::NbdTransport;

/// Pause before the next attempt while the queue of a Unix socket is full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// Connects to the server; name resolution has the system's own time limit.
pub(crate) fn dial(transport: &NbdTransport, timeout: Duration) -> io::Result<Socket> {
    let deadline = Instant::now() + timeout;
    let socket = match transport {
        NbdTransport::Unix(path) => Socket::Unix(dial_unix(path, deadline)?),
        NbdTransport::Tcp { host, port } => Socket::Tcp(dial_tcp(host, *port, deadline)?),
    };
    socket.prepare();
    Ok(socket)
}

/// The kernel blocks without a limit when the queue of a listening Unix socket is full, unless the
/// socket is non-blocking.
fn dial_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                thread::sleep(FULL_QUEUE_PAUSE);
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn dial_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
