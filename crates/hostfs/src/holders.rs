//! The processes that have a file open, from `/proc`.
//!
//! For messages only: the list is out of date at once, and processes of other users are invisible
//! without privileges. Exclusion relies on the kernel (leases).

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_sys::identity::Identity;
use serde::Serialize;

/// A process that has a file open or mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name of the program, as in `/proc/PID/comm`.
    pub command: String,
    /// It may write to the file.
    pub may_write: bool,
}

impl fmt::Display for Holder {
    /// `qemu-system-x86 (pid 17, writing)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.may_write { "writing" } else { "reading" };
        write!(f, "{} (pid {}, {how})", self.command, self.pid)
    }
}

/// Processes other than this one that have `path` open, among the visible ones.
pub fn holders(path: &Path) -> Vec<Holder> {
    let Ok(wanted) = Identity::of(path) else {
        return Vec::new();
    };
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let mut found: Vec<Holder> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != own)
        .filter_map(|pid| holder(pid, wanted))
        .collect();
    found.sort_by_key(|holder| holder.pid);
    found
}

fn holder(pid: u32, wanted: Identity) -> Option<Holder> {
    let process = Path::new("/proc").join(pid.to_string());
    let mut is_holder = false;
    let mut may_write = false;
    for directory in ["fd", "map_files"] {
        let Ok(entries) = fs::read_dir(process.join(directory)) else {
            continue;
        };
        for entry in entries.flatten() {
            if Identity::of(&entry.path()).ok() != Some(wanted) {
                continue;
            }
            is_holder = true;
            // The link's own permissions are those of the open file.
            may_write |=
                fs::symlink_metadata(entry.path()).is_ok_and(|link| link.mode() & 0o200 != 0);
        }
    }
    is_holder.then(|| Holder {
        pid,
        command: fs::read_to_string(process.join("comm"))
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default(),
        may_write,
    })
}

/// `3 processes, among them qemu-system-x86 (pid 17, writing)`; `None` when none is visible.
pub fn describe(path: &Path) -> Option<String> {
    let mut all = holders(path);
    all.sort_by_key(|holder| !holder.may_write);
    let shown: Vec<String> = all.iter().take(3).map(Holder::to_string).collect();
    match all.len() {
        0 => None,
        count if count > shown.len() => Some(format!(
            "{} and {} more",
            shown.join(", "),
            count - shown.len()
        )),
        _ => Some(shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn holder_is_found_with_its_name_and_mode() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(holders(file.path()), []);
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(fs::File::open(file.path()).unwrap()))
            .stdout(Stdio::from(
                fs::OpenOptions::new()
                    .append(true)
                    .open(file.path())
                    .unwrap(),
            ))
            .spawn()
            .unwrap();
        // The command has its name only once it runs.
        let seen = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let seen = holders(file.path());
            (seen.first()?.command == "sleep").then_some(seen)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let seen = seen.expect("sleep holds the file");
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].pid, child.id());
        assert!(seen[0].may_write);
    }
}
