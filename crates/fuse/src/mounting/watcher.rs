//! A process that unmounts after this one has ended without doing so (`auto_unmount`).
//!
//! It is a shell that reads from a pipe, started before the mount. A line means that the unmount is
//! done; the end of the pipe without one means that this process was killed. Then it probes the
//! mount point and unmounts a dead mount: if something else has been mounted there, the probe
//! succeeds, and that mount is not unmounted.
//!
//! `fusermount3` has such an option as well. It works for root and with `allow_other` only, because
//! it probes the mount with insufficient rights.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use extant_space::{Error, Result};

/// Its argument is the mount point. A `statfs` always reaches the server. While io_uring queues are
/// torn down, it may return any error for a moment.
const SCRIPT: &str = r#"
read -r word && exit
for again in 1 2 3 4 5 6 7 8 9; do
    answer=$(stat -f -- "$1" 2>&1 >/dev/null) && exit
    case $answer in *'not connected'* | *'connection abort'*) break ;; esac
    sleep 1
done
case $answer in *'not connected'* | *'connection abort'*) ;; *) exit ;; esac
umount -l -- "$1" || fusermount3 -u -z -- "$1"
"#;

/// The process.
#[derive(Debug)]
pub(super) struct Watcher {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Watcher {
    /// Starts a watcher for the future mount at `directory`.
    pub fn start(directory: &Path) -> Result<Self> {
        let mut process = Command::new("sh")
            .args(["-c", SCRIPT, "extant-auto-unmount"])
            .arg(directory)
            .env("LC_ALL", "C")
            .current_dir("/")
            // Signals of the terminal must not end it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::from(error).at("sh").during("start"))?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }
}

impl Drop for Watcher {
    /// Ends the process: nothing is left to unmount.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // The process may have ended already.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.process.wait();
    }
}
