//! Where a result comes from: commit, date, machine.

use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::step;
use crate::workspace::Workspace;

/// The commit of the sources, with `-dirty` after changes.
pub fn commit(workspace: &Workspace) -> Result<String> {
    let mut git = Command::new("git");
    git.args([
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
        "--abbrev=10",
    ]);
    let commit = step::output(git.current_dir(workspace.root()))?;
    Ok(commit.trim().to_owned())
}

/// The day, in UTC.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// The number of processors.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
