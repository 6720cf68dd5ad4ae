//! The licence step of CI: `cargo deny`, with deny.toml as its rules.

use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::CargoTool;
use crate::step;
use crate::workspace::Workspace;

const CARGO_DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    features: Some(&[]),
};
/// Advisories are missing on purpose; deny.toml says why.
const CHECKS: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// Checks the licences, sources and versions of all dependencies.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut command = Command::new(CARGO_DENY.program(workspace)?);
    // Duplicates are a matter for a separate review.
    command.args(["--log-level", "error"]).args(CHECKS);
    step::run(command.current_dir(workspace.root()))
}
