//! A private libvirtd, and virsh connected to it.
//!
//! The daemon runs as an unprivileged user ([`NOBODY`]) with all its directories below a temporary
//! one. It needs no system service and is isolated from the system's daemon.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::requires::{self, Requirement};
use crate::user::{NOBODY, as_user};
use crate::workdir::Workdir;

/// Requirements of a test or bench with a daemon, besides root.
pub const PROGRAMS: [&str; 3] = ["libvirtd", "virsh", "setpriv"];
/// Time limit of its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A daemon at work. Ended when dropped.
#[derive(Debug)]
pub struct Libvirt {
    // Ended before its directory is removed.
    daemon: Child,
    work: Workdir,
}

impl Libvirt {
    /// Root, and the programs.
    pub fn requirement() -> Requirement {
        let programs = PROGRAMS.map(requires::tool);
        let met = requires::root().is_met() && programs.iter().all(Requirement::is_met);
        Requirement::new(format!("root, {}", PROGRAMS.join(", ")), met)
    }

    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn start() -> Self {
        let work = Workdir::new();
        for name in ["run", "home"] {
            give(&work.directory(name));
        }
        let log = work.path().join("log");
        let log_file = File::create(&log).expect("a new file");
        let mut command = as_user(&command::find("libvirtd").expect("libvirtd"));
        set_directories(&mut command, work.path());
        let daemon = command.stdout(Stdio::null()).stderr(log_file).spawn();
        let daemon = daemon.unwrap_or_else(|error| panic!("libvirtd: {error}"));
        let libvirt = Self { daemon, work };
        let start = Instant::now();
        while command::run(libvirt.virsh().arg("uri")).is_err() {
            assert!(
                start.elapsed() < START_TIMEOUT,
                "libvirtd does not answer: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(10));
        }
        libvirt
    }

    /// Its directory, which [`NOBODY`] may enter. The names `run`, `home` and `log` are reserved.
    pub fn work(&self) -> &Workdir {
        &self.work
    }

    /// Makes a directory in it that is [`NOBODY`]'s.
    #[track_caller]
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.work.directory(name);
        give(&directory);
        directory
    }

    /// The home directory, from which the daemon reads its configuration.
    pub fn home(&self) -> PathBuf {
        self.work.path().join("home")
    }

    /// `virsh`, connected to the daemon, without further arguments.
    pub fn virsh(&self) -> Command {
        let mut command = command::tool("virsh");
        let socket = self.work.path().join("run/libvirt/libvirt-sock");
        let uri = format!("storage+unix:///session?socket={}", socket.display());
        command.args(["-q", "-c", &uri]).stdin(Stdio::null());
        set_directories(&mut command, self.work.path());
        command
    }

    /// Output of `virsh`.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        let printed = command::text(self.virsh().args(words));
        printed.unwrap_or_else(|failure| panic!("{failure}"))
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let _ = self.daemon.wait();
    }
}

/// Changes a directory's owner to [`NOBODY`] and its mode to 755.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn give(directory: &Path) {
    let given = chown(directory, Some(NOBODY), Some(NOBODY))
        .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o755)));
    given.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
}

fn set_directories(command: &mut Command, work: &Path) {
    for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        command.env(variable, work.join("home"));
    }
    command.env("XDG_RUNTIME_DIR", work.join("run"));
}
