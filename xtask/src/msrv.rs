//! `cargo xtask msrv`: what is published compiles with the oldest Rust that the manifests name.
//!
//! rustup installs that toolchain. Tests and benches are not compiled: their dependencies may need
//! a newer one.

use std::process::Command;

use anyhow::{Context, Result};

use crate::publish;
use crate::step;
use crate::workspace::Workspace;

/// Checks the published crates with the oldest toolchain.
pub fn run(workspace: &Workspace) -> Result<()> {
    let metadata = workspace.metadata()?;
    let packages: Vec<_> = publish::published(&metadata)?.collect();
    let version = packages
        .first()
        .and_then(|package| package["rust_version"].as_str())
        .context("no rust-version")?;
    step::heading(&format!("Rust {version}"));
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "install", version]);
    step::run(rustup.args(["--profile", "minimal", "--no-self-update"]))?;

    // The cargo of that toolchain: `CARGO` is the one that runs us.
    let mut cargo = Command::new("rustup");
    cargo.args(["run", version, "cargo", "check", "--locked"]);
    for package in packages {
        cargo.args(["--package", publish::name(package)]);
    }
    cargo.current_dir(workspace.root());
    cargo.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo.env("CARGO_TARGET_DIR", workspace.target_dir()?.join("msrv"));
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    step::run(&mut cargo)
}
