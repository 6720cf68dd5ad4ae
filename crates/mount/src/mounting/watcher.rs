//! A process that unmounts when this one is gone without having done so (`auto_unmount`).
//!
//! It is a shell that reads from a pipe, and there before the mount is. A line means that all is done; the end of the pipe without one
//! means that this process was killed. Then it asks what is mounted there, and unmounts what is dead: if somebody
//! has mounted something else meanwhile, that answers, and stays.
//!
//! `fusermount3` has such an option as well. It works for root and with `allow_other` only, as it looks whether the mount is dead with
//! rights that may not look.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use extant_space::{Error, Result};

/// Its argument is the directory. To ask for the state of the file system always asks its server. While queues of io_uring
/// go down, what it is told may be any error for a moment.
const SCRIPT: &str = r#"
read -r word && exit
for again in 1 2 3 4 5 6 7 8 9; do
    told=$(stat -f -- "$1" 2>&1 >/dev/null) && exit
    case $told in *'not connected'* | *'connection abort'*) break ;; esac
    sleep 1
done
case $told in *'not connected'* | *'connection abort'*) ;; *) exit ;; esac
umount -l -- "$1" || fusermount3 -u -z -- "$1"
"#;

/// The process.
#[derive(Debug)]
pub(super) struct Watcher {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Watcher {
    /// Starts one for what will be mounted at `directory`.
    pub fn start(directory: &Path) -> Result<Self> {
        let mut process = Command::new("sh")
            .args(["-c", SCRIPT, "extant-auto-unmount"])
            .arg(directory)
            .env("LC_ALL", "C")
            .current_dir("/")
            // A signal from the terminal is not for it.
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
    /// There is nothing left to unmount.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // One that is gone already has nothing to do either.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.process.wait();
    }
}
