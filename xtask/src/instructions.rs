//! `cargo xtask instructions`: counts the instructions of hot paths and compares them with a
//! baseline.
//!
//! Instruction counts do not depend on the load of the machine. A crate with hot paths runs them in
//! an example and has its baseline in `instructions.json` beside the manifest. Each path runs under
//! callgrind with two repeat counts; the difference excludes set-up and clean-up.
//!
//! The baseline records its compiler; for another one the margin is wider.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::step;
use crate::workspace::Workspace;

/// Crates with hot paths: package and directory, and the example that runs them.
const CRATES: [(&str, &str, &str); 2] = [
    ("extant-mballoc", "crates/mballoc", "hot_paths"),
    ("extant-ext4", "crates/ext4", "ext4_hot_paths"),
];
/// The two counts that a path is run for.
const COUNTS: [u64; 2] = [1_000, 5_000];
/// Growth that fails, in percent: with the compiler of the baseline, and with another.
const MARGINS: [u64; 2] = [10, 30];
const BASELINE: &str = "instructions.json";

/// Use of the counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Compare them with the baseline.
    Compare,
    /// Make them the baseline.
    Update,
}

/// Instructions of one operation, by path.
type Counts = BTreeMap<String, u64>;

/// Counts, then compares or updates.
pub fn run(workspace: &Workspace, then: Then) -> Result<()> {
    let compiler = step::output(Command::new("rustc").arg("--version"))?;
    // All at once: what they share is built once, with the same features.
    let mut build = workspace.cargo(&["build", "--release", "--locked"]);
    for (package, _, example) in CRATES {
        build.args(["-p", package, "--example", example]);
    }
    step::run(&mut build)?;
    let mut grown = Vec::new();
    for (package, directory, example) in CRATES {
        step::heading(&format!("instructions of {package}"));
        let examples = workspace.target_dir()?.join("release/examples");
        let counts = count(&examples.join(example))?;
        let file = workspace.root().join(directory).join(BASELINE);
        if then == Then::Update {
            let text = json!({ "compiler": compiler.trim(), "instructions": counts });
            fs::write(&file, format!("{text:#}\n"))
                .with_context(|| format!("{directory}/{BASELINE}"))?;
        }
        let baseline = Baseline::read(&file).with_context(|| format!("{directory}/{BASELINE}"))?;
        let same = baseline.compiler == compiler.trim();
        if !same {
            eprintln!("the baseline was made by {}", baseline.compiler);
        }
        let margin = MARGINS[usize::from(!same)];
        let (table, worse) = compare(&baseline.counts, &counts, margin);
        eprint!("{table}");
        grown.extend(worse);
    }
    if !grown.is_empty() {
        bail!(
            "more instructions than the baseline allows: {}; where that is worth it, `cargo xtask instructions --update`",
            grown.join(", ")
        );
    }
    Ok(())
}

fn count(program: &Path) -> Result<Counts> {
    let names = step::output(&mut Command::new(program))?;
    let count = |name: &str| {
        let [few, many] = COUNTS.map(|count| callgrind(program, name, count));
        let instructions = many?.saturating_sub(few?) / (COUNTS[1] - COUNTS[0]);
        Ok((name.to_owned(), instructions))
    };
    names.lines().map(count).collect()
}

/// Instructions of a whole run.
fn callgrind(program: &Path, path: &str, count: u64) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([path, &count.to_string()]);
    let line = step::shown(&valgrind);
    let output = valgrind
        .output()
        .with_context(|| format!("`{line}` does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("`{line}` failed ({}): {said}", output.status);
    }
    collected(&said).with_context(|| format!("`{line}` printed no count: {said}"))
}

/// The number in callgrind's line `==PID== Collected : N`.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

struct Baseline {
    compiler: String,
    counts: Counts,
}

impl Baseline {
    fn read(file: &Path) -> Result<Self> {
        let value: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        let compiler = value["compiler"].as_str().context("no compiler")?;
        let counts = value["instructions"].as_object().context("no counts")?;
        let count = |(name, count): (&String, &Value)| {
            let count = count
                .as_u64()
                .with_context(|| format!("no count of {name}"))?;
            Ok((name.clone(), count))
        };
        Ok(Self {
            compiler: compiler.to_owned(),
            counts: counts.iter().map(count).collect::<Result<_>>()?,
        })
    }
}

/// A table, and the paths that take too many instructions or are not in both.
fn compare(baseline: &Counts, now: &Counts, margin: u64) -> (String, Vec<String>) {
    let mut table = String::new();
    let mut worse = Vec::new();
    for (name, &count) in now {
        let words = match baseline.get(name) {
            Some(&before) => {
                if count * 100 > before * (100 + margin) {
                    worse.push(name.clone());
                }
                let change = (count as f64 / before.max(1) as f64 - 1.0) * 100.0;
                format!("{before:>8}  {change:>+6.1} %")
            }
            None => {
                worse.push(name.clone());
                "not in the baseline".to_owned()
            }
        };
        table += &format!("{name:<40} {count:>8}  {words}\n");
    }
    for name in baseline.keys().filter(|name| !now.contains_key(*name)) {
        table += &format!("{name:<40} is in the baseline alone\n");
        worse.push(name.clone());
    }
    (table, worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> Counts {
        pairs
            .iter()
            .map(|&(name, count)| (name.to_owned(), count))
            .collect()
    }

    #[test]
    fn growth_past_the_margin_is_worse_and_less_is_not() {
        let baseline = counts(&[("take", 100), ("free", 100), ("load", 100)]);
        let now = counts(&[("take", 110), ("free", 111), ("load", 50)]);
        assert_eq!(compare(&baseline, &now, 10).1, ["free"]);
        assert_eq!(compare(&baseline, &now, 30).1, Vec::<String>::new());
    }

    #[test]
    fn path_on_one_side_alone_is_worse() {
        let (table, worse) = compare(&counts(&[("old", 1)]), &counts(&[("new", 1)]), 10);
        assert_eq!(worse, ["new", "old"]);
        assert!(table.contains("not in the baseline") && table.contains("baseline alone"));
    }

    #[test]
    fn count_is_parsed_from_callgrind_output() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Killed\n"), None);
    }
}
