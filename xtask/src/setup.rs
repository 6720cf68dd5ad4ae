//! `cargo xtask setup`: requirements of tests and benches beyond a Rust toolchain.
//!
//! Three parts, each skipped if present: Debian packages (the test kit names its own, the peers of
//! the benches are named here), the oracles that the machine's Debian is too old for, and the
//! guest. The test kit's program `oracles` knows the last two; this file knows the order.

mod apt;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::step;
use crate::workspace::Workspace;

/// Peers of the benches; see docs/benchmarks.md.
const BENCH_PEERS: [&str; 3] = ["fio", "qemu-utils", "e2fsprogs"];

/// Whether the guest is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Fetched unless it is there.
    Wanted,
    /// Left out.
    LeftOut,
}

impl Guest {
    /// From the flag `--no-guest`.
    pub fn from_flag(no_guest: bool) -> Self {
        if no_guest {
            Self::LeftOut
        } else {
            Self::Wanted
        }
    }
}

/// Installs Debian packages that are missing.
pub fn packages(names: &[&str]) -> Result<()> {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    apt::ensure(&names)
}

/// Brings the machine to where every test can run.
pub fn run(workspace: &Workspace, guest: Guest) -> Result<()> {
    let listed = step::output(&mut oracles(workspace, &["packages"]))
        .context("the test kit does not say which packages it needs")?;
    apt::ensure(&merged(&listed))?;

    let mut prepare = oracles(workspace, &["prepare"]);
    if guest == Guest::LeftOut {
        prepare.arg("--no-guest");
    }
    step::run(&mut prepare).context("the oracles are not ready")
}

/// The directory of a minimal system of a suite of Debian, made once; nothing may change it.
pub fn debian_root(workspace: &Workspace, suite: &str) -> Result<PathBuf> {
    packages(&["debian-archive-keyring", "mmdebstrap"])?;
    let printed = step::output(&mut oracles(workspace, &["root", suite]))?;
    Ok(printed.trim_end().into())
}

fn oracles(workspace: &Workspace, args: &[&str]) -> std::process::Command {
    let run = [
        "run",
        "--quiet",
        "-p",
        "extant-testkit",
        "--bin",
        "oracles",
        "--",
    ];
    let mut command = workspace.cargo(&run);
    command.args(args);
    command
}

/// The kit's packages, one per line, and the benches', each once.
fn merged(listed: &str) -> Vec<String> {
    let listed = listed
        .lines()
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let mut names: Vec<_> = listed.chain(BENCH_PEERS).map(String::from).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_packages_are_named_once() {
        let names = merged("xfsprogs\n\n fio \n");
        assert_eq!(names, ["e2fsprogs", "fio", "qemu-utils", "xfsprogs"]);
    }
}
