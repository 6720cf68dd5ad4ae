//! Names of other processes, for messages.

use std::fs;
use std::os::unix::net::UnixStream;

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
