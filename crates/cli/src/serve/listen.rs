//! Addresses for clients: addresses by their names, and sockets that were handed over.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::absolute;

use extant_export::{Address, BoundSocket, Server};
use extant_space::{Error, ErrorKind, Result};

use super::ServeArgs;

/// The port that the protocol has been given.
const PORT: u16 = 10809;

/// Listens everywhere: on the sockets handed over, and at the addresses of the arguments.
pub(super) fn listen(
    args: &ServeArgs,
    handed: Vec<BoundSocket>,
    server: &Server,
) -> Result<Vec<Address>> {
    let mut addresses = Vec::new();
    for socket in handed {
        addresses.extend(server.adopt(socket)?);
    }
    for path in &args.socket {
        // It is removed at the end, when the server may be elsewhere.
        let path = absolute(path).map_err(|error| Error::from(error).at(path))?;
        addresses.push(server.listen(&Address::Unix(path))?);
    }
    for text in &args.listen {
        addresses.push(listen_at_first(server, text)?);
    }
    Ok(addresses)
}

/// A port that other machines may reach.
pub(super) fn public_port(addresses: &[Address]) -> Option<SocketAddr> {
    addresses.iter().find_map(|address| match address {
        Address::Tcp(port) if !port.ip().is_loopback() => Some(*port),
        _ => None,
    })
}

/// The first address of a name that accepts a listener.
fn listen_at_first(server: &Server, text: &str) -> Result<Address> {
    let mut failure = None;
    for address in resolve(text)? {
        match server.listen(&Address::Tcp(address)) {
            Ok(address) => return Ok(address),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| unknown(text, "no address")))
}

fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
    let resolved = match text.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => {
            // Without a port, IPv6 in brackets or not.
            let host = text.trim_start_matches('[').trim_end_matches(']');
            let addresses = (host, PORT).to_socket_addrs();
            addresses.map(Iterator::collect).map_err(|_| error)
        }
    };
    resolved.map_err(|error| unknown(text, &error.to_string()))
}

fn unknown(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!("cannot listen on {text:?}: {why}"))
        .advice("give HOST:PORT, such as 127.0.0.1:10809")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_has_a_default_and_nonsense_is_refused() {
        for (text, wanted) in [
            ("127.0.0.1", "127.0.0.1:10809"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]", "[::1]:10809"),
            ("::1", "[::1]:10809"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(resolve(text).unwrap(), [wanted.parse().unwrap()], "{text}");
        }
        for text in ["", "127.0.0.1:99999", "no such host"] {
            let error = resolve(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
}
