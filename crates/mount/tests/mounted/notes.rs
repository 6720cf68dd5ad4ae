//! Results of calls, as text that can be compared.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::io::Errno;

/// Longer than a tick of the clock that file systems use.
const TICK: Duration = Duration::from_millis(12);

/// The notes of a case, and the directory that it has for itself.
pub struct Notes {
    directory: PathBuf,
    lines: Vec<String>,
}

impl Notes {
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            lines: Vec::new(),
        }
    }

    pub fn lines(self) -> Vec<String> {
        self.lines
    }

    /// A path in the directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Records a value that must be equal everywhere.
    pub fn note(&mut self, what: &str, value: impl Debug) {
        self.lines.push(format!("{what}: {value:?}"));
    }

    /// Notes whether a call succeeded, or its error.
    pub fn call<T, E: Into<Failure>>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => {
                self.lines.push(format!("{what}: ok"));
                Some(value)
            }
            Err(error) => {
                self.lines.push(format!("{what}: {:?}", error.into().0));
                None
            }
        }
    }

    /// Records the answer of a call.
    pub fn answer<T: Debug, E: Into<Failure>>(&mut self, what: &str, result: Result<T, E>) {
        let line = match result {
            Ok(value) => format!("{what}: {value:?}"),
            Err(error) => format!("{what}: {:?}", error.into().0),
        };
        self.lines.push(line);
    }

    /// Records the output of `stat` for a name, without inode numbers and times.
    pub fn stat(&mut self, name: &str) {
        let shown = self.look(name).map(|stat| {
            format!(
                "mode {:o}, links {}, owner {}:{}, size {}, blocks {}, block size {}, device {}:{}",
                stat.stx_mode,
                stat.stx_nlink,
                stat.stx_uid,
                stat.stx_gid,
                stat.stx_size,
                stat.stx_blocks,
                stat.stx_blksize,
                stat.stx_rdev_major,
                stat.stx_rdev_minor,
            )
        });
        self.answer(&format!("stat {name}"), shown);
    }

    /// The same, without values that depend on the time of write-back.
    pub fn mode(&mut self, name: &str) {
        let shown = self.look(name).map(|stat| {
            format!(
                "mode {:o}, owner {}:{}, size {}",
                stat.stx_mode, stat.stx_uid, stat.stx_gid, stat.stx_size
            )
        });
        self.answer(&format!("stat {name}"), shown);
    }

    pub fn look(&self, name: &str) -> Result<Statx, Errno> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        statx(CWD, self.at(name), AtFlags::SYMLINK_NOFOLLOW, mask)
    }

    /// Notes which times of a name an operation moves: `a`, `m`, `c`.
    pub fn moves(&mut self, what: &str, name: &str, operation: impl FnOnce(&mut Self)) {
        let times = |notes: &Self| {
            let stat = notes.look(name).unwrap();
            [stat.stx_atime, stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
        };
        let before = times(self);
        sleep(TICK);
        operation(self);
        let after = times(self);
        let moved: String = (0..3)
            .filter(|&index| before[index] != after[index])
            .map(|index| ['a', 'm', 'c'][index])
            .collect();
        self.lines.push(format!("{what} moves {moved:?} of {name}"));
    }

    /// Records the output of a shell command, run in the directory as a user.
    pub fn shell(&mut self, user: u32, script: &str) {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        command
            .current_dir(&self.directory)
            .args(["-c", script])
            .env("LC_ALL", "C");
        if user != 0 {
            command.uid(user).gid(user);
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| {
            let here = self.directory.display().to_string();
            String::from_utf8_lossy(bytes).replace(&here, "HERE")
        };
        self.lines.push(format!(
            "{user}$ {script}: {:?} {:?} {:?}",
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr)
        ));
    }
}

/// An error of either library.
pub struct Failure(Errno);

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
