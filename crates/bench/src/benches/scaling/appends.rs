//! The author's script: 64 parallel jobs of fio's falloc engine append 4 KiB each time, to 1 GiB.
//!
//! The blocks stay unwritten: the file systems of 200 GiB need memory for metadata only. What
//! e2freefrag, filefrag and `e4defrag -c` show there is taken here from the closed image:
//! e4defrag needs hours for files of 262,144 extents.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use extant_space::ByteSize;
use extant_testkit::command::{run, text, tool};
use serde::Deserialize;

use super::{Subject, System};
use crate::bench::{Context, Outcome};
use crate::fio::Fio;
use crate::table::{Table, number};

/// Extents of a file, the mean.
pub(super) const EXTENTS: &str = "append-extents";
/// The score of e4defrag.
pub(super) const SCORE: &str = "append-score";
/// Extents of free space, over those of the kernel with the same scan.
pub(super) const FREE: &str = "append-free-over-kernel";

const JOBS: u64 = 64;
/// Memory of an image, for its metadata: inode tables 3.2 GiB, journal 1 GiB.
const MEMORY: u64 = 7 << 30;
const MKFS: [&str; 4] = [
    "-E",
    "lazy_itable_init=0,lazy_journal_init=0",
    "-O",
    "orphan_file",
];
/// Columns after the first.
const UNITS: [&str; 6] = [
    "MiB/s",
    "free extents",
    "KiB/free extent",
    "extents/file",
    "KiB/extent",
    "score",
];

/// The relevant fields of `extant fs frag --json`.
#[derive(Deserialize)]
struct Fragmentation {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    files: u64,
    extents: u64,
    mean_extent_bytes: u64,
    fragmentation_score: Option<f64>,
}

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let size = context.options.size(1 << 30, 16 << 20);
    for subject in Subject::ALL {
        context.step(format!("appends: {subject}"));
        let values = append(context, subject, size)?;
        for (unit, value) in UNITS.into_iter().zip(values) {
            let name = metric(subject);
            outcome.metrics.record(&name, unit, "", value);
        }
    }
    let first = format!("{JOBS} files of {}, appended", ByteSize(size));
    let mut table = Table::new(&[&[first.as_str()][..], &UNITS].concat());
    for subject in Subject::ALL {
        let mut row = vec![subject.to_string()];
        for unit in UNITS {
            row.push(number(outcome.metrics.of(&metric(subject), unit)?.median()));
        }
        table.row(row);
    }
    outcome.tables.push(table);
    let command = job(Path::new("DIR"), size).command();
    outcome
        .notes
        .push(format!("appends: {}", context.shown(&command)));
    let value = |system, scan, unit| {
        let name = metric(Subject::new(system, scan));
        Ok(outcome.metrics.of(&name, unit)?.median())
    };
    let worst = |of: &dyn Fn(u8) -> Result<f64>| Ok(of(0)?.max(of(1)?)) as Result<f64>;
    let [_, free, _, extents, _, score] = UNITS;
    let values = [
        (EXTENTS, worst(&|scan| value(System::Mount, scan, extents))?),
        (SCORE, worst(&|scan| value(System::Mount, scan, score))?),
        (
            FREE,
            worst(&|scan| {
                let theirs: f64 = value(System::Kernel, scan, free)?;
                Ok(value(System::Mount, scan, free)? / theirs)
            })?,
        ),
    ];
    for (goal, value) in values {
        outcome.goals.insert(goal, value.into());
    }
    Ok(())
}

/// The values of [`UNITS`].
fn append(context: &Context, subject: Subject, size: u64) -> Result<[f64; 6]> {
    let system = subject.mount(context, MEMORY, &MKFS)?;
    let written = job(system.path(), size).run()?;
    ensure!(
        written.bytes == JOBS * size,
        "fio appended {} bytes",
        written.bytes
    );
    system.end_with(|image| {
        if size <= 64 << 20 {
            run(tool("e2fsck").arg("-fn").arg(image))?;
        }
        let free = text(tool("e2freefrag").arg(image))?;
        let json = text(context.extant().args(["fs", "frag", "--json"]).arg(image))?;
        let Fragmentation { total } = serde_json::from_str(&json)?;
        ensure!(total.files >= JOBS, "{} files", total.files);
        Ok([
            written.mib_per_second,
            value(&free, "Num. free extent:")?,
            value(&free, "Avg. free extent:")?,
            total.extents as f64 / JOBS as f64,
            total.mean_extent_bytes as f64 / 1024.0,
            total.fragmentation_score.context("no score")?,
        ])
    })
}

/// The job of the author's script.
fn job(directory: &Path, size: u64) -> Fio {
    Fio::write("job1")
        .set("directory", directory.display())
        .set("iodepth", 128)
        .set("thread", 1)
        .set("ioengine", "falloc")
        .set("bs", "4k")
        .set("numjobs", JOBS)
        .set("file_append", 1)
        .set("size", size)
        .set("cpus_allowed_policy", "split")
}

/// A number of e2freefrag.
fn value(text: &str, label: &str) -> Result<f64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(label));
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    let word = word.with_context(|| format!("e2freefrag shows no {label:?}"))?;
    word.parse().with_context(|| format!("{label} {word}"))
}

fn metric(subject: Subject) -> String {
    format!("appends, {subject}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_e2freefrag_are_read() {
        let text =
            "Min. free extent: 98304 KB \nAvg. free extent: 166124 KB\nNum. free extent: 6\n";
        assert_eq!(value(text, "Num. free extent:").unwrap(), 6.0);
        assert_eq!(value(text, "Avg. free extent:").unwrap(), 166_124.0);
        assert!(value(text, "Max. free extent:").is_err());
    }
}
