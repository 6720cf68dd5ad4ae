//! A deadline for a test on a FUSE mount.
//!
//! A process that waits for a page of a hung FUSE server is in uninterruptible sleep; only an abort
//! of the connection wakes it. The watchdog aborts the connection if the test is killed, or reports
//! no progress for `PROGRESS_TIMEOUT`. If the test then does not end, the watchdog kills it.
//!
//! It is a separate process, because a thread would end with a killed test and leave the
//! connection.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time without progress after which the connection is aborted.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after the abort until the test is killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads one byte at a time: `p` is progress, `d` is the end. End of file: the test has ended.
const SCRIPT: &str = r#"
next() { timeout "$1" dd bs=1 count=1 2>/dev/null; }
while word=$(next "$limit"); do
    case $word in d) exit ;; p) ;; *) is_gone=1; break ;; esac
done
echo "watchdog: no progress for $limit s, aborting the FUSE connection at $place" >&2
echo 1 >"$abort"
[ "$is_gone" ] && exit
while word=$(next "$grace"); do
    case $word in d|'') exit ;; esac
done
echo "watchdog: killing the test process $test" >&2
kill -KILL "$test"
"#;

/// Watches one mount until it is dropped.
#[derive(Debug)]
pub struct FuseWatchdog(Child);

impl FuseWatchdog {
    /// Watches the FUSE mount at `place`.
    ///
    /// # Panics
    /// When nothing is mounted there.
    #[track_caller]
    pub fn watch(place: &Path) -> Self {
        Self::watch_in(std::process::id(), place)
    }

    /// Watches a mount at `place` in the mount namespace of `process`.
    ///
    /// # Panics
    /// When nothing is mounted there.
    #[track_caller]
    pub fn watch_in(process: u32, place: &Path) -> Self {
        let connection = connection(process, place)
            .unwrap_or_else(|| panic!("nothing is mounted at {}", place.display()));
        let process = Command::new("sh")
            .args(["-c", SCRIPT])
            .env("limit", PROGRESS_TIMEOUT.as_secs().to_string())
            .env("grace", KILL_TIMEOUT.as_secs().to_string())
            .env("place", place)
            .env("test", std::process::id().to_string())
            .env("abort", control(connection))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("the watchdog: {error}"));
        Self(process)
    }

    /// Reports progress: restarts the timeout.
    pub fn progress(&self) {
        self.send(b"p");
    }

    fn send(&self, word: &[u8]) {
        if let Some(mut pipe) = self.0.stdin.as_ref() {
            // After an abort the pipe has no reader.
            let _ = pipe.write_all(word);
        }
    }
}

impl Drop for FuseWatchdog {
    fn drop(&mut self) {
        self.send(b"d");
        let _ = self.0.wait();
    }
}

/// The FUSE connection of the mount at `place`, from mountinfo: `stat` could block on the server.
fn connection(process: u32, place: &Path) -> Option<u32> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()?;
    let line = table.lines().rfind(|line| {
        let seen = line.split(' ').nth(4).unwrap_or_default();
        let seen = seen.replace("\\040", " ").replace("\\134", "\\");
        Path::new(&seen) == place
    })?;
    let (_, minor) = line.split(' ').nth(2)?.split_once(':')?;
    minor.parse().ok()
}

/// The file that aborts a connection; mounts fusectl if necessary.
fn control(connection: u32) -> String {
    let directory = "/sys/fs/fuse/connections";
    let file = format!("{directory}/{connection}/abort");
    if !Path::new(&file).exists() {
        let _ = Command::new("mount")
            .args(["-t", "fusectl", "fusectl", directory])
            .stderr(Stdio::null())
            .status();
    }
    file
}
