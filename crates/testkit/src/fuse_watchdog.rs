//! A deadline for a test on a FUSE mount.
//!
//! A program that waits for a page of a mount whose server does not answer cannot be killed, and neither can the server then: only
//! an abort of the connection ends the wait. The watchdog aborts the connection when the test neither ends nor shows progress for
//! `LIMIT`, or is killed. If the test does not end after that, it is killed.
//!
//! It is a process of its own: a thread would die with a test that is killed, and the connection would then stay for ever.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time without progress after which the connection is aborted.
const LIMIT: Duration = Duration::from_secs(60);
/// Time after which a test that goes on without its connection is killed.
const GRACE: Duration = Duration::from_secs(30);

/// Reads one byte at a time: `p` is progress, `d` is the end. No byte means that the test process is gone.
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

    /// Watches a mount that a process in another namespace of mounts sees at `place`.
    ///
    /// # Panics
    /// When nothing is mounted there.
    #[track_caller]
    pub fn watch_in(process: u32, place: &Path) -> Self {
        let connection = connection(process, place)
            .unwrap_or_else(|| panic!("nothing is mounted at {}", place.display()));
        let process = Command::new("sh")
            .args(["-c", SCRIPT])
            .env("limit", LIMIT.as_secs().to_string())
            .env("grace", GRACE.as_secs().to_string())
            .env("place", place)
            .env("test", std::process::id().to_string())
            .env("abort", control(connection))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("the watchdog: {error}"));
        Self(process)
    }

    /// The test makes progress: the time starts again.
    pub fn progress(&self) {
        self.tell(b"p");
    }

    fn tell(&self, word: &[u8]) {
        if let Some(mut pipe) = self.0.stdin.as_ref() {
            // After an abort nobody reads it any more.
            let _ = pipe.write_all(word);
        }
    }
}

impl Drop for FuseWatchdog {
    fn drop(&mut self) {
        self.tell(b"d");
        let _ = self.0.wait();
    }
}

/// The number of the connection of what is mounted at `place`, by the table of mounts: a look at the place could wait for
/// the server.
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

/// The file that aborts a connection. The control files are mounted where they are not.
fn control(connection: u32) -> String {
    let folder = "/sys/fs/fuse/connections";
    let file = format!("{folder}/{connection}/abort");
    if !Path::new(&file).exists() {
        let _ = Command::new("mount")
            .args(["-t", "fusectl", "fusectl", folder])
            .stderr(Stdio::null())
            .status();
    }
    file
}
