//! Saved results as they are read: the JSON that a run prints, in files of one result or an array
//! of them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::goal::Comparison;
use crate::machine::Machine;
use crate::metrics::median;
use crate::table::number;

/// Parts of a report that pages show.
#[derive(Clone, Debug, Deserialize)]
pub struct SavedReport {
    /// Name of the bench.
    pub bench: String,
    /// Its parameters.
    pub title: String,
    /// Where it ran.
    pub machine: Machine,
    /// The commit of the tree.
    pub commit: SavedCommit,
    /// When, in UTC.
    pub date: String,
    /// Small and few samples.
    #[serde(default)]
    pub quick: bool,
    /// All samples.
    pub figures: Vec<Figure>,
    /// Results of the goals.
    pub goals: Vec<SavedGoal>,
    /// For readers.
    pub notes: Vec<String>,
    /// Printed tables.
    pub tables: Vec<SavedTable>,
    /// All of it, with what is not above.
    #[serde(skip)]
    pub data: Value,
}

/// The commit.
#[derive(Clone, Debug, Deserialize)]
pub struct SavedCommit {
    id: Option<String>,
    dirty: bool,
}

impl SavedCommit {
    /// In short.
    pub fn short(&self) -> String {
        let id = self.id.as_deref().unwrap_or("none");
        let short = id.get(..10).unwrap_or(id);
        if self.dirty {
            format!("{short} with changes")
        } else {
            short.to_owned()
        }
    }
}

/// A metric.
#[derive(Clone, Debug, Deserialize)]
pub struct Figure {
    /// The measured case.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// As a user would type it.
    pub command: String,
    /// In the order of the rounds.
    pub samples: Vec<f64>,
}

impl Figure {
    /// One for tests.
    #[cfg(test)]
    pub fn of_samples(name: &str, unit: &str, samples: &[f64]) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            command: String::new(),
            samples: samples.to_vec(),
        }
    }

    /// Their median; NaN of none, which equals nothing.
    pub fn median(&self) -> f64 {
        median(&self.samples).unwrap_or(f64::NAN)
    }

    /// The least and the greatest.
    pub fn range(&self) -> (f64, f64) {
        let bounds = (f64::INFINITY, f64::NEG_INFINITY);
        let samples = self.samples.iter();
        samples.fold(bounds, |(min, max), &x| (min.min(x), max.max(x)))
    }

    /// `min..max`, as tables have it.
    pub fn spread(&self) -> String {
        let (min, max) = self.range();
        format!("{}..{}", number(min), number(max))
    }
}

/// A goal and its result.
#[derive(Clone, Debug, Deserialize)]
pub struct SavedGoal {
    /// Unique within the bench.
    pub name: String,
    /// The measured value.
    pub value: Option<f64>,
    /// The bound.
    pub goal: f64,
    /// Unit of both.
    pub unit: String,
    /// The good side of the bound.
    pub comparison: Comparison,
    /// `None`: not evaluated.
    pub met: Option<bool>,
    /// Why it was not evaluated or not measured.
    pub why: Option<String>,
}

impl SavedGoal {
    /// `at least 1.2`.
    pub fn wanted(&self) -> String {
        let wanted = format!("{} {} {}", self.comparison, self.goal, self.unit);
        wanted.trim_end().to_owned()
    }

    /// The value with its unit.
    pub fn found(&self) -> String {
        let value = self.value.map_or_else(|| "-".to_owned(), number);
        format!("{value} {}", self.unit).trim_end().to_owned()
    }
}

/// A table.
#[derive(Clone, Debug, Deserialize)]
pub struct SavedTable {
    /// Names of the columns.
    pub heading: Vec<String>,
    /// Cells as text.
    pub rows: Vec<Vec<String>>,
}

impl SavedReport {
    /// From the JSON of one result.
    ///
    /// # Errors
    /// The first field that is missing or of another type.
    pub fn new(data: Value) -> Result<Self> {
        let parsed: Self = serde_json::from_value(data.clone())?;
        let is_whole = |table: &SavedTable| {
            let columns = table.heading.len();
            table.rows.iter().all(|row| row.len() == columns)
        };
        ensure!(
            parsed.tables.iter().all(is_whole),
            "a table has rows of different lengths"
        );
        Ok(Self { data, ..parsed })
    }

    /// Goals with that verdict.
    pub fn goals_that_are(&self, met: Option<bool>) -> impl Iterator<Item = &SavedGoal> {
        self.goals.iter().filter(move |goal| goal.met == met)
    }
}

/// The results in `path`: a file of one or an array, or a directory of such files, named `*.json`.
///
/// # Errors
/// A file that cannot be read or is no result.
pub fn read(path: &Path) -> Result<Vec<SavedReport>> {
    if path.is_dir() {
        let mut files = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .with_context(|| format!("{}", path.display()))?;
        return read_files(&mut files);
    }
    let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let results = match serde_json::from_str(&text) {
        Ok(Value::Array(results)) => results,
        Ok(result) => vec![result],
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    let results = results.into_iter().map(SavedReport::new);
    results
        .collect::<Result<_>>()
        .with_context(|| format!("{}: not a result of extant-bench --json", path.display()))
}

fn read_files(files: &mut Vec<PathBuf>) -> Result<Vec<SavedReport>> {
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    let results: Result<Vec<_>> = files.iter().map(|file| read(file)).collect();
    Ok(results?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_one_result_or_an_array_and_a_directory_has_files() {
        let saved = crate::results::directory();
        let one = read(&saved.join("through.json")).unwrap();
        assert_eq!(one[0].bench, "through");
        let place = tempfile::tempdir().unwrap();
        let all: Vec<_> = read(&saved).unwrap();
        assert!(all.len() > 1);
        let data: Vec<_> = all.iter().map(|result| &result.data).collect();
        let file = place.path().join("all.json");
        fs::write(&file, serde_json::to_string(&data).unwrap()).unwrap();
        fs::write(place.path().join("README.md"), "no result").unwrap();
        for path in [&*file, place.path()] {
            assert_eq!(read(path).unwrap().len(), all.len(), "{}", path.display());
        }
    }

    #[test]
    fn other_json_is_named_with_its_file() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.json");
        fs::write(&file, "{\"bench\": 1}").unwrap();
        let error = format!("{:#}", read(&file).unwrap_err());
        assert!(error.contains("x.json: not a result"), "{error}");
    }
}
