//! `cargo xtask evidence`: results of tests, kept as data, and the page of numbers made from it.
//!
//! Results come from what ran: the reports that `proof`, `fuzz`, `soak` and `coverage` leave in the
//! target directory, the lists of tests that the built programs print, and the versions of the
//! oracles on this machine. They are kept in `docs/results/evidence`, from which
//! `docs/how-it-is-tested.md` is made. A part without a new report keeps its earlier results. A
//! test compares the page with the results.

mod oracles;
mod page;
mod tests_list;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::provenance;
use crate::step;
use crate::workspace::Workspace;

const RESULTS: &str = "docs/results/evidence";
const PAGE: &str = "docs/how-it-is-tested.md";

/// Parts of the page: their names, and where the target directory has a report of them.
const REPORTS: [(&str, &str); 4] = [
    ("proof", "proof/report.json"),
    ("fuzz", "fuzz/report.json"),
    ("soak", "soak/report.json"),
    ("coverage", "coverage/report.json"),
];

/// Makes results of this machine.
type Collect = fn(&Workspace) -> Result<Value>;

/// Parts that are collected now. Lists of tests need all test programs, which are built.
const COLLECTED: [(&str, Collect); 2] = [
    ("tests", tests_list::collect),
    ("oracles", |_| oracles::collect()),
];

/// The names of the parts.
pub fn names() -> impl Iterator<Item = &'static str> {
    let reports = REPORTS.iter().map(|(name, _)| *name);
    reports.chain(COLLECTED.iter().map(|(name, _)| *name))
}

/// Collects the named parts, or all, and makes the page.
pub fn run(workspace: &Workspace, only: &[String]) -> Result<()> {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    let target = workspace.target_dir()?;
    for (name, report) in REPORTS.iter().filter(|(name, _)| is_wanted(name)) {
        let from = target.join(report);
        if from.exists() {
            keep(workspace, name, &read(&from)?)?;
        } else {
            eprintln!("{name}: no report at {}", from.display());
        }
    }
    for (name, collect) in COLLECTED.iter().filter(|(name, _)| is_wanted(name)) {
        step::heading(&format!("evidence: {name}"));
        keep(workspace, name, &collect(workspace)?)?;
    }
    render(workspace)
}

/// Makes the page from the kept results.
pub fn render(workspace: &Workspace) -> Result<()> {
    let page = workspace.root().join(PAGE);
    fs::write(&page, page::render(&results(workspace)?)).with_context(|| PAGE)
}

fn keep(workspace: &Workspace, name: &str, result: &Value) -> Result<()> {
    let path = path_of(workspace, name);
    fs::write(&path, format!("{result:#}\n")).with_context(|| path.display().to_string())
}

fn path_of(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.root().join(RESULTS).join(format!("{name}.json"))
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The kept results, by part; `null` for one without.
fn results(workspace: &Workspace) -> Result<Value> {
    let mut all = json!({});
    for name in names() {
        let path = path_of(workspace, name);
        if path.exists() {
            all[name] = read(&path)?;
        }
    }
    Ok(all)
}

/// The object of a part, with commit and date.
fn stamped(workspace: &Workspace, mut result: Value) -> Result<Value> {
    result["commit"] = json!(provenance::commit(workspace)?);
    result["date"] = json!(provenance::today());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_made_from_the_kept_results() {
        let workspace = Workspace::find().unwrap();
        let page = fs::read_to_string(workspace.root().join(PAGE)).unwrap();
        let rendered = page::render(&results(&workspace).unwrap());
        assert!(
            page == rendered,
            "cargo xtask evidence --render makes it again"
        );
    }
}
