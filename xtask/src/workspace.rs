//! The workspace, and cargo commands in it.
//!
//! The manifest's path comes from `cargo run` at run time, so that a clone may
//! be moved together with its target directory.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step;

/// The workspace that xtask belongs to.
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the workspace of the running xtask.
    pub fn find() -> Result<Self> {
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir
            .parent()
            .context("xtask's manifest has no parent directory")?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// Its root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The cargo that runs us, with these arguments, in the root directory.
    pub fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(args).current_dir(&self.root);
        command
    }

    /// `cargo metadata` of the workspace's own packages.
    pub fn metadata(&self) -> Result<Value> {
        let args = ["metadata", "--quiet", "--no-deps", "--format-version", "1"];
        let text = step::output(&mut self.cargo(&args))?;
        serde_json::from_str(&text).context("cargo metadata did not print JSON")
    }

    /// The manifests of the workspace's own packages.
    pub fn manifests(&self) -> Result<Vec<PathBuf>> {
        let metadata = self.metadata()?;
        let packages = metadata["packages"].as_array();
        let packages = packages.context("cargo metadata lists no packages")?;
        let paths = packages
            .iter()
            .map(|package| package["manifest_path"].as_str());
        let paths: Option<Vec<_>> = paths.map(|path| path.map(PathBuf::from)).collect();
        paths.context("a package without a manifest")
    }

    /// Cargo's target directory.
    pub fn target_dir(&self) -> Result<PathBuf> {
        let metadata = self.metadata()?;
        let target = metadata["target_directory"]
            .as_str()
            .context("cargo metadata names no target directory")?;
        Ok(target.into())
    }
}
