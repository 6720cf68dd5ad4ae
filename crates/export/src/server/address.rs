//! Listening addresses and their URIs.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system. A stale one of a terminated server is replaced.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// URI scheme: whether clients must use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `nbd`, `nbd+unix`
    Clear,
    /// `nbds`, `nbds+unix`
    Tls,
}

impl Address {
    /// The [NBD URI](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md) of an
    /// export at this address; the empty name is the default export.
    pub fn uri(&self, export: &str, scheme: Scheme) -> String {
        let name = escape(export.as_bytes());
        let scheme = match scheme {
            Scheme::Clear => "nbd",
            Scheme::Tls => "nbds",
        };
        match self {
            Self::Unix(path) => {
                let socket = escape(path.as_os_str().as_bytes());
                format!("{scheme}+unix:///{name}?socket={socket}")
            }
            Self::Tcp(address) => format!("{scheme}://{address}/{name}"),
        }
    }
}

impl fmt::Display for Address {
    /// As a URI, without an export: `nbd+unix:///?socket=...`, `nbd://127.0.0.1:10809/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri("", Scheme::Clear))
    }
}

/// Percent-encodes a path segment or query value (RFC 3986).
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' | b',' => text.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_escapes_name_and_socket() {
        let unix = Address::Unix("/run/a b&c.sock".into());
        let uri = unix.uri("größe/1?", Scheme::Clear);
        assert_eq!(
            uri,
            "nbd+unix:///gr%C3%B6%C3%9Fe/1%3F?socket=/run/a%20b%26c.sock"
        );
        let tcp = Address::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(tcp.uri("", Scheme::Tls), "nbds://[::1]:10809/");
        assert_eq!(tcp.to_string(), "nbd://[::1]:10809/");
    }
}
