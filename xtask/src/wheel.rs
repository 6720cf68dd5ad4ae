//! The wheel: the module for Python with libextant in it, in `target/dist-wheel`.
//!
//! It needs no version of Python but 3.9, and no other library than glibc, whose least version is
//! in its name. Debian's setuptools builds it, without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{setup, step};

/// Debian packages that build it.
const PACKAGES: [&str; 3] = ["binutils", "python3-setuptools", "python3-wheel"];

/// Rewrites the directory with the wheel of the shared `library`.
pub fn write(workspace: &Workspace, library: &Path) -> Result<()> {
    setup::packages(&PACKAGES)?;
    let directory = workspace.target_dir()?.join("dist-wheel");
    step::heading(&format!("write {}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    let mut build = Command::new(workspace.root().join("crates/capi/wheel.sh"));
    step::run(build.arg(library).arg(&directory))
}
