//! Requirements of tests.
//!
//! A test that needs root, a tool or a feature of the kernel names it in its first line:
//!
//! ```
//! # use extant_testkit::{require, requires};
//! # fn maps_of_xfs_name_shared_extents() {
//! require!(requires::root(), requires::tool("mkfs.xfs"));
//! # }
//! # maps_of_xfs_name_shared_extents();
//! ```
//!
//! If something is missing, the test prints it and returns. With `EXTANT_TEST_STRICT=1`,
//! which `cargo xtask test` and CI set, it fails: a silent skip would reduce coverage. The idea is
//! nbdkit's.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;

/// The distribution's Python, which has the modules that its packages install.
pub const PYTHON: &str = "/usr/bin/python3";

/// A requirement of a test, and whether it is met.
#[derive(Clone, Debug)]
#[must_use = "hand it to require!"]
pub struct Requirement {
    what: String,
    met: bool,
}

impl Requirement {
    /// A need of any kind. `what` completes the sentence "needs ...".
    pub fn new(what: impl Into<String>, met: bool) -> Self {
        Self {
            what: what.into(),
            met,
        }
    }

    /// True if it is met.
    pub fn is_met(&self) -> bool {
        self.met
    }

    /// The requirement as text.
    pub fn what(&self) -> &str {
        &self.what
    }
}

/// A program in `PATH` or among the system's tools.
pub fn tool(name: &str) -> Requirement {
    Requirement::new(name, command::find(name).is_some())
}

/// A module of the distribution's Python.
pub fn python_module(name: &str) -> Requirement {
    let mut python = Command::new(PYTHON);
    python.args(["-c", &format!("import {name}")]);
    let output = python.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let what = format!("the module {name} of {PYTHON}");
    Requirement::new(what, output.is_ok_and(|status| status.success()))
}

/// The user is privileged.
pub fn root() -> Requirement {
    Requirement::new("root", rustix::process::geteuid().is_root())
}

/// The kernel knows a file system by this name, as in `/proc/filesystems`, by now or
/// after loading its module.
pub fn kernel_filesystem(name: &str) -> Requirement {
    let known = || {
        fs::read_to_string("/proc/filesystems").is_ok_and(|list| {
            list.lines()
                .any(|line| line.split_whitespace().next_back() == Some(name))
        })
    };
    let met = known() || {
        let _ = command::run(command::tool("modprobe").args(["--quiet", name]));
        known()
    };
    Requirement::new(format!("the file system {name} in the kernel"), met)
}

/// A node that must exist, such as `/dev/fuse`.
pub fn device(node: &str) -> Requirement {
    Requirement::new(node, Path::new(node).exists())
}

/// Temporary files are on ext4 or XFS, on a disk or partition that nothing is below.
pub fn disk_below_temporary_files() -> Requirement {
    let mut findmnt = command::tool("findmnt");
    findmnt.args(["--noheadings", "--output", "FSTYPE,SOURCE", "--target"]);
    let found = command::text(findmnt.arg(env::temp_dir())).unwrap_or_default();
    let met = match found.split_whitespace().collect::<Vec<_>>()[..] {
        ["ext4" | "xfs", source] => {
            let others = ["/dev/mapper/", "/dev/dm-", "/dev/md"];
            source.starts_with("/dev/") && !others.iter().any(|other| source.starts_with(other))
        }
        _ => false,
    };
    Requirement::new("temporary files on ext4 or XFS, directly on a disk", met)
}

/// Returns from the test when a requirement is not met; see [`requires`](crate::requires).
#[macro_export]
macro_rules! require {
    ($($requirement:expr),+ $(,)?) => {
        if !$crate::requires::all_met(&[$($requirement),+]) {
            return;
        }
    };
}

/// The judgement behind [`require!`](crate::require): false after printing the missing one.
///
/// # Panics
/// When something is missing and `EXTANT_TEST_STRICT` is 1.
#[track_caller]
pub fn all_met(requirements: &[Requirement]) -> bool {
    match decide(requirements, is_strict()) {
        Decision::Go => true,
        Decision::Skip(message) => {
            eprintln!("{message}");
            false
        }
        Decision::Fail(message) => panic!("{message}"),
    }
}

/// True where a missing requirement is a failure.
pub fn is_strict() -> bool {
    env::var_os("EXTANT_TEST_STRICT").is_some_and(|value| value == "1")
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Go,
    Skip(String),
    Fail(String),
}

fn decide(requirements: &[Requirement], strict: bool) -> Decision {
    let missing: Vec<_> = requirements
        .iter()
        .filter(|requirement| !requirement.met)
        .map(Requirement::what)
        .collect();
    let missing = missing.join(", ");
    match (missing.as_str(), strict) {
        ("", _) => Decision::Go,
        (_, true) => Decision::Fail(format!("needs {missing}: run cargo xtask setup")),
        (_, false) => Decision::Skip(format!("skipped: needs {missing}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_need_skips_and_strictly_fails() {
        let needs = [
            tool("sh"),
            Requirement::new("a newer kernel", false),
            tool("extant-no-such-program"),
        ];
        assert_eq!(
            decide(&needs, false),
            Decision::Skip("skipped: needs a newer kernel, extant-no-such-program".into())
        );
        assert_eq!(
            decide(&needs, true),
            Decision::Fail(
                "needs a newer kernel, extant-no-such-program: run cargo xtask setup".into()
            )
        );
        assert_eq!(decide(&needs[..1], true), Decision::Go);
    }

    #[test]
    fn kernel_filesystem_knows_proc_and_not_nonsense() {
        assert!(kernel_filesystem("proc").is_met());
        assert!(!kernel_filesystem("extant-no-such-filesystem").is_met());
    }

    #[test]
    fn require_returns_from_the_caller() {
        fn skips(reached: &mut bool) {
            let unmet = Requirement::new("nothing real", is_strict());
            require!(unmet);
            *reached = true;
        }
        let mut reached = false;
        skips(&mut reached);
        assert_eq!(reached, is_strict());
    }
}
