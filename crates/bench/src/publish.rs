//! `extant-bench report`: writes the page of many results, and compares them with older ones.
//!
//! Without options it reads the results kept in docs/results, which takes no time; a run of all
//! benches takes hours. A bench that cannot run is named on the page, the others continue, and the
//! command fails at its end. The results shown are written beside the page as one array, for
//! `--from` and `--compare` of later reports.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::bench::Bench;
use crate::benches;
use crate::compare::{Comparison, Verdict};
use crate::page::Contents;
use crate::product;
use crate::report::Report;
use crate::results;
use crate::saved::{self, SavedReport};

/// A figure is worse than before, with `--compare`.
const WORSE: u8 = 4;

/// Write a page of results with charts: DIR/report.html, and the results as DIR/report.json.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant-bench report                          the results of docs/results
  extant-bench report --quick                  run every bench, in about a quarter of an hour
  extant-bench report --run written through --out new
  extant-bench report --from new/report.json --compare docs/results/written.json

Exit status: 0 done, 1 failed or a bench did not run, 2 wrong arguments, 4 a figure is worse than in
OLD.json beyond the noise (docs/benchmarks.md, \"Report\").")]
pub struct ReportArguments {
    /// Only these benches [default: all with a result; with --run or --quick all]
    #[arg(value_name = "BENCH")]
    names: Vec<String>,

    /// Run the benches instead of reading results
    #[arg(long)]
    run: bool,

    /// Run them with --quick: small and few samples, which settle nothing
    #[arg(long)]
    quick: bool,

    /// Read these results: a file of one or an array of them, or a directory of such files; may be
    /// repeated [default: docs/results]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "quick"])]
    from: Vec<PathBuf>,

    /// Where to write; it is made if it does not exist [default: target/report]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// List what is worse or better than in these results (as for --from); end with status 4 if a
    /// figure is worse beyond the noise
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

/// Writes the page; `measure` runs a bench, with or without `--quick`.
pub fn run(
    arguments: &ReportArguments,
    measure: impl Fn(&'static dyn Bench, bool) -> Result<Report>,
) -> Result<ExitCode> {
    for name in &arguments.names {
        ensure!(
            benches::find(name).is_some(),
            "no bench {name:?}; extant-bench list names them"
        );
    }
    // Wrong paths are found before hours of measurement.
    let old = arguments.compare.as_deref().map(saved::read).transpose()?;
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => product::root().join("target").join("report"),
    };
    fs::create_dir_all(&out).with_context(|| format!("{}", out.display()))?;

    let is_run = arguments.run || arguments.quick;
    let read = if is_run {
        Vec::new()
    } else {
        read_results(&arguments.from)?
    };
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    for bench in benches::ALL {
        let name = bench.name();
        if !arguments.names.is_empty() && !arguments.names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let result = if is_run {
            eprintln!("{name}");
            let report = measure(*bench, arguments.quick);
            report.and_then(|report| SavedReport::new(serde_json::to_value(report)?))
        } else {
            newest(&read, name).cloned().context("no saved result")
        };
        match result {
            Ok(result) => shown.push(result),
            Err(error) => missing.push((name, format!("{error:#}"))),
        }
    }
    if shown.is_empty() {
        let (name, why) = missing.first().context("no bench")?;
        bail!("no result to show; {name}: {why}");
    }

    let comparisons: Option<Vec<_>> = old.as_ref().map(|old| {
        let pairs = shown.iter();
        let pairs = pairs.filter_map(|new| Some((newest(old, &new.bench)?, new)));
        pairs.map(|(old, new)| Comparison::new(old, new)).collect()
    });
    let contents = Contents {
        results: &shown,
        missing: &missing,
        comparisons: comparisons.as_deref(),
    };
    let data: Vec<&Value> = shown.iter().map(|result| &result.data).collect();
    let data = serde_json::to_string_pretty(&data)? + "\n";
    for (name, text) in [("report.html", contents.document()?), ("report.json", data)] {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        println!("{}", path.display());
    }
    if is_run && !missing.is_empty() {
        for (name, why) in &missing {
            eprintln!("extant-bench: {name}: {why}");
        }
        return Ok(ExitCode::FAILURE);
    }
    Ok(match comparisons {
        Some(comparisons) if print(&comparisons) > 0 => ExitCode::from(WORSE),
        _ => ExitCode::SUCCESS,
    })
}

fn read_results(paths: &[PathBuf]) -> Result<Vec<SavedReport>> {
    let kept = [results::directory()];
    let paths = if paths.is_empty() { &kept[..] } else { paths };
    let results: Result<Vec<_>> = paths.iter().map(|path| saved::read(path)).collect();
    Ok(results?.concat())
}

fn newest<'a>(results: &'a [SavedReport], bench: &str) -> Option<&'a SavedReport> {
    let of_bench = results.iter().filter(|result| result.bench == bench);
    of_bench.max_by(|one, other| one.date.cmp(&other.date))
}

/// Prints what is worse and what is better; the number of regressions.
fn print(comparisons: &[Comparison<'_>]) -> usize {
    let mut regressions = 0;
    for comparison in comparisons {
        let bench = &comparison.new.bench;
        for warning in &comparison.warnings {
            println!("{bench}: {warning}");
        }
        for verdict in [Verdict::Regression, Verdict::Improvement] {
            for change in comparison.with(verdict) {
                let (old, new) = (change.old.median(), change.new.median());
                let (name, unit) = (&change.new.name, &change.new.unit);
                println!("{bench}: {verdict}: {name}: {old:.4} {unit}, now {new:.4}");
            }
        }
        regressions += comparison.with(Verdict::Regression).count();
    }
    regressions
}
