//! The output of libFuzzer, and the table of all targets.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

/// Results of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub executions: u64,
    /// Edges that were reached.
    pub edges: u64,
    /// Edges and how often they were reached, and comparisons.
    pub features: u64,
    /// Inputs of the corpus.
    pub corpus: u64,
    pub corpus_bytes: u64,
    /// Inputs that failed.
    pub crashes: u64,
    pub took: Duration,
    /// Inputs in the sources.
    pub kept: usize,
}

impl Counts {
    /// Adds a later run of the same target, whose coverage replaces that of the earlier one.
    pub fn add(&mut self, later: Self) {
        *self = Self {
            executions: self.executions + later.executions,
            edges: self.edges.max(later.edges),
            features: self.features.max(later.features),
            corpus: self.corpus.max(later.corpus),
            corpus_bytes: self.corpus_bytes.max(later.corpus_bytes),
            ..self.clone()
        };
    }

    fn executions_per_second(&self) -> u64 {
        (self.executions as f64 / self.took.as_secs_f64().max(1e-3)) as u64
    }

    /// As an object of the report.
    pub fn json(&self, target: &str) -> Value {
        json!({
            "target": target,
            "executions": self.executions,
            "executions_per_second": self.executions_per_second(),
            "edges": self.edges,
            "features": self.features,
            "corpus_inputs": self.corpus,
            "corpus_bytes": self.corpus_bytes,
            "kept_inputs": self.kept,
            "crashes": self.crashes,
            "seconds": self.took.as_secs(),
        })
    }
}

/// The counts in the output of a run: those of the last line that has each.
pub fn final_counts(output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines() {
        // #8192 pulse cov: 312 ft: 918 corp: 77/1234b lim: 4096 exec/s: 2048 rss: 61Mb
        if let Some(rest) = line.strip_prefix('#') {
            let mut words = rest.split_whitespace();
            let number = words.next().and_then(|number| number.parse().ok());
            counts.executions = number.unwrap_or(counts.executions);
            let words: Vec<_> = words.collect();
            for pair in words.windows(2) {
                match *pair {
                    ["cov:", edges] => counts.edges = edges.parse().unwrap_or(counts.edges),
                    ["ft:", features] => {
                        counts.features = features.parse().unwrap_or(counts.features);
                    }
                    ["corp:", corpus] => {
                        if let Some((inputs, bytes)) = corpus.split_once('/') {
                            counts.corpus = inputs.parse().unwrap_or(counts.corpus);
                            counts.corpus_bytes = bytes_of(bytes).unwrap_or(counts.corpus_bytes);
                        }
                    }
                    _ => {}
                }
            }
        }
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            counts.executions = number.trim().parse().unwrap_or(counts.executions);
        }
    }
    counts
}

/// `12b`, `34Kb`, `5Mb`.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "b" => 1,
        "Kb" => 1 << 10,
        "Mb" => 1 << 20,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()? * unit)
}

/// One line for each target.
pub fn table(results: &[(String, Counts)]) -> String {
    let mut text = format!(
        "{:<14} {:>12} {:>7} {:>7} {:>9} {:>7} {:>6} {:>7}\n",
        "target", "executions", "exec/s", "edges", "features", "corpus", "kept", "crashes"
    );
    for (target, counts) in results {
        let line = writeln!(
            text,
            "{target:<14} {:>12} {:>7} {:>7} {:>9} {:>7} {:>6} {:>7}",
            counts.executions,
            counts.executions_per_second(),
            counts.edges,
            counts.features,
            counts.corpus,
            counts.kept,
            counts.crashes
        );
        line.expect("a string takes any text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
INFO: Seed: 1
#2\tINITED cov: 100 ft: 101 corp: 1/1b exec/s: 0 rss: 40Mb
#4096\tpulse  cov: 312 ft: 918 corp: 77/12Kb lim: 43 exec/s: 2048 rss: 61Mb
#5000\tDONE   cov: 313 ft: 920 corp: 78/13Kb lim: 43 exec/s: 2500 rss: 61Mb
Done 5000 runs in 2 second(s)
stat::number_of_executed_units: 5001
";

    #[test]
    fn last_counts_of_a_run_are_taken() {
        let counts = final_counts(OUTPUT);
        assert_eq!((counts.executions, counts.edges), (5001, 313));
        assert_eq!((counts.features, counts.corpus), (920, 78));
        assert_eq!(counts.corpus_bytes, 13 << 10);
    }

    #[test]
    fn runs_after_a_crash_add_executions_and_keep_coverage() {
        let mut total = final_counts(OUTPUT);
        total.add(Counts {
            executions: 9,
            edges: 12,
            ..Counts::default()
        });
        assert_eq!((total.executions, total.edges), (5010, 313));
    }

    #[test]
    fn table_has_a_line_for_each_target() {
        let results = [("ext4".to_owned(), final_counts(OUTPUT))];
        let table = table(&results);
        assert_eq!(table.lines().count(), 2);
        assert!(table.lines().nth(1).unwrap().starts_with("ext4 "));
    }
}
