//! The results of a soak, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::programs::Program;
use crate::proof::keep_count;
use crate::provenance;
use crate::workspace::Workspace;

/// The line that `extant_testkit::seeds::counted` prints.
const COUNTED: &str = "counted: ";

/// Everything that was done.
pub struct Report {
    commit: String,
    date: String,
    seed: u64,
    pub seconds: u64,
    pub programs: Vec<Entry>,
}

/// One program.
#[derive(Default)]
pub struct Entry {
    name: &'static str,
    pub rounds: u64,
    pub seconds: f64,
    /// By unit: cuts, kills, and what else is counted.
    pub counts: BTreeMap<String, u64>,
    pub failures: Vec<Failure>,
}

/// A round that failed.
pub struct Failure {
    pub seed: u64,
    pub command: String,
    /// The file with its output, in `target/soak`.
    pub log: String,
}

impl Report {
    pub fn new(workspace: &Workspace, seed: u64, programs: &[&Program]) -> Result<Self> {
        Ok(Self {
            commit: provenance::commit(workspace)?,
            date: provenance::today(),
            seed,
            seconds: 0,
            programs: programs
                .iter()
                .map(|program| Entry {
                    name: program.name,
                    ..Entry::default()
                })
                .collect(),
        })
    }

    pub fn failures(&self) -> usize {
        self.programs.iter().map(|entry| entry.failures.len()).sum()
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let programs: Vec<_> = self.programs.iter().map(Entry::json).collect();
        let report = json!({
            "commit": self.commit,
            "date": self.date,
            "seed": self.seed,
            "seconds": self.seconds,
            "failures": self.failures(),
            "programs": programs,
        });
        fs::write(path, format!("{report:#}\n")).with_context(|| format!("{}", path.display()))
    }

    /// As Markdown.
    pub fn table(&self) -> String {
        let mut text = format!(
            "\nSoak of {:.2} hours at {}, first seed {}:\n\n\
             | program | rounds | minutes | cases | cuts | kills | failures |\n|---|---|---|---|---|---|---|\n",
            self.seconds as f64 / 3600.0,
            self.commit,
            self.seed
        );
        let mut total = Entry {
            name: "all",
            ..Entry::default()
        };
        for entry in &self.programs {
            text.push_str(&entry.row(entry.failures.len()));
            total.rounds += entry.rounds;
            total.seconds += entry.seconds;
            for (unit, count) in &entry.counts {
                *total.counts.entry(unit.clone()).or_default() += count;
            }
        }
        text.push_str(&total.row(self.failures()));
        for entry in &self.programs {
            for failure in &entry.failures {
                let line = writeln!(text, "\n{} failed: {}", entry.name, failure.command);
                line.expect("a string takes any text");
            }
        }
        text
    }
}

impl Entry {
    fn count(&self, unit: &str) -> u64 {
        self.counts.get(unit).copied().unwrap_or(0)
    }

    /// Images, operations, runs and sequences.
    fn cases(&self) -> u64 {
        self.counts.values().sum::<u64>() - self.count("cuts") - self.count("kills")
    }

    fn row(&self, failures: usize) -> String {
        format!(
            "| {} | {} | {:.1} | {} | {} | {} | {failures} |\n",
            self.name,
            self.rounds,
            self.seconds / 60.0,
            self.cases(),
            self.count("cuts"),
            self.count("kills"),
        )
    }

    fn json(&self) -> Value {
        let failures: Vec<_> = self
            .failures
            .iter()
            .map(|failure| {
                json!({
                    "seed": failure.seed,
                    "command": failure.command,
                    "log": failure.log,
                })
            })
            .collect();
        json!({
            "program": self.name,
            "rounds": self.rounds,
            "seconds": self.seconds.round(),
            "cases": self.cases(),
            "cuts": self.count("cuts"),
            "kills": self.count("kills"),
            "counts": self.counts,
            "failures": failures,
        })
    }
}

/// The counts in the output of tests, by unit.
pub fn counts(output: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut add = |unit: &str, count: u64| *counts.entry(unit.to_owned()).or_default() += count;
    let mut tallies = Vec::new();
    for line in output.lines() {
        if let Some((_, rest)) = line.split_once(COUNTED)
            && let Some((count, unit)) = rest.split_once(' ')
            && let Ok(count) = count.parse()
        {
            add(unit, count);
        }
        keep_count(line, &mut tallies);
    }
    for tally in tallies {
        let words: Vec<_> = tally.split_whitespace().collect();
        for pair in words.windows(2) {
            let unit = pair[1].trim_end_matches([',', ';']);
            if let ("sequences" | "cuts", Ok(count)) = (unit, pair[0].parse()) {
                add(unit, count);
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test a::b ... counted: 12 cuts
counted: 8 cuts
counted: 3 kills
ext4, full, three operations, sampled: 5 sequences, 3 possible; 70 cuts, 9 more equal to one of these; 1 by the oracle; 1.0 s
ext4, full, three operations, sampled: 10 sequences, 6 possible; 100 cuts, 19 more equal to one of these; 1 by the oracle; 2.0 s
ok
";

    #[test]
    fn counts_of_all_tests_are_added_and_of_samples_the_last_is_taken() {
        let counts = counts(OUTPUT);
        let expected = [("cuts", 120), ("kills", 3), ("sequences", 10)];
        let expected = expected.map(|(unit, count)| (unit.to_owned(), count));
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn table_has_a_row_for_each_program_the_total_and_each_failure() {
        let report = Report {
            commit: "abc".into(),
            date: "2026-11-26".into(),
            seed: 7,
            seconds: 360,
            programs: vec![Entry {
                name: "power",
                rounds: 2,
                seconds: 90.0,
                counts: counts(OUTPUT),
                failures: vec![Failure {
                    seed: 8,
                    command: "EXTANT_POWER_SEEDS=8..9 cargo test".into(),
                    log: "log".into(),
                }],
            }],
        };
        let table = report.table();
        assert!(table.contains("Soak of 0.10 hours at abc"), "{table}");
        assert!(
            table.contains("| power | 2 | 1.5 | 10 | 120 | 3 | 1 |"),
            "{table}"
        );
        assert!(
            table.contains("| all | 2 | 1.5 | 10 | 120 | 3 | 1 |"),
            "{table}"
        );
        assert!(table.ends_with("power failed: EXTANT_POWER_SEEDS=8..9 cargo test\n"));
        assert_eq!(report.failures(), 1);
    }
}
