//! Saved results: `docs/results/NAME.json` is a report, and the pages next to it are
//! generated from it.
//!
//! `extant-bench NAME --save` runs a bench, writes its data and makes the pages again;
//! `extant-bench pages` only makes the pages. A test compares the pages with the data.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::benches;
use crate::product;
use crate::report::Report;
use crate::saved::{self, SavedReport};

const DIRECTORY: &str = "docs/results";
const INDEX: &str = "README.md";

/// Writes the data of a run and makes the pages.
pub fn save(report: &Report) -> Result<()> {
    let path = directory().join(format!("{}.json", report.bench()));
    fs::create_dir_all(directory()).with_context(|| DIRECTORY.to_owned())?;
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    write_pages()
}

/// Makes the pages from all data.
pub fn write_pages() -> Result<()> {
    for (name, text) in pages()? {
        let path = directory().join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// Where the results are.
pub fn directory() -> PathBuf {
    product::root().join(DIRECTORY)
}

/// Names of the pages with their texts, in the order of the benches.
fn pages() -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut index = String::from(
        "# Results\n\n\
         Made by `extant-bench pages` from the data beside it. The method and the meaning of each goal:\n\
         [../benchmarks.md](../benchmarks.md). One page with charts: `extant-bench report`.\n\n\
         | bench | date | commit | processors | load | goals met | missed |\n|---|---|---|---|---|---|---|\n",
    );
    for bench in benches::ALL {
        let path = directory().join(format!("{}.json", bench.name()));
        if !path.exists() {
            continue;
        }
        for kept in saved::read(&path)? {
            writeln!(index, "{}", kept.index_row())?;
            found.insert(format!("{}.md", kept.bench), kept.page()?);
        }
    }
    found.insert(INDEX.to_owned(), index);
    Ok(found)
}

impl SavedReport {
    fn index_row(&self) -> String {
        let of = |met| self.goals_that_are(met);
        let missed: Vec<_> = of(Some(false))
            .map(|goal| format!("`{}`", goal.name))
            .collect();
        format!(
            "| [`{0}`]({0}.md) | {1} | {2} | {3} | {4} | {5} of {6} | {7} |",
            self.bench,
            self.date.get(..10).unwrap_or(&self.date),
            self.commit.short(),
            self.machine.cores,
            self.machine.load,
            of(Some(true)).count(),
            self.goals.len() - of(None).count(),
            missed.join(", "),
        )
    }

    fn page(&self) -> Result<String> {
        let mut page = format!("# {}: {}\n\n", self.bench, escaped(&self.title));
        let machine = &self.machine;
        writeln!(
            page,
            "{}, commit {}. {}, {} processors, kernel {}, disk {}; load at the start {}. Medians; \
             ranges are minimum..maximum.\n\nData: [{}.json]({}.json).",
            self.date,
            self.commit.short(),
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.disk,
            machine.load,
            self.bench,
            self.bench,
        )?;
        for table in &self.tables {
            write!(page, "\n{}", markdown(&table.heading, &table.rows)?)?;
        }
        let goals = self.goals.iter().map(|goal| {
            let verdict = match goal.met {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "not evaluated",
            };
            let why = goal.why.as_ref();
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            vec![
                format!("`{}`", goal.name),
                goal.wanted(),
                goal.found(),
                format!("{verdict}{why}"),
            ]
        });
        let heading = ["goal", "wanted", "found", ""].map(str::to_owned);
        write!(
            page,
            "\n{}",
            markdown(&heading, &goals.collect::<Vec<_>>())?
        )?;
        for note in &self.notes {
            writeln!(page, "\n{}", escaped(note))?;
        }
        Ok(page)
    }
}

fn markdown(heading: &[String], rows: &[Vec<String>]) -> Result<String> {
    let mut text = String::new();
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |", cells.join(" | "))
    };
    writeln!(text, "{}", line(heading))?;
    writeln!(text, "|{}", "---|".repeat(heading.len()))?;
    for row in rows {
        writeln!(text, "{}", line(row))?;
    }
    Ok(text)
}

/// With Markdown's special characters escaped.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "&lt;")
        .replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_made_from_the_data() {
        for (name, wanted) in pages().unwrap() {
            let found = fs::read_to_string(directory().join(&name)).unwrap_or_default();
            assert!(
                found == wanted,
                "{DIRECTORY}/{name}: run extant-bench pages"
            );
        }
    }

    #[test]
    fn cell_cannot_end_its_column() {
        let row = vec![vec!["a|b".to_owned(), "<c>".to_owned()]];
        let text = markdown(&["x".to_owned(), String::new()], &row).unwrap();
        assert_eq!(text, "| x |  |\n|---|---|\n| a\\|b | &lt;c> |\n");
    }
}
