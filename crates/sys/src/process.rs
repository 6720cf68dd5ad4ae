//! Names of other processes, for messages.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// `qemu-nbd (pid 17)`.
pub fn describe(pid: u32) -> String {
    match name(pid).as_str() {
        "" => format!("a process (pid {pid})"),
        name => format!("{name} (pid {pid})"),
    }
}

/// Name of the program, as in `/proc/PID/comm`; empty where the process is not visible.
pub fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

/// The visible processes but this one, by number.
pub fn others() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<u32> = numbers.filter(|&pid| pid != std::process::id()).collect();
    found.sort_unstable();
    found
}

/// The process that listens at a TCP port of this machine, described; `None` where it is not
/// visible, as those of other users are without privileges.
pub fn tcp_listener(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let listening = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, of_line) = fields.get(1)?.rsplit_once(':')?;
        let is_wanted =
            u16::from_str_radix(of_line, 16) == Ok(port) && fields.get(3) == Some(&TCP_LISTEN);
        is_wanted.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    };
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    let sockets: Vec<String> = lines.filter_map(listening).collect();
    let has_one = |pid: u32| {
        let opened = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"));
        let mut opened = opened.into_iter().flatten().flatten();
        opened.any(|entry| {
            let target = fs::read_link(entry.path());
            target.is_ok_and(|target| sockets.iter().any(|socket| target == Path::new(socket)))
        })
    };
    let own = std::iter::once(std::process::id());
    let found = own.chain(others()).find(|&pid| has_one(pid));
    found.map(describe)
}

/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// The process at the other end, described; the one that listened, where `stream` was connected.
/// `None` for a process of another PID namespace.
pub fn peer(stream: &UnixStream) -> Option<String> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    let pid = u32::try_from(peer.pid()).ok().filter(|&pid| pid != 0)?;
    Some(describe(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_of_a_tcp_port_is_named() {
        let own = describe(std::process::id());
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else {
                // A machine without IPv6.
                assert_ne!(address, "127.0.0.1:0");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            assert_eq!(tcp_listener(port).as_ref(), Some(&own), "{address}");
        }
        // Nothing listens there.
        assert_eq!(tcp_listener(0), None);
    }

    #[test]
    fn peer_is_named_with_its_number() {
        let (near, _far) = UnixStream::pair().unwrap();
        let own = std::process::id();
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            peer(&near),
            Some(format!("{} (pid {own})", comm.trim_end()))
        );
        assert_eq!(describe(u32::MAX), "a process (pid 4294967295)");
    }
}
