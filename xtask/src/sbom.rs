//! Bills of materials in CycloneDX's JSON form, by cargo-cyclonedx.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo_tool::CargoTool;
use crate::workspace::Workspace;
use crate::{reproducible, step};

const CARGO_CYCLONEDX: CargoTool = CargoTool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    features: None,
};
/// The tool writes beside every manifest of the workspace.
const NAME: &str = "extant-bom";

/// Writes what the program for `target` is made of.
pub fn write(workspace: &Workspace, target: &str, to: &Path) -> Result<()> {
    let mut command = Command::new(CARGO_CYCLONEDX.program(workspace)?);
    command.args(["cyclonedx", "--quiet", "--format", "json"]);
    command.args(["--no-build-deps", "--target", target]);
    command.args(["--override-filename", NAME]);
    command.args(["--manifest-path", "crates/cli/Cargo.toml"]);
    command.current_dir(workspace.root());
    command.env("SOURCE_DATE_EPOCH", reproducible::epoch(workspace)?);
    let made = step::run(&mut command);
    let wanted = workspace
        .root()
        .join("crates/cli")
        .join(format!("{NAME}.json"));
    let text = fs::read_to_string(&wanted);
    for manifest in workspace.manifests()? {
        // Only the wanted one has to be there.
        let _ = fs::remove_file(manifest.with_file_name(format!("{NAME}.json")));
    }
    made?;
    let text = text.with_context(|| format!("{}: cannot read", wanted.display()))?;
    let root = workspace.root().display().to_string();
    fs::write(to, text.replace(&root, "/extant"))
        .with_context(|| format!("{}: cannot write", to.display()))
}
