//! The directory of one run, removed at its end, also by Ctrl-C.
//!
//! The next run in the same parent removes the directory of a killed one: the name contains the
//! process id.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::children;
use crate::product;

const PREFIX: &str = "extant-bench-";
/// Exit status after a signal.
const INTERRUPTED: i32 = 130;

/// The directory of this run.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// An empty directory in `parent`, or in `target/bench` of the workspace.
    pub fn new(parent: Option<&Path>, bench: &str) -> Result<Self> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => {
                let target = product::root().join("target").join("bench");
                fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
                target
            }
        };
        let parent = fs::canonicalize(&parent).with_context(|| parent.display().to_string())?;
        sweep(&parent);
        let path = parent.join(format!("{PREFIX}{}-{bench}", process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        remove_on_signal(path.clone())?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("left behind: {}: {error}", self.path.display());
        }
    }
}

fn remove_on_signal(path: PathBuf) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Ctrl-C reached them as well; a signal to this process alone did not.
            stop_children_of(process::id());
            // A program that is ending may make or remove a file meanwhile.
            for _ in 0..20 {
                if fs::remove_dir_all(&path).is_ok() {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            process::exit(INTERRUPTED);
        }
    });
    Ok(())
}

/// Ends all descendants of `pid`, also those that are stopped.
fn stop_children_of(pid: u32) {
    for child in children(pid) {
        // Its own first: they have another parent once it has ended.
        stop_children_of(child);
        if let Some(child) = Pid::from_raw(child.cast_signed()) {
            let _ = kill_process(child, Signal::TERM);
            let _ = kill_process(child, Signal::CONT);
        }
    }
}

/// Removes directories whose process has ended.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner);
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process id in a directory's name.
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_dead_process_is_swept_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        // Above the largest number a process can have.
        let dead = parent.path().join(format!("{PREFIX}4194305-written"));
        let alive = parent.path().join(format!("{PREFIX}{}-x", process::id()));
        let other = parent.path().join("extant-bench-notes");
        for path in [&dead, &alive, &other] {
            fs::create_dir(path).unwrap();
        }
        let directory = RunDirectory::new(Some(parent.path()), "cancel").unwrap();
        assert!(!dead.exists() && alive.exists() && other.exists());
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
