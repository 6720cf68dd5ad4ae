//! The licence step of CI: `cargo deny`, with deny.toml as its rules.
//!
//! A cargo-deny found on the machine is used; otherwise a pinned version is
//! built once, without optimisation, into the target folder (the time of the
//! build is the whole cost of the step; the check itself takes a second).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::step;
use crate::workspace::Workspace;

/// The version that is built where none is installed.
const VERSION: &str = "0.20.2";
/// Advisories are missing on purpose; deny.toml says why.
const CHECKS: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// Checks the licences, sources and versions of all dependencies.
pub fn run(workspace: &Workspace) -> Result<()> {
    let program = match installed() {
        Some(program) => program,
        None => build(workspace)?,
    };
    let mut command = Command::new(program);
    // Duplicates are worth knowing when one looks for them, not in every run.
    command.args(["--log-level", "error"]).args(CHECKS);
    step::run(command.current_dir(workspace.root()))
}

fn installed() -> Option<PathBuf> {
    let program = PathBuf::from("cargo-deny");
    let mut version = Command::new(&program);
    version.arg("--version").stdout(Stdio::null());
    let status = version.stderr(Stdio::null()).status();
    status
        .is_ok_and(|status| status.success())
        .then_some(program)
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.target_dir()?;
    let tools = target.join("tools");
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        step::heading(&format!("build cargo-deny {VERSION}"));
        let mut cargo = workspace.cargo(&["install", "--quiet", "--locked", "--debug"]);
        cargo.args(["--no-default-features", "--version", VERSION, "cargo-deny"]);
        cargo.arg("--root").arg(&tools);
        cargo.env("CARGO_TARGET_DIR", tools.join("build"));
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        step::run(&mut cargo)?;
        // Half a gigabyte that nothing needs any more; a failure to remove it costs nothing else.
        let _ = std::fs::remove_dir_all(tools.join("build"));
    }
    Ok(program)
}
