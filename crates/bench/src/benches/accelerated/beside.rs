//! The second table of "Forced zeroes": its two jobs, alone and beside the creation of files.
//!
//! The costs have no goals: all requests share the processor that emulates the disk, and the job
//! one of the guest's. The goals compare with `dd` beside the job, which makes far less meanwhile.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::guest::{Script, count, extant, line, seconds, shown};
use crate::bench::{Options, Outcome, rounds, size_word};
use crate::benches::neighbour::columns;
use crate::benches::neighbour::load::{Files, Load, WRITERS, file_name};
use crate::fio::{self, Fio};
use crate::goal::Goal;
use crate::metrics::Metrics;
use crate::peers;
use crate::table::{Table, median, number, spread};

pub(super) const GOALS: [Goal; 2] = [
    Goal::at_least("bandwidth-over-dd", 1.0, ""),
    Goal::at_most("latency-over-dd", 1.1, ""),
];

const PACE: &str = "MiB/s meanwhile";
const DIRECTORY: &str = "/nvme";
const BIG: &str = "/nvme/big";

/// The program beside a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    Nothing,
    Create,
    Dd,
}

const ALL: [Company; 3] = [Company::Nothing, Company::Create, Company::Dd];

impl Company {
    fn metric(self, load: Load) -> String {
        let beside = match self {
            Self::Nothing => "alone",
            Self::Create => "beside extant create",
            Self::Dd => "beside dd direct",
        };
        format!("{} {beside}", load.name())
    }

    fn command(self, bytes: u64) -> Option<Command> {
        match self {
            Self::Nothing => None,
            Self::Create => Some({
                let size = size_word(bytes);
                extant(&["create", BIG, &size, "--force", "--progress", "json"])
            }),
            Self::Dd => Some(peers::dd(Path::new(BIG), bytes)),
        }
    }
}

/// Sizes and times of the jobs.
#[derive(Clone, Copy)]
pub(super) struct Jobs {
    files: Files,
    ramp: u64,
    runtime: u64,
}

impl Jobs {
    /// Files of the seed's jobs would take a guest's disk and time; `big` is the size of the file
    /// made beside them.
    pub(super) fn of(options: &Options, big: u64) -> Self {
        let (ramp, runtime) = options.pick((1, 6), (1, 3));
        Self {
            files: Files {
                bandwidth: options.pick(128 << 20, 32 << 20),
                latency: options.pick(256 << 20, 64 << 20),
                big,
            },
            ramp,
            runtime,
        }
    }

    /// Space of their files and of the file beside them, which is replaced.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.files.bandwidth * WRITERS + self.files.latency + 3 * self.files.big
    }

    fn job(&self, load: Load, runtime: u64) -> Fio {
        let job = load.job(Path::new(DIRECTORY), self.files);
        job.set("ramp_time", self.ramp).set("runtime", runtime)
    }
}

/// Appends the samples.
pub(super) fn add(script: &mut Script, runs: usize, jobs: &Jobs) {
    let mut lines = String::new();
    for writer in 0..WRITERS {
        let file = format!("{DIRECTORY}/{}", file_name(writer));
        lines += &format!(
            "{}\n",
            line(&peers::dd(Path::new(&file), jobs.files.bandwidth))
        );
    }
    let latency = format!("{DIRECTORY}/latency");
    lines += &format!(
        "{}\n",
        line(&peers::dd(Path::new(&latency), jobs.files.latency))
    );
    // The first run after the files were made is slower than all later ones.
    for load in Load::ALL {
        lines += &format!("{}\n", line(&jobs.job(load, 1).command()));
    }
    script.prepare(&lines);
    for load in Load::ALL {
        for (_, company) in rounds(runs, ALL.len()) {
            sample(script, jobs, load, ALL[company]);
        }
    }
    script.prepare(&format!("rm {DIRECTORY}/bandwidth.* {latency}"));
}

fn sample(script: &mut Script, jobs: &Jobs, load: Load, company: Company) {
    let job = jobs.job(load, jobs.runtime).command();
    let (ramp, big) = (jobs.ramp, jobs.files.big);
    let other = company.command(big);
    let mut lines = format!("settle {DIRECTORY}\n");
    match &other {
        None => lines += &line(&job),
        Some(other) => {
            lines += &format!("company {ramp} '{}'\n{}\n", line(other), line(&job));
            lines += &format!("company_ends {ramp} {big}");
        }
    }
    let command = shown(other.as_ref().unwrap_or(&job));
    script.sample(&lines, move |said, metrics| {
        let name = company.metric(load);
        let (json, rest) = said.split_once("\nmade ").unwrap_or((said, ""));
        columns::record(metrics, &name, &command, &fio::parse(json)?);
        if company != Company::Nothing {
            let rest = format!("made {rest}");
            let made = count(&rest, "made")? / f64::from(1 << 20);
            metrics.record(&name, PACE, &command, made / seconds(&rest)?);
        }
        Ok(())
    });
}

/// The cost of `company` for `load`: of each round, by the order of the samples.
fn record_costs(metrics: &mut Metrics, load: Load, company: Company) -> Result<()> {
    let samples = |metrics: &Metrics, company: Company| {
        let metric = metrics.of(&company.metric(load), load.unit());
        metric.map(|metric| metric.samples.clone())
    };
    let alone = samples(metrics, Company::Nothing)?;
    let beside = samples(metrics, company)?;
    for (alone, beside) in alone.into_iter().zip(beside) {
        let cost = load.cost_percent(alone, beside);
        metrics.record(&company.metric(load), load.cost_unit(), "", cost);
    }
    Ok(())
}

/// Adds the tables and the values of the goals.
pub(super) fn report(metrics: &mut Metrics, outcome: &mut Outcome) -> Result<()> {
    let mut costs = Table::new(&[
        "cost of the other",
        "median",
        "spread",
        "",
        "the other, MiB/s",
    ]);
    for (load, goal) in Load::ALL.into_iter().zip(&GOALS) {
        for company in [Company::Create, Company::Dd] {
            record_costs(metrics, load, company)?;
            let name = company.metric(load);
            let cost = metrics.of(&name, load.cost_unit())?;
            costs.row(vec![
                name.clone(),
                number(cost.median()),
                spread(Some(cost)),
                load.cost_unit().to_owned(),
                median(metrics.get(&name, PACE)),
            ]);
        }
        let of = |company: Company| company.metric(load);
        let ratio = metrics.ratio(&of(Company::Create), &of(Company::Dd), load.unit())?;
        outcome.goals.insert(goal.name, ratio.into());
    }
    let names = Load::ALL.map(|load| ALL.map(|company| company.metric(load)));
    outcome
        .tables
        .push(columns::table(metrics, &names.concat())?);
    outcome.tables.push(costs);
    Ok(())
}
