//! The program that is measured: `extant`, built from this tree.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The relevant fields of a line of `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Root of the workspace.
pub fn root() -> PathBuf {
    // Set by `cargo run` too, and then true even if the tree has moved since the build.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    match manifest.ancestors().nth(2) {
        Some(root) => root.to_owned(),
        None => manifest,
    }
}

/// Builds `extant` as users do, optimised; where it is.
pub fn build() -> Result<PathBuf> {
    eprintln!("  building extant");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "-p",
            "extant",
            "--bin",
            "extant",
        ])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo")?;
    if !output.status.success() {
        bail!("extant does not build; --extant PROGRAM measures one that is built");
    }
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo names no executable")
}

fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines();
    let parsed = messages.filter_map(|line| serde_json::from_str::<Message>(line).ok());
    parsed.filter_map(|message| message.executable).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_taken_from_cargo_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/extant\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some("/t/release/extant".into()));
        assert_eq!(executable(""), None);
    }

    #[test]
    fn root_holds_the_workspace() {
        assert!(root().join("crates/bench").is_dir());
    }
}
