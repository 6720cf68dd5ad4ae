//! `cargo xtask evidence`: results of tests, kept as data, and the page of numbers made from it.
//!
//! Results come from what ran: the reports that `proof`, `fuzz`, `soak` and `coverage` leave in the
//! target directory, the lists of tests that the built programs print, and the versions of the
//! oracles on this machine. They are kept in `docs/results/evidence`, from which
//! `docs/how-it-is-tested.md` is made. A part without a new report keeps its earlier results. A
//! test compares the page with the results. A result that cannot be repeated is
//! refused: of sources with changes, or of a commit that HEAD does not come from.

mod oracles;
mod page;
mod tests_list;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use anyhow::{Context, Result, ensure};
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

/// Which results are kept.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Empty for all.
    pub parts: Vec<String>,
    /// Also a soak in which rounds failed.
    pub allow_failures: bool,
}

/// Collects the named parts, or all, and makes the page; nothing is changed after a refusal.
pub fn run(workspace: &Workspace, plan: &Plan) -> Result<()> {
    let is_wanted =
        |name: &str| plan.parts.is_empty() || plan.parts.iter().any(|wanted| wanted == name);
    let target = workspace.target_dir()?;
    let mut results = Vec::new();
    for (name, report) in REPORTS.iter().filter(|(name, _)| is_wanted(name)) {
        let from = target.join(report);
        if from.exists() {
            let result = read(&from)?;
            check(workspace.root(), &result, plan.allow_failures)
                .with_context(|| format!("{name}: {} is not kept", from.display()))?;
            results.push((name, result));
        } else {
            eprintln!("{name}: no report at {}", from.display());
        }
    }
    // Before a file is changed, which would change their commit.
    for (name, collect) in COLLECTED.iter().filter(|(name, _)| is_wanted(name)) {
        step::heading(&format!("evidence: {name}"));
        let result = collect(workspace)?;
        check(workspace.root(), &result, plan.allow_failures)
            .with_context(|| format!("{name} is not kept"))?;
        results.push((name, result));
    }
    for (name, result) in &results {
        keep(workspace, name, result)?;
    }
    render(workspace)
}

/// Refuses a result that cannot be repeated, and one with failures unless they are allowed.
fn check(root: &Path, result: &Value, allow_failures: bool) -> Result<()> {
    for commit in commits(result) {
        provenance::check(root, commit)?;
    }
    let mut rows = result["rows"].as_array().into_iter().flatten();
    ensure!(
        rows.all(|row| row["commit"].is_string()),
        "a row has no commit: run it again"
    );
    let failures = result["failures"].as_u64().unwrap_or(0);
    ensure!(
        failures == 0 || allow_failures,
        "{failures} rounds failed: --allow-failures keeps them"
    );
    Ok(())
}

/// The commits of a result and of its parts.
fn commits(result: &Value) -> BTreeSet<&str> {
    let own = result["commit"].as_str();
    let parts: Box<dyn Iterator<Item = &Value>> = match result {
        Value::Array(parts) => Box::new(parts.iter()),
        Value::Object(parts) => Box::new(parts.values()),
        _ => Box::new(iter::empty()),
    };
    own.into_iter().chain(parts.flat_map(commits)).collect()
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

    #[test]
    fn result_of_changed_sources_or_with_failures_is_refused() {
        let workspace = Workspace::find().unwrap();
        let refused = |result: Value, allow_failures| {
            let checked = check(workspace.root(), &result, allow_failures);
            checked.err().map(|error| error.to_string())
        };
        let row = json!({ "rows": [{ "commit": "HEAD" }, { "commit": "5ae459fc80-dirty" }] });
        let error = refused(row, true).unwrap();
        assert!(error.contains("5ae459fc80-dirty"), "{error}");
        let crates = json!({ "ext4": { "commit": "5ae459fc80-dirty" } });
        assert!(refused(crates, true).is_some());
        let old = json!({ "commit": "HEAD", "rows": [{ "name": "qcow2" }] });
        assert!(refused(old, true).unwrap().contains("a row has no commit"));

        let soak = json!({ "commit": "HEAD", "failures": 2 });
        let error = refused(soak.clone(), false).unwrap();
        assert!(error.contains("2 rounds failed: --allow-failures"));
        assert_eq!(refused(soak, true), None);
        let sound = json!({ "commit": "HEAD", "failures": 0, "programs": [{ "failures": [] }] });
        assert_eq!(refused(sound, false), None);
    }
}
