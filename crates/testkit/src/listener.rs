//! Unix sockets of servers that were just started.
//!
//! The path exists before the server listens, and a connection in between is refused. The kernel's
//! list of sockets shows the difference without a connection, which the server would notice.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// `SO_ACCEPTCON`, in the fourth column of `/proc/net/unix`.
const LISTENING: &str = "00010000";

/// Waits until a server listens on the Unix socket `path`.
///
/// # Panics
/// When none does in time.
#[track_caller]
pub fn wait_for(path: &Path) {
    let start = Instant::now();
    while !is_listening(path) {
        let shown = path.display();
        assert!(start.elapsed() < START_TIMEOUT, "no server at {shown}");
        thread::sleep(POLL_INTERVAL);
    }
}

fn is_listening(path: &Path) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").expect("the kernel lists its sockets");
    sockets.lines().any(|line| {
        let mut columns = line.split_whitespace();
        columns.nth(3) == Some(LISTENING) && columns.nth(3).is_some_and(|at| Path::new(at) == path)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_listens_until_it_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert!(!is_listening(&path));
        let listener = UnixListener::bind(&path).unwrap();
        wait_for(&path);
        drop(listener);
        assert!(path.exists() && !is_listening(&path));
    }
}
