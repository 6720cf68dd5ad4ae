//! `target/proof/report.json`: the counts of the last run of each part, with its commit and date.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::provenance;
use crate::workspace::Workspace;

/// Where the results of a run come from.
pub struct Stamp {
    commit: String,
    date: String,
}

impl Stamp {
    /// That of a run that begins now.
    pub fn now(workspace: &Workspace) -> Result<Self> {
        Ok(Self {
            commit: provenance::commit(workspace)?,
            date: provenance::today(),
        })
    }
}

/// Adds the lines of a run; rows of earlier runs stay where no line replaces them.
pub fn write(workspace: &Workspace, stamp: &Stamp, lines: &[String]) -> Result<()> {
    let directory = workspace.target_dir()?.join("proof");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let path = directory.join("report.json");
    let earlier = fs::read_to_string(&path).unwrap_or_default();
    let earlier: Value = serde_json::from_str(&earlier).unwrap_or_default();
    let report = json!({ "rows": merged(&earlier["rows"], stamp, lines) });
    fs::write(&path, format!("{report:#}\n")).with_context(|| path.display().to_string())
}

fn merged(earlier: &Value, stamp: &Stamp, lines: &[String]) -> Vec<Value> {
    let mut rows = earlier.as_array().cloned().unwrap_or_default();
    // Where a row without a commit comes from is not known.
    rows.retain(|row| row["commit"].is_string());
    for mut row in lines.iter().filter_map(|line| row(line)) {
        row["commit"] = json!(stamp.commit);
        row["date"] = json!(stamp.date);
        match rows.iter_mut().find(|other| other["name"] == row["name"]) {
            Some(other) => *other = row,
            None => rows.push(row),
        }
    }
    rows
}

/// The numbers of a line, which are in front of their words.
fn row(line: &str) -> Option<Value> {
    let (name, counts) = line.split_once(": ")?;
    let words: Vec<_> = counts.split_whitespace().collect();
    let words: Vec<_> = words
        .iter()
        .map(|word| word.trim_end_matches([',', ';']))
        .collect();
    let before = |word: &str| {
        let pair = words.windows(2).find(|pair| pair[1] == word)?;
        pair[0].parse::<f64>().ok()
    };
    let count = |word: &str| before(word).map(|count| count as u64);
    let mut row = json!({ "name": name, "seconds": before("s")? });
    if name == "failing calls" {
        row["calls"] = json!(count("of")?);
        row["of"] = json!(words.get(2)?.parse::<u64>().ok()?);
    } else {
        row["sequences"] = json!(count("sequences")?);
        row["possible"] = json!(count("possible")?);
        row["cuts"] = json!(count("cuts")?);
        row["equal"] = json!(count("more")?);
        row["by_oracle"] = json!(count("by")?);
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "ext4, full, one operation: 315 sequences, 275 possible; 5115 cuts, 10743 more \
                        equal to one of these; 6 by the oracle; 1.5 s";

    #[test]
    fn numbers_of_lines_become_rows() {
        let row = row(LINE).unwrap();
        let expected = json!({
            "name": "ext4, full, one operation", "seconds": 1.5, "sequences": 315, "possible": 275,
            "cuts": 5115, "equal": 10743, "by_oracle": 6,
        });
        assert_eq!(row, expected);
        let calls = super::row("failing calls: 7598 of 7600, 150.2 s").unwrap();
        assert_eq!(
            (&calls["calls"], &calls["of"]),
            (&json!(7598), &json!(7600))
        );
        assert_eq!(super::row("ok"), None);
    }

    #[test]
    fn rows_of_earlier_runs_stay_with_their_commit_unless_replaced() {
        let earlier = json!([
            { "name": "failing calls", "calls": 1, "commit": "old", "date": "2026-11-25" },
            { "name": "qcow2", "commit": "old", "date": "2026-11-25" },
            { "name": "without a commit" },
        ]);
        let lines = ["failing calls: 2 of 2, 1.0 s".to_owned(), LINE.to_owned()];
        let stamp = Stamp {
            commit: "new".into(),
            date: "2026-11-26".into(),
        };
        let rows = merged(&earlier, &stamp, &lines);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row["name"].as_str().unwrap(), row["commit"].as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                ("failing calls", Some("new")),
                ("qcow2", Some("old")),
                ("ext4, full, one operation", Some("new"))
            ]
        );
        assert_eq!(
            (&rows[0]["calls"], &rows[0]["date"]),
            (&json!(2), &json!("2026-11-26"))
        );
        assert_eq!(rows[1], earlier[1]);
    }
}
