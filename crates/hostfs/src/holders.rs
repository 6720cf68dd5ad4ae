//! The processes that have a file open, from `/proc`.
//!
//! For messages only: the list is out of date at once, and processes of other users are invisible
//! without privileges. Exclusion relies on the kernel (leases).

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_sys::identity::Identity;
use extant_sys::process;
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
    process::others()
        .into_iter()
        .filter_map(|pid| holder(pid, wanted))
        .collect()
}

fn holder(pid: u32, wanted: Identity) -> Option<Holder> {
    let place = Path::new("/proc").join(pid.to_string());
    let mut is_holder = false;
    let mut may_write = false;
    for directory in ["fd", "map_files"] {
        let Ok(entries) = fs::read_dir(place.join(directory)) else {
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
        command: process::name(pid),
        may_write,
    })
}

/// `qemu-system-x86 (pid 17, writing), cat (pid 18, reading) and 2 more`; `None` when none is
/// visible.
pub fn describe(path: &Path) -> Option<String> {
    let mut all = holders(path);
    all.sort_by_key(|holder| !holder.may_write);
    listed(&all)
}

/// The same, or "another process" when none is visible.
pub fn describe_or_other(path: &Path) -> String {
    describe(path).unwrap_or_else(|| "another process".to_owned())
}

/// `bash (pid 17), less (pid 18)`: processes with a file, a working directory or a program below
/// `directory`; `None` when none is visible. The file system there is not asked, as its server may
/// have ended.
pub fn describe_below(directory: &Path) -> Option<String> {
    let uses = |link: &Path| fs::read_link(link).is_ok_and(|path| path.starts_with(directory));
    let user = |pid: u32| {
        let place = Path::new("/proc").join(pid.to_string());
        let opened = ["fd", "map_files"].map(|list| fs::read_dir(place.join(list)));
        let mut opened = opened.into_iter().flatten().flatten().flatten();
        let is_user = ["cwd", "root", "exe"].map(|link| uses(&place.join(link)));
        (is_user.contains(&true) || opened.any(|entry| uses(&entry.path())))
            .then(|| process::describe(pid))
    };
    let all: Vec<String> = process::others().into_iter().filter_map(user).collect();
    listed(&all)
}

/// The first three, and how many more there are.
fn listed(all: &[impl fmt::Display]) -> Option<String> {
    let shown: Vec<String> = all.iter().take(3).map(ToString::to_string).collect();
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
    use std::process::{Child, Command, Stdio};

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
        let seen = seen_while(&mut child, || {
            let seen = holders(file.path());
            (seen.first()?.command == "sleep").then_some(seen)
        });
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].pid, child.id());
        assert!(seen[0].may_write);
    }

    #[test]
    fn process_that_works_below_a_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a");
        fs::create_dir(&below).unwrap();
        assert_eq!(describe_below(directory.path()), None);
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("60").current_dir(&below).spawn().unwrap();
        let wanted = format!("sleep (pid {})", child.id());
        let seen = seen_while(&mut child, || {
            describe_below(directory.path()).filter(|seen| *seen == wanted)
        });
        assert_eq!(seen, wanted);
        assert_eq!(describe_below(&directory.path().join("b")), None);
    }

    /// The result of looking at `child`, which is then killed. It has its name only once it runs.
    #[track_caller]
    fn seen_while<T>(child: &mut Child, mut look: impl FnMut() -> Option<T>) -> T {
        let seen = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            look()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        seen.expect("the child is seen")
    }
}
