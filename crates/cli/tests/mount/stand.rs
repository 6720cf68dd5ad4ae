//! An image and the place that it is mounted at.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_sys::mounts::Mount;
use extant_testkit::busy::try_while_busy;
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::requires::{self, Requirement};
use rustix::process::{Pid, Signal, kill_process};

use crate::image::Image;
use crate::support::{Answer, Running, extant, run, wait_until};

/// Shell lines for a new namespace of mounts: mounts of other tests would remain there after their
/// unmount.
pub const LEAVE_OTHER_MOUNTS: &str = "cut -d ' ' -f 5 /proc/self/mountinfo | grep extant-test- | tac | xargs -r -n 1 umount -l || true\n";

/// Requirements of mounting.
pub fn can_mount() -> Requirement {
    let needs = [
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("mke2fs"),
    ];
    Requirement::new(
        "root, /dev/fuse and mke2fs",
        needs.iter().all(Requirement::is_met),
    )
}

pub fn umount_command(directory: &Path) -> Command {
    let mut command = extant();
    command.arg("umount").arg(directory);
    command
}

/// Runs a command that unmounts an unused mount.
#[track_caller]
pub fn patiently(command: &mut Command) -> Answer {
    let is_busy = |answer: &Answer| {
        let words = ["in use", "busy"];
        words.iter().any(|word| answer.stderr.contains(word))
    };
    let mut answer = try_while_busy(is_busy, || run(command));
    // A slow disk, of which it says so.
    let is_wait = |line: &&str| line.starts_with("extant: unmounted; waiting for");
    let lines = answer.stderr.split_inclusive('\n');
    answer.stderr = lines.filter(|line| !is_wait(line)).collect();
    answer
}

/// An image of its own. Dropping the value unmounts everything.
pub struct Stand {
    pub image: Image,
    pub directory: PathBuf,
    watchdog: RefCell<Option<FuseWatchdog>>,
}

impl Stand {
    pub fn new(mebibytes: u64) -> Self {
        Self::of(Image::new(mebibytes))
    }

    pub fn of(image: Image) -> Self {
        let directory = image.work.directory("mount");
        Self {
            image,
            directory,
            watchdog: RefCell::default(),
        }
    }

    /// One that is mounted in the background with further arguments.
    #[track_caller]
    pub fn mounted(mebibytes: u64, words: &[&str]) -> Self {
        let stand = Self::new(mebibytes);
        stand.mount(words).success();
        stand
    }

    /// `extant mount IMAGE DIR` with further arguments.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = extant();
        command.arg("mount").args(words);
        command.arg(&self.image.path).arg(&self.directory);
        command
    }

    /// Mounts in the background.
    #[track_caller]
    pub fn mount(&self, words: &[&str]) -> Answer {
        let answer = run(&mut self.command(words));
        self.watch();
        answer
    }

    /// Whatever is mounted now has a deadline.
    fn watch(&self) {
        let mut watchdog = self.watchdog.borrow_mut();
        *watchdog = None;
        if self.is_mounted() {
            *watchdog = Some(FuseWatchdog::watch(&self.directory));
        }
    }

    /// Mounts in the foreground, and waits until it is.
    #[track_caller]
    pub fn mount_in_foreground(&self) -> Running {
        let server = Running::start(&mut self.command(&["-f"]));
        wait_until("mounted", || self.is_mounted());
        self.watch();
        server
    }

    /// `extant umount DIR`.
    #[track_caller]
    pub fn umount(&self) -> Answer {
        patiently(&mut umount_command(&self.directory))
    }

    /// The same for a mount in use.
    #[track_caller]
    pub fn umount_in_use(&self) -> Answer {
        run(&mut umount_command(&self.directory))
    }

    /// Unmounts, and no check finds an error.
    #[track_caller]
    pub fn end(self) {
        self.umount().success();
        assert!(!self.is_mounted());
        self.assert_closed();
    }

    /// The image is clean, and its journal empty.
    #[track_caller]
    pub fn assert_closed(&self) {
        assert!(!self.needs_recovery());
        self.image.assert_clean();
    }

    #[track_caller]
    pub fn needs_recovery(&self) -> bool {
        let dump = self.image.fs(&["dump", "--journal", "--json", "IMAGE"]);
        dump.success().json()["journal"]["needs_recovery"] == true
    }

    /// A path in the mount. A test that asks makes progress.
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        if let Some(watchdog) = self.watchdog.borrow().as_ref() {
            watchdog.progress();
        }
        self.directory.join(name.as_ref())
    }

    /// The kernel's mount at the directory.
    pub fn seen(&self) -> Option<Mount> {
        mount_at(&self.directory)
    }

    pub fn is_mounted(&self) -> bool {
        self.seen().is_some()
    }

    /// `extant COMMAND WORDS` on a file inside the mount, which is named last.
    #[track_caller]
    pub fn extant(&self, words: &[&str], name: &str) -> Answer {
        run(extant().args(words).arg(self.path(name)))
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        while let Some(mount) = self.seen() {
            if extant_fuse::unmount(&mount.point, extant_fuse::Busy::Detach).is_err() {
                break;
            }
        }
    }
}

pub fn mount_at(directory: &Path) -> Option<Mount> {
    Mount::at(directory).unwrap()
}

/// Sends a signal to a server that is no child.
#[track_caller]
pub fn send(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Waits until a process that is no child has ended.
#[track_caller]
pub fn wait_for_end(pid: u64) {
    let process = format!("/proc/{pid}");
    let threads = || fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
    let stat = || fs::read_to_string(format!("{process}/stat")).unwrap_or_default();
    // A zombie counts as ended, with the last of its threads.
    wait_until("the end of the server", || match threads() {
        0 => true,
        1 => stat().contains(") Z "),
        _ => false,
    });
}
