//! Packages in clean systems: installed, used and removed.
//!
//! Each system is a minimal one of a suite of Debian below an overlay in memory, in namespaces that
//! end with the check. The scripts in this directory are the check; they run in the system, except
//! for `system.sh` around them. `deb.sh` has apt resolve the dependencies from the machine's
//! mirror. `rpm.sh` installs with rpm into a system of Debian: there is no database for the
//! dependencies, so they are read and compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::dist::Build;
use crate::packages::{VERSION, directory};
use crate::workspace::Workspace;
use crate::{setup, step};

/// Debian 12 and 13.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Checks the packages of both kinds.
pub fn run(workspace: &Workspace, build: Build) -> Result<()> {
    for suite in SUITES {
        step::heading(&format!("Debian packages in {suite}"));
        in_system(
            workspace,
            build,
            suite,
            "deb.sh",
            include_str!("check/deb.sh"),
        )?;
    }
    step::heading("rpm packages");
    in_system(
        workspace,
        build,
        SUITES[0],
        "rpm.sh",
        include_str!("check/rpm.sh"),
    )
}

/// Runs a script in a clean system, which has the packages and a program in C in `/packages`.
fn in_system(
    workspace: &Workspace,
    build: Build,
    suite: &str,
    name: &str,
    script: &str,
) -> Result<()> {
    let root = setup::debian_root(workspace, suite)?;
    let packages = directory(workspace, build)?;
    let inputs = tempfile::tempdir().context("a temporary directory")?;
    let system = inputs.path().join("system.sh");
    fs::write(&system, include_str!("check/system.sh"))?;
    fs::write(inputs.path().join(name), script)?;
    for entry in fs::read_dir(&packages)? {
        let entry = entry?;
        fs::copy(entry.path(), inputs.path().join(entry.file_name()))?;
    }
    let example = workspace.root().join("examples/c/create.c");
    fs::copy(&example, inputs.path().join("example.c"))
        .with_context(|| format!("{}: cannot copy", example.display()))?;

    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh"]);
    command.args([&system, &root, inputs.path()].map(Path::as_os_str));
    command.arg(name).env("VERSION", VERSION);
    step::run_quietly(&mut command)
}
