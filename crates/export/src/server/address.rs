//! Where a server listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A place that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system. One that a server left that is gone is replaced.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    /// As a URI, without an export: `nbd+unix:///?socket=...`, `nbd://127.0.0.1:10809/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Self::Tcp(address) => write!(f, "nbd://{address}/"),
        }
    }
}
