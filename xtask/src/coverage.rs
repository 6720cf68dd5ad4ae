//! `cargo xtask coverage`: the lines, regions and branches that the tests of a crate reach in it.
//!
//! The tests run as `cargo llvm-cov` instruments them, one crate after the other: coverage by tests
//! of other crates is not counted. The profiles are read by LLVM's tools of the compiler's version:
//! the component `llvm-tools` of rustup, or Debian's `llvm-N`. Counting branches is an unstable
//! feature of the compiler, which `RUSTC_BOOTSTRAP` enables. `target/coverage/report.json` has the
//! sums of each crate, `CRATE.txt` beside it the sources with counts, and `CRATE.lcov` the lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::cargo_tool::CargoTool;
use crate::provenance;
use crate::step;
use crate::workspace::Workspace;

const LLVM_COV: CargoTool = CargoTool {
    name: "cargo-llvm-cov",
    version: "0.9.1",
    features: None,
};

/// The crates that hold the data of others, whose uncovered code is reviewed.
const CORE: [&str; 4] = ["mballoc", "jbd2", "ext4", "image"];
/// Units that LLVM counts.
const KINDS: [&str; 4] = ["lines", "regions", "branches", "functions"];

/// Runs the tests of the crates, or of the core, and reports.
pub fn run(workspace: &Workspace, crates: &[String]) -> Result<()> {
    let tools = Tools::find()?;
    let program = LLVM_COV.program(workspace)?;
    let directory = workspace.target_dir()?.join("coverage");
    fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
    let path = directory.join("report.json");
    let mut report = read(&path);
    let core = CORE.map(String::from);
    for name in if crates.is_empty() { &core } else { crates } {
        step::heading(&format!("coverage of {name}"));
        let coverage = Coverage {
            workspace,
            tools: &tools,
            program: &program,
            directory: &directory,
            name,
        };
        report.insert(name.clone(), coverage.measure()?);
        let text = format!("{:#}\n", Value::Object(report.clone()));
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    print!("{}", table(&report));
    Ok(())
}

fn read(path: &Path) -> Map<String, Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// LLVM's readers of profiles, of the version of the compiler.
struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// Finds them, or installs them.
    fn find() -> Result<Self> {
        let about = step::output(Command::new("rustc").arg("-vV"))?;
        let field = |name: &str| {
            let line = about.lines().find_map(|line| line.strip_prefix(name));
            line.with_context(|| format!("rustc -vV prints no {name}"))
        };
        let host = field("host: ")?;
        let major = field("LLVM version: ")?.split('.').next().unwrap_or("");
        let root = step::output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let beside = Path::new(root.trim())
            .join("lib/rustlib")
            .join(host)
            .join("bin");
        let ours = || Self::new(&beside, "");
        let debians = || Self::new(Path::new("/usr/bin"), &format!("-{major}"));
        if let Some(found) = ours().or_else(debians) {
            return Ok(found);
        }
        step::heading("llvm-tools");
        let installed = step::run(Command::new("rustup").args(["component", "add", "llvm-tools"]));
        if installed.is_ok()
            && let Some(found) = ours()
        {
            return Ok(found);
        }
        let package = format!("llvm-{major}");
        step::run(Command::new("apt-get").args(["install", "-y", "-qq", &package]))?;
        debians().with_context(|| format!("{package} has no llvm-profdata-{major}"))
    }

    fn new(directory: &Path, suffix: &str) -> Option<Self> {
        let tool = |name: &str| Some(directory.join(format!("{name}{suffix}")));
        let found = Self {
            profdata: tool("llvm-profdata")?,
            cov: tool("llvm-cov")?,
        };
        (found.profdata.exists() && found.cov.exists()).then_some(found)
    }
}

/// One crate.
struct Coverage<'a> {
    workspace: &'a Workspace,
    tools: &'a Tools,
    program: &'a Path,
    directory: &'a Path,
    name: &'a str,
}

impl Coverage<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.arg("llvm-cov").args(words);
        command.current_dir(self.workspace.root());
        command.env("LLVM_COV", &self.tools.cov);
        command.env("LLVM_PROFDATA", &self.tools.profdata);
        command.env("RUSTC_BOOTSTRAP", "1");
        command.env("EXTANT_TEST_STRICT", "1");
        command
    }

    fn measure(&self) -> Result<Value> {
        let commit = provenance::commit(self.workspace)?;
        let package = format!("extant-{}", self.name);
        let mut test = self.command(&["--no-report", "--branch", "--locked", "-p", &package]);
        step::run(&mut self.command(&["clean", "--profraw-only"]))?;
        // Ordinary tests, the slow exhaustive ones in their shard of the day.
        step::run(&mut test)?;
        let report = |more: &[&str]| {
            let mut words = vec!["report", "--branch", "-p", &package];
            words.extend(more);
            self.command(&words)
        };
        for (extension, form) in [("txt", "--text"), ("lcov", "--lcov")] {
            let path = self.directory.join(format!("{}.{extension}", self.name));
            let path = path.to_str().context("the target directory is not UTF-8")?;
            step::run(report(&[form, "--output-path", path]).stdout(Stdio::null()))?;
        }
        let text = step::output(&mut report(&["--json", "--summary-only"]))?;
        let summary: Value = serde_json::from_str(&text).context("llvm-cov printed no JSON")?;
        let mut entry = sums(&summary, &format!("/crates/{}/src/", self.name))?;
        entry.insert("commit".into(), json!(commit));
        entry.insert("date".into(), json!(provenance::today()));
        Ok(Value::Object(entry))
    }
}

/// The sums of the files in `directory`: for each kind how many there are and are covered.
fn sums(summary: &Value, directory: &str) -> Result<Map<String, Value>> {
    let files = summary["data"][0]["files"].as_array();
    let files = files.context("llvm-cov lists no files")?;
    let mut sums: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for file in files {
        if !file["filename"]
            .as_str()
            .is_some_and(|name| name.contains(directory))
        {
            continue;
        }
        for kind in KINDS {
            let of = |field: &str| file["summary"][kind][field].as_u64().unwrap_or(0);
            let [count, covered] = sums.entry(kind).or_default();
            *count += of("count");
            *covered += of("covered");
        }
    }
    if sums.is_empty() {
        bail!("no file in {directory} was instrumented");
    }
    let entry = |(kind, [count, covered]): (&str, [u64; 2])| {
        (
            kind.to_owned(),
            json!({ "count": count, "covered": covered }),
        )
    };
    Ok(sums.into_iter().map(entry).collect())
}

fn table(report: &Map<String, Value>) -> String {
    let mut text = format!(
        "{:<10} {:>8} {:>8} {:>9} {:>10}\n",
        "crate", "lines", "regions", "branches", "functions"
    );
    for (name, entry) in report {
        let shares: Vec<_> = KINDS.iter().map(|kind| share(&entry[*kind])).collect();
        text.push_str(&format!(
            "{name:<10} {:>8} {:>8} {:>9} {:>10}\n",
            shares[0], shares[1], shares[2], shares[3]
        ));
    }
    text
}

/// In percent.
pub fn share(counts: &Value) -> String {
    let of = |field: &str| counts[field].as_f64().unwrap_or(0.0);
    if of("count") == 0.0 {
        return "none".into();
    }
    format!("{:.1}%", 100.0 * of("covered") / of("count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_files_of_the_crate() {
        let file = |name: &str, count, covered| {
            let counts = json!({ "count": count, "covered": covered });
            let summary = json!({ "lines": counts, "regions": counts, "branches": counts, "functions": counts });
            json!({ "filename": name, "summary": summary })
        };
        let files = [
            file("/x/crates/ext4/src/a.rs", 10, 9),
            file("/x/crates/ext4/src/b/c.rs", 30, 21),
            file("/x/crates/jbd2/src/a.rs", 5, 0),
        ];
        let sums = sums(
            &json!({ "data": [{ "files": files }] }),
            "/crates/ext4/src/",
        )
        .unwrap();
        assert_eq!(sums["lines"], json!({ "count": 40, "covered": 30 }));
        assert_eq!(share(&sums["branches"]), "75.0%");
        assert!(super::sums(&json!({ "data": [{ "files": files }] }), "/none/").is_err());
    }
}
