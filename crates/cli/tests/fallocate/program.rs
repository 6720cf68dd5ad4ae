//! The two programs, run the same way.

use std::path::Path;
use std::process::{Command, Output};

use extant_testkit::newer;

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// util-linux.
    Real,
    /// This project.
    Ours,
}

impl Program {
    /// Ready for arguments, with the same name and language of messages.
    pub fn command(self) -> Command {
        match self {
            Self::Real => newer::fallocate(),
            Self::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
                command.arg("fallocate").env("LC_ALL", "C");
                command
            }
        }
    }

    /// Runs it with `arguments` in `directory`.
    #[track_caller]
    pub fn run(self, directory: &Path, arguments: &[&str]) -> Answer {
        Answer::of(self.command().args(arguments).current_dir(directory))
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Answer {
    /// Runs `command` to its end.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let Output {
            status,
            stdout,
            stderr,
        } = command
            .output()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            status: status.code(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// The same, if util-linux has its own message for an error number.
    pub fn plain(mut self) -> Self {
        let own = "keep size mode is unsupported";
        self.stderr = self.stderr.replace(own, "Operation not supported");
        self
    }

    /// Text after the last colon: that of the error number.
    pub fn cause(&self) -> &str {
        self.stderr.trim_end().rsplit(": ").next().unwrap()
    }
}
