//! The licences of the crates that the program and the libraries contain.
//!
//! Most licences require their text and the names of the authors in what is distributed. The texts
//! are those in the crates' own packages; equal texts are written once.

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step;
use crate::workspace::Workspace;

/// The name of the file.
pub const FILE: &str = "LICENSES-THIRD-PARTY";
/// Crates of the workspace that users get.
const PRODUCTS: [&str; 2] = ["extant", "extant-capi"];
/// First parts of the names of files with licences, in lower case.
const NAMES: [&str; 6] = [
    "copying",
    "copyright",
    "licence",
    "license",
    "notice",
    "unlicense",
];
const HEAD: &str = "\
Extant is built from the crates below, and from Rust's standard library (MIT OR Apache-2.0, the \
Rust Project's contributors). The static program also contains musl (MIT, Rich Felker and others).
";

/// The texts of our own licences, in the root of the workspace.
pub const OWN: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Writes the licences of the products and of all crates in them into `directory`; their names.
pub fn write_all(workspace: &Workspace, directory: &Path) -> Result<[&'static str; 3]> {
    for name in OWN {
        let from = workspace.root().join(name);
        fs::copy(&from, directory.join(name))
            .with_context(|| format!("{}: cannot copy", from.display()))?;
    }
    write(workspace, &directory.join(FILE))?;
    Ok([OWN[0], OWN[1], FILE])
}

/// Writes the licences of all crates in the products.
pub fn write(workspace: &Workspace, to: &Path) -> Result<()> {
    let mut cargo = workspace.cargo(&["metadata", "--quiet", "--locked", "--format-version", "1"]);
    for library in ["gnu", "musl"] {
        cargo.arg("--filter-platform");
        cargo.arg(format!("{ARCH}-unknown-linux-{library}"));
    }
    let metadata = serde_json::from_str(&step::output(&mut cargo)?)
        .context("cargo metadata did not print JSON")?;
    fs::write(to, text(&metadata)?).with_context(|| format!("{}: cannot write", to.display()))
}

fn text(metadata: &Value) -> Result<String> {
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in others(metadata) {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", word("name"), word("version"));
        let authors = package["authors"].as_array().into_iter().flatten();
        let authors: Vec<_> = authors.filter_map(Value::as_str).collect();
        writeln!(list, "{name}: {}; {}", word("license"), authors.join(", "))?;
        let manifest = Path::new(word("manifest_path"));
        let directory = manifest.parent().context("a package without a directory")?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let file = entry.file_name().to_string_lossy().to_lowercase();
            let is_licence = NAMES.iter().any(|start| file.starts_with(start));
            if is_licence && entry.path().is_file() {
                let text = fs::read_to_string(entry.path())
                    .with_context(|| format!("{}: cannot read", entry.path().display()))?;
                let text = text.replace('\r', "").trim_matches('\n').to_owned();
                texts.entry(text).or_default().push(name.clone());
            }
        }
    }
    let mut written = format!("{HEAD}\n{list}");
    for (text, mut names) in texts {
        names.dedup();
        let line = "-".repeat(72);
        write!(written, "\n{line}\n{}:\n\n{text}\n", names.join(", "))?;
    }
    Ok(written)
}

/// The packages from elsewhere that the products contain, sorted by name and version.
fn others(metadata: &Value) -> Vec<&Value> {
    let items = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let nodes = items(&metadata["resolve"]["nodes"]);
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let is_product = |package: &&Value| {
        package["name"]
            .as_str()
            .is_some_and(|name| PRODUCTS.contains(&name))
    };
    let mut waiting: Vec<Value> = packages()
        .filter(is_product)
        .map(|package| package["id"].clone())
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !found.insert(id.to_string()) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id);
        for dependency in node.map(|node| items(&node["deps"])).unwrap_or_default() {
            let kinds = items(&dependency["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(dependency["pkg"].clone());
            }
        }
    }
    let mut others: Vec<_> = packages()
        .filter(|package| !package["source"].is_null())
        .filter(|package| found.contains(&package["id"].to_string()))
        .collect();
    others.sort_by_key(|package| (package["name"].to_string(), package["version"].to_string()));
    others
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn licences_are_those_of_what_is_linked() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("LICENSE-MIT"), "Copyright A\r\n").unwrap();
        let manifest = directory.path().join("Cargo.toml");
        let package = |name: &str, source: Value| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT",
                "authors": ["A"], "source": source, "manifest_path": manifest})
        };
        let dependency =
            |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("extant", Value::Null), package("linked", "r".into()),
                package("below", "r".into()), package("build-only", "r".into())],
            "resolve": {"nodes": [
                {"id": "extant", "deps": [dependency("linked", Value::Null),
                    dependency("build-only", "build".into())]},
                {"id": "linked", "deps": [dependency("below", Value::Null)]},
            ]},
        });
        let text = text(&metadata).unwrap();
        assert!(text.contains("\nlinked 1.0.0: MIT; A\n"), "{text}");
        assert!(
            text.ends_with("\nbelow 1.0.0, linked 1.0.0:\n\nCopyright A\n"),
            "{text}"
        );
        assert!(!text.contains("build-only"), "{text}");
    }
}
