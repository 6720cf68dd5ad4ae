//! `cargo xtask semver`: changes of the published libraries that break their users.
//!
//! The interface of every published library is compared with that of an earlier commit; a break
//! without a version that announces it fails.

use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::CargoTool;
use crate::publish;
use crate::step;
use crate::workspace::Workspace;

/// A version reads the descriptions of certain compilers only.
const CARGO_SEMVER_CHECKS: CargoTool = CargoTool {
    name: "cargo-semver-checks",
    version: "0.51.0",
    features: None,
};

/// Compares with `baseline`, a revision of git.
pub fn run(workspace: &Workspace, baseline: &str) -> Result<()> {
    let program = CARGO_SEMVER_CHECKS.program(workspace)?;
    step::heading(&format!("interfaces of libraries since {baseline}"));
    let mut checks = Command::new(program);
    checks.args(["semver-checks", "--baseline-rev", baseline]);
    let metadata = workspace.metadata()?;
    for package in publish::published(&metadata)?.filter(|it| publish::is_library(it)) {
        checks.args(["--package", publish::name(package)]);
    }
    checks.current_dir(workspace.root());
    checks.env("CARGO_TARGET_DIR", workspace.target_dir()?.join("semver"));
    step::run(&mut checks)
}
