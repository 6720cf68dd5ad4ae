//! A server, its exports, and clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use extant_testkit::command::{self, tool};
use extant_testkit::oracle;
use extant_testkit::workdir::Workdir;
use rustix::process::Signal;

use crate::support::{Answer, MIB, Running, extant, noise, wait_until};

/// A directory with files to serve.
pub struct Stand {
    pub work: Workdir,
}

impl Stand {
    pub fn new() -> Self {
        Self {
            work: Workdir::new(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// A sparse file.
    pub fn sparse(&self, name: &str, mebibytes: u64) -> PathBuf {
        let path = self.path(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(mebibytes * MIB).unwrap();
        path
    }

    /// A file full of data.
    pub fn data(&self, name: &str, seed: u64, mebibytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, noise(seed, (mebibytes * MIB) as usize)).unwrap();
        path
    }

    /// `extant serve` in the directory.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = extant();
        command.arg("serve").args(words);
        command.current_dir(self.work.path());
        command
    }

    /// A server with the socket `s`, ready for clients.
    #[track_caller]
    pub fn serve(&self, words: &[&str]) -> Serving {
        let word = self.path("s.pid");
        let mut command = self.command(&["--socket", "s", "--pid-file", "s.pid"]);
        let mut running = Running::start(command.args(words));
        wait_until("the server's word", || word.exists() || !running.is_alive());
        assert!(word.exists(), "{}", running.wait());
        Serving {
            running,
            socket: self.path("s"),
        }
    }
}

/// A server at work.
pub struct Serving {
    pub running: Running,
    pub socket: PathBuf,
}

impl Serving {
    /// The URI of an export.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    /// Ends it in order.
    #[track_caller]
    pub fn end(self) -> Answer {
        let (answer, _) = self.running.stop(Signal::TERM);
        assert_eq!(answer.code, Some(0), "{answer}");
        assert!(!self.socket.exists(), "the socket is left: {answer}");
        answer
    }
}

/// Output of a tool that succeeds.
#[track_caller]
pub fn said(command: &mut Command) -> String {
    command::text(command).unwrap_or_else(|failure| panic!("{failure}"))
}

/// `qemu-io` on a raw export, with commands.
#[track_caller]
pub fn qemu_io(uri: &str, commands: &[&str]) -> String {
    oracle::qemu::qemu_io(uri, "raw", commands)
}

/// Python code with a handle `h` that is connected to the URI.
pub fn nbdsh(uri: &str, code: &str) -> Command {
    let mut command = tool("nbdsh");
    // The distribution's Python has the module, where there are others.
    command.env("PATH", "/usr/bin:/bin");
    command.args(["-u", uri, "-c", code]);
    command
}

/// The size of an export.
#[track_caller]
pub fn size(uri: &str) -> u64 {
    let text = said(tool("nbdinfo").args(["--size", uri]));
    text.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Both files hold the same.
#[track_caller]
pub fn assert_same(a: &Path, b: &Path) {
    let same = std::fs::read(a).unwrap() == std::fs::read(b).unwrap();
    assert!(same, "{} and {} differ", a.display(), b.display());
}
