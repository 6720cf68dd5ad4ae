//! `cargo xtask publish`: the library crates and the command, to the package registry.
//!
//! Cargo packages each crate, builds it from its package against the packages of the crates below
//! it, and uploads them in the order of their dependencies; `--dry-run` leaves out the upload.
//! Before that, the metadata and the lists of files are checked here.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;
use crate::workspace::Workspace;

/// Fields of a manifest by which a stranger finds a crate and knows its terms.
const REQUIRED: [&str; 7] = [
    "categories",
    "description",
    "keywords",
    "license",
    "name",
    "readme",
    "rust_version",
];
/// The beginnings of paths that a package may have. `Cargo.toml.orig` and the like are cargo's.
const ALLOWED: [&str; 9] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "examples/",
    "man/",
    "src/",
];

/// Whether packages are uploaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Upload {
    Yes,
    /// Everything but the upload; uncommitted changes are packaged too.
    No,
}

/// Checks all packages, and publishes them.
pub fn run(workspace: &Workspace, upload: Upload) -> Result<()> {
    step::heading("metadata and files of packages");
    let metadata = workspace.metadata()?;
    let mut findings = Vec::new();
    for package in published(&metadata)? {
        findings.extend(missing_fields(package));
        if upload == Upload::Yes && package["repository"].is_null() {
            findings.push(format!("{}: no repository", name(package)));
        }
        let args = ["package", "--list", "--allow-dirty", "--locked", "-p"];
        let files = step::output(workspace.cargo(&args).arg(name(package)))?;
        findings.extend(foreign_files(name(package), &files));
    }
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    if !findings.is_empty() {
        bail!("packages are not ready in {} places", findings.len());
    }

    step::heading("publish");
    let mut cargo = workspace.cargo(&["publish", "--workspace", "--locked"]);
    if upload == Upload::No {
        cargo.args(["--dry-run", "--allow-dirty"]);
    }
    step::run(&mut cargo)
}

/// The packages that are not `publish = false`.
pub fn published(metadata: &Value) -> Result<impl Iterator<Item = &Value>> {
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata lists no packages")?;
    // `null` permits every registry, an empty list none.
    Ok(packages
        .iter()
        .filter(|package| package["publish"].is_null()))
}

/// The name of a package.
pub fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// Whether other crates can depend on a package.
pub fn is_library(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    let mut kinds = targets.filter_map(|target| target["kind"].as_array());
    kinds.any(|kinds| kinds.contains(&"lib".into()))
}

fn missing_fields(package: &Value) -> impl Iterator<Item = String> {
    let is_missing = |field: &&&str| match &package[**field] {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let missing = REQUIRED.iter().filter(is_missing);
    missing.map(|field| format!("{}: no {field}", name(package)))
}

fn foreign_files(package: &str, list: &str) -> impl Iterator<Item = String> {
    list.lines()
        .filter(|file| !ALLOWED.iter().any(|allowed| file.starts_with(allowed)))
        .map(move |file| format!("{package}: {file} does not belong into the package"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn package_without_a_field_is_found_and_one_that_is_kept_back_is_not() {
        let complete = json!({
            "name": "a", "publish": null, "categories": ["filesystem"], "description": "it",
            "keywords": ["disk"], "license": "MIT", "readme": "README.md", "rust_version": "1.1",
        });
        let mut bare = complete.clone();
        bare["readme"] = Value::Null;
        bare["keywords"] = json!([]);
        let kept_back = json!({ "name": "b", "publish": [] });
        let metadata = json!({ "packages": [complete, bare, kept_back] });
        let found: Vec<_> = published(&metadata)
            .unwrap()
            .flat_map(missing_fields)
            .collect();
        assert_eq!(found, ["a: no keywords", "a: no readme"]);
    }

    #[test]
    fn file_outside_of_the_sources_is_found() {
        let list =
            "Cargo.toml\nCargo.toml.orig\nsrc/lib.rs\ntests/data/disk.bin\ninstructions.json";
        let found: Vec<_> = foreign_files("a", list).collect();
        assert_eq!(
            found,
            [
                "a: tests/data/disk.bin does not belong into the package",
                "a: instructions.json does not belong into the package"
            ]
        );
    }
}
