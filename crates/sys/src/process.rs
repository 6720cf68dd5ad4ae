//! Names of other processes, for messages.

use std::fs;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;

/// `qemu-nbd (pid 17)`; the name is empty where the process is not visible.
pub fn describe(pid: u32) -> String {
    format!("{} (pid {pid})", name(pid))
}

/// Name of the program, as in `/proc/PID/comm`; empty where the process is not visible.
pub fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

/// The process at the other end, described; the one that listened, where `stream` was connected.
pub fn peer(stream: &UnixStream) -> Option<String> {
    let pid = socket_peercred(stream).ok()?.pid.as_raw_nonzero();
    Some(describe(u32::try_from(pid.get()).ok()?))
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
        assert_eq!(describe(u32::MAX), format!(" (pid {})", u32::MAX));
    }
}
