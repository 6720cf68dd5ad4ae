//! Sockets opened by the parent: systemd, and clients using libnbd (`LISTEN_FDS`).

use std::io;

use extant_export::BoundSocket;
use extant_space::{Error, ErrorKind, Result};
use listenfd::ListenFd;

/// All of them; none where the program was started otherwise.
pub(super) fn sockets() -> Result<Vec<BoundSocket>> {
    let mut handed = ListenFd::from_env();
    (0..handed.len())
        .map(|at| take(&mut handed, at).map_err(|error| unusable(at, &error)))
        .collect()
}

fn take(handed: &mut ListenFd, at: usize) -> io::Result<BoundSocket> {
    // A socket of another kind is kept, and can be requested again.
    if let Ok(Some(socket)) = handed.take_unix_listener(at) {
        return Ok(BoundSocket::Unix(socket));
    }
    match handed.take_tcp_listener(at)? {
        Some(socket) => Ok(BoundSocket::Tcp(socket)),
        None => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn unusable(at: usize, error: &io::Error) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!(
            "descriptor {} of LISTEN_FDS is no stream socket: {error}",
            at + 3
        ))
        .during("take a socket")
}
