//! Programs run by an unprivileged user.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;

/// The user's number, and that of the group.
pub const NOBODY: u32 = 65534;

/// A command that runs `program` as [`NOBODY`]. The caller must be root.
pub fn as_user(program: &Path) -> Command {
    let id = NOBODY.to_string();
    let mut command = command::tool("setpriv");
    command
        .args([format!("--reuid={id}"), format!("--regid={id}")])
        .args(["--clear-groups", "--inh-caps=-all", "--"])
        .arg(program)
        .stdin(Stdio::null());
    command
}
