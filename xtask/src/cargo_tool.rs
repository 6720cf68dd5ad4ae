//! Programs from the package registry that the project's commands run.
//!
//! An installed program is used; otherwise a pinned version is built once, without optimisation,
//! into the target directory.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::step;
use crate::workspace::Workspace;

/// A program and the version that is built where none is installed.
pub struct CargoTool {
    pub name: &'static str,
    pub version: &'static str,
    /// Features beside which none is built; `None` for the usual ones.
    pub features: Option<&'static [&'static str]>,
}

impl CargoTool {
    /// The program, built now if it has to be.
    pub fn program(&self, workspace: &Workspace) -> Result<PathBuf> {
        if self.is_installed() {
            Ok(self.name.into())
        } else {
            self.build(workspace)
        }
    }

    fn is_installed(&self) -> bool {
        let mut version = Command::new(self.name);
        version.arg("--version").stdout(Stdio::null());
        let status = version.stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn build(&self, workspace: &Workspace) -> Result<PathBuf> {
        let tools = workspace.target_dir()?.join("tools");
        let program = tools.join("bin").join(self.name);
        if !program.exists() {
            step::heading(&format!("build {} {}", self.name, self.version));
            let mut cargo = workspace.cargo(&["install", "--quiet", "--locked", "--debug"]);
            if let Some(features) = self.features {
                cargo.arg("--no-default-features").arg("--features");
                cargo.arg(features.join(","));
            }
            cargo.args(["--version", self.version, self.name]);
            cargo.arg("--root").arg(&tools);
            cargo.env("CARGO_TARGET_DIR", tools.join("build"));
            cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
            step::run(&mut cargo)?;
            // Frees half a gigabyte; a failure has no other effect.
            let _ = std::fs::remove_dir_all(tools.join("build"));
        }
        Ok(program)
    }
}
