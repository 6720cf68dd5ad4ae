//! The report of one run, for readers and as data.

use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::bench::{Bench, Context, Outcome};
use crate::commit::{self, Commit};
use crate::goal::GoalResult;
use crate::machine::Machine;
use crate::metrics::Metrics;
use crate::table::{Table, number};

/// Everything that is known of a run.
#[derive(Serialize)]
pub struct Report {
    bench: &'static str,
    title: String,
    machine: Machine,
    commit: Commit,
    date: String,
    quick: bool,
    #[serde(rename = "figures")]
    metrics: Metrics,
    goals: Vec<GoalResult>,
    notes: Vec<String>,
    tables: Vec<Table>,
}

impl Report {
    /// Runs the bench.
    pub fn of(bench: &dyn Bench, context: &Context) -> Result<Self> {
        let machine = Machine::of(context.path(), context.disk())?;
        let date = commit::now();
        let outcome = bench.run(context)?;
        let mut report = Self::new(bench, context.options.quick, machine, date, outcome)?;
        if !context.options.only.is_empty() {
            report.goals.retain(|goal| goal.value.is_some());
        }
        Ok(report)
    }

    fn new(
        bench: &dyn Bench,
        quick: bool,
        machine: Machine,
        date: String,
        outcome: Outcome,
    ) -> Result<Self> {
        for name in outcome.goals.keys() {
            let is_declared = bench.goals().iter().any(|goal| goal.name == *name);
            ensure!(is_declared, "the goal {name} is not declared");
        }
        let goals = bench.goals().iter();
        Ok(Self {
            bench: bench.name(),
            title: outcome.title,
            machine,
            commit: Commit::current(),
            date,
            quick,
            goals: goals
                .map(|goal| goal.evaluate(outcome.goals.get(goal.name)))
                .collect(),
            metrics: outcome.metrics,
            notes: outcome.notes,
            tables: outcome.tables,
        })
    }

    /// The name of the bench.
    pub fn bench(&self) -> &'static str {
        self.bench
    }

    /// Names of the goals that are missed.
    pub fn missed(&self) -> Vec<&'static str> {
        let missed = self.goals.iter().filter(|goal| goal.met == Some(false));
        missed.map(|goal| goal.name).collect()
    }

    fn goals_table(&self) -> Table {
        let mut table = Table::new(&["goal", "wanted", "found", ""]);
        for goal in &self.goals {
            let found = goal.value.map_or_else(|| "-".to_owned(), number);
            let found = format!("{found} {}", goal.unit);
            let verdict = match &goal.why {
                Some(why) => format!("{}: {why}", goal.word()),
                None => goal.word().to_owned(),
            };
            table.row(vec![
                goal.name.to_owned(),
                goal.wanted.clone(),
                found.trim_end().to_owned(),
                verdict,
            ]);
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.bench, self.title)?;
        writeln!(f, "machine: {}", self.machine.line())?;
        writeln!(f, "commit: {}; {}", self.commit.short(), self.date)?;
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        let commands = self.metrics.commands();
        if !commands.is_empty() {
            writeln!(f, "\ncommands:")?;
        }
        for (name, command) in commands {
            writeln!(f, "  {name}: {command}")?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        if self.quick {
            writeln!(f, "note: --quick: small and few samples; not conclusive")?;
        }
        write!(f, "\n{}", self.goals_table())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches;

    fn report() -> Report {
        let bench = benches::find("cancel").unwrap();
        let mut outcome = Outcome {
            title: "8GiB".to_owned(),
            ..Outcome::default()
        };
        outcome
            .metrics
            .record("cancel", "ms", "extant create", 12.0);
        let first = bench.goals()[0];
        outcome.goals.insert(first.name, first.bound.into());
        let machine = Machine {
            cpu: "cpu".to_owned(),
            cores: 2,
            memory_bytes: 1 << 30,
            kernel: "6.18".to_owned(),
            disk: "vda".to_owned(),
            file_system: "ext4".to_owned(),
            load: 0.1,
        };
        Report::new(
            bench,
            false,
            machine,
            "2026-01-01T00:00:00Z".to_owned(),
            outcome,
        )
        .unwrap()
    }

    #[test]
    fn data_holds_what_the_issue_names() {
        let json = serde_json::to_value(report()).unwrap();
        for key in ["bench", "machine", "commit", "date", "figures", "goals"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["goals"][0]["met"], true);
        assert_eq!(json["figures"][0]["median"], 12.0);
    }

    #[test]
    fn goal_without_a_value_is_missed() {
        let report = report();
        assert_eq!(report.missed().len(), report.goals.len() - 1);
        assert!(report.to_string().contains("MISSED: not measured"));
    }
}
