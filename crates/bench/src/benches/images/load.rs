//! Request rates of each server: requests of each kind, on images of each kind, at each location.
//!
//! A sample is one image, made and served. Random writes use a new image for each queue depth;
//! sequential writes fill another one, which is then read.

use std::fs;

use anyhow::{Context as _, Result};

use super::ImageLocation;
use super::image::{Kind, Side};
use super::server::{Server, Serving, shown};
use crate::bench::{Context, Outcome, rounds};
use crate::fio::Fio;
use crate::measured::{self, mib};
use crate::table::{Table, number, spread};

/// Random writes one after the other: the least of formats, modes and places.
pub(super) const DEPTH_1: &str = "write-depth-1";
/// Random writes, 64 at a time, to thin qcow2 images: the least of the places.
pub(super) const DEPTH_64_OFF: &str = "off-write-depth-64";
/// The same, to qcow2 images that are mapped and not written.
pub(super) const DEPTH_64_MAPPED: &str = "mapped-write-depth-64";
/// The same, to written qcow2 images and all raw ones.
pub(super) const DEPTH_64_FULL: &str = "full-write-depth-64";
/// Random reads, at both depths: the least.
pub(super) const READS: &str = "read";
/// Random reads of images without contents, at all depths: the least.
pub(super) const HOLES: &str = "holes-read";
/// Processor time of such a read: the most.
pub(super) const HOLES_CPU: &str = "holes-cpu-per-request";
/// Requests of 1 MiB in order: the least.
pub(super) const IN_ORDER: &str = "in-order";
/// Processor time of a random request at depth 64: the most.
pub(super) const CPU: &str = "cpu-per-request";
/// Memory of our server: the most.
pub(super) const PEAK: &str = "peak-memory";

pub(super) const RATE: &str = "requests/s";
const CPU_UNIT: &str = "us CPU/request";
const PEAK_UNIT: &str = "MiB peak memory";

/// A client's workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    name: &'static str,
    /// fio's word.
    pattern: &'static str,
    block: &'static str,
    depth: u32,
}

const WRITE_1: Job = Job::random("write, depth 1", "randwrite", 1);
pub(super) const WRITE_64: Job = Job::random("write, depth 64", "randwrite", 64);
const READ_1: Job = Job::random("read, depth 1", "randread", 1);
const READ_64: Job = Job::random("read, depth 64", "randread", 64);
const WRITE_IN_ORDER: Job = Job::in_order("write 1 MiB in order", "write");
const READ_IN_ORDER: Job = Job::in_order("read 1 MiB in order", "read");

/// Reads of holes cost the transport alone.
const READ_HOLES: [Job; 7] = [
    Job::random("read holes, depth 1", "randread", 1),
    Job::random("read holes, depth 2", "randread", 2),
    Job::random("read holes, depth 4", "randread", 4),
    Job::random("read holes, depth 8", "randread", 8),
    Job::random("read holes, depth 16", "randread", 16),
    Job::random("read holes, depth 32", "randread", 32),
    Job::random("read holes, depth 64", "randread", 64),
];

/// Images without contents.
const EMPTY: [Kind; 2] = [Kind::raw("off"), Kind::qcow2("off")];

/// The workloads of each image.
const SAMPLES: [&[Job]; 3] = [
    &[WRITE_1],
    &[WRITE_64],
    &[WRITE_IN_ORDER, READ_IN_ORDER, READ_64, READ_1],
];

/// The workloads of an image of this kind.
fn samples_of(kind: Kind) -> impl Iterator<Item = &'static [Job]> {
    let holes = EMPTY.contains(&kind).then_some(&READ_HOLES[..]);
    SAMPLES.into_iter().chain(holes)
}

impl Job {
    const fn random(name: &'static str, pattern: &'static str, depth: u32) -> Self {
        Self {
            name,
            pattern,
            block: "4k",
            depth,
        }
    }

    const fn in_order(name: &'static str, pattern: &'static str) -> Self {
        Self {
            name,
            pattern,
            block: "1m",
            depth: 8,
        }
    }

    fn fio(self, context: &Context, server: &Server, size: u64) -> Fio {
        let job = Fio::nbd("images", &server.uri)
            .set("rw", self.pattern)
            .set("bs", self.block)
            .set("iodepth", self.depth)
            .set("size", size);
        match self.block {
            // Over the whole image, once.
            "1m" => job,
            _ => job
                .set("time_based", 1)
                .set("runtime", context.options.pick(5, 1)),
        }
    }
}

/// The cases of a goal: its value is their lowest ratio, ours over theirs.
struct GoalCases {
    goal: &'static str,
    kinds: &'static [Kind],
    jobs: &'static [Job],
    unit: &'static str,
}

const GOAL_CASES: [GoalCases; 9] = [
    GoalCases::of(DEPTH_1, &Kind::ALL, &[WRITE_1]),
    GoalCases::of(DEPTH_64_OFF, &[Kind::qcow2("off")], &[WRITE_64]),
    GoalCases::of(
        DEPTH_64_MAPPED,
        &[Kind::qcow2("metadata"), Kind::qcow2("falloc")],
        &[WRITE_64],
    ),
    GoalCases::of(
        DEPTH_64_FULL,
        &[
            Kind::raw("off"),
            Kind::raw("falloc"),
            Kind::raw("full"),
            Kind::qcow2("full"),
        ],
        &[WRITE_64],
    ),
    GoalCases::of(READS, &Kind::ALL, &[READ_1, READ_64]),
    GoalCases::of(HOLES, &EMPTY, &READ_HOLES),
    GoalCases {
        goal: HOLES_CPU,
        kinds: &EMPTY,
        jobs: &READ_HOLES,
        unit: CPU_UNIT,
    },
    GoalCases::of(IN_ORDER, &Kind::ALL, &[WRITE_IN_ORDER, READ_IN_ORDER]),
    GoalCases {
        goal: CPU,
        kinds: &Kind::ALL,
        jobs: &[WRITE_64, READ_64],
        unit: CPU_UNIT,
    },
];

impl GoalCases {
    const fn of(goal: &'static str, kinds: &'static [Kind], jobs: &'static [Job]) -> Self {
        Self {
            goal,
            kinds,
            jobs,
            unit: RATE,
        }
    }

    fn evaluate(&self, places: &[ImageLocation], outcome: &mut Outcome) -> Result<()> {
        let mut ratios = Vec::new();
        for place in places {
            for &kind in self.kinds {
                for job in self.jobs {
                    let ours = name(place, kind, job, Side::Extant);
                    let theirs = name(place, kind, job, Side::Qemu);
                    let ratio = outcome.metrics.ratio(&ours, &theirs, self.unit)?;
                    ratios.push((ratio, format!("{}, {kind}, {}", place.name, job.name)));
                }
            }
        }
        // Less is better of time alone.
        let worst = ratios.iter().min_by(|a, b| match self.unit {
            RATE => a.0.total_cmp(&b.0),
            _ => b.0.total_cmp(&a.0),
        });
        let (ratio, case) = worst.context("a goal without cases")?;
        outcome.goals.insert(self.goal, (*ratio).into());
        outcome
            .notes
            .push(format!("{}: the worst is {case}", self.goal));
        Ok(())
    }
}

/// Takes the samples, evaluates the goals and adds the tables.
pub(super) fn measure(
    context: &Context,
    places: &[ImageLocation],
    outcome: &mut Outcome,
) -> Result<()> {
    take_samples(context, places, outcome)?;
    for cases in &GOAL_CASES {
        cases.evaluate(places, outcome)?;
    }
    let peak = outcome
        .metrics
        .of(&format!("server, {}", Side::Extant), PEAK_UNIT)?;
    outcome.goals.insert(PEAK, peak.max().into());
    outcome.tables.push(table(places, outcome)?);
    outcome.tables.push(peaks(outcome)?);
    Ok(())
}

fn table(places: &[ImageLocation], outcome: &Outcome) -> Result<Table> {
    let mut table = Table::new(&[
        "place, image, requests",
        "extant/s",
        "spread",
        "qemu-nbd/s",
        "spread",
        "/ qemu-nbd",
        "extant us CPU",
        "qemu-nbd us CPU",
    ]);
    for place in places {
        for kind in Kind::ALL {
            for job in samples_of(kind).flatten() {
                let [ours, theirs] = Side::BOTH.map(|side| name(place, kind, job, side));
                let metrics = &outcome.metrics;
                let rate = |name: &str| metrics.of(name, RATE);
                let cpu = |name: &str| metrics.of(name, CPU_UNIT).map(|cpu| number(cpu.median()));
                table.row(vec![
                    format!("{}, {kind}, {}", place.name, job.name),
                    number(rate(&ours)?.median()),
                    spread(Some(rate(&ours)?)),
                    number(rate(&theirs)?.median()),
                    spread(Some(rate(&theirs)?)),
                    number(metrics.ratio(&ours, &theirs, RATE)?),
                    cpu(&ours)?,
                    cpu(&theirs)?,
                ]);
            }
        }
    }
    Ok(table)
}

fn peaks(outcome: &Outcome) -> Result<Table> {
    let mut table = Table::new(&["server", "peak memory, the most, MiB"]);
    for side in Side::BOTH {
        let peak = outcome.metrics.of(&format!("server, {side}"), PEAK_UNIT)?;
        table.row(vec![side.to_string(), number(peak.max())]);
    }
    Ok(table)
}

fn take_samples(context: &Context, places: &[ImageLocation], outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(3, 1);
    let mut samples = Vec::new();
    for place in places {
        for kind in Kind::ALL {
            for jobs in samples_of(kind) {
                samples.extend(Side::BOTH.map(|side| (place, kind, jobs, side)));
            }
        }
    }
    for (round, at) in rounds(runs, samples.len()) {
        let (place, kind, jobs, side) = samples[at];
        context.step(format!(
            "round {}: {}, {kind}, {}, {side}",
            round + 1,
            place.name,
            jobs[0].name
        ));
        sample(context, place, kind, jobs, side, outcome)?;
    }
    Ok(())
}

/// One sample: creates, serves, measures and removes an image.
fn sample(
    context: &Context,
    place: &ImageLocation,
    kind: Kind,
    jobs: &[Job],
    side: Side,
    outcome: &mut Outcome,
) -> Result<()> {
    let file = place.path.join("image");
    measured::measure(&kind.create(context, side, &file, place.size))?;
    context.settle();
    let server = Serving::of(kind).start(context, side, &file)?;
    let server = server.context("the default engine")?;
    for job in jobs {
        let before = server.cpu_seconds()?;
        let fio = job.fio(context, &server, place.size);
        let done = fio.run()?;
        let cpu = (server.cpu_seconds()? - before) * 1e6 / done.requests as f64;
        let name = name(place, kind, job, side);
        let command = shown(context, &fio.command(), &file);
        let metrics = &mut outcome.metrics;
        metrics.record(&name, RATE, &command, done.iops);
        metrics.record(&name, CPU_UNIT, "", cpu);
    }
    let command = server.command.clone();
    let peak = mib(server.end()?);
    let name = format!("server, {side}");
    outcome.metrics.record(&name, PEAK_UNIT, &command, peak);
    fs::remove_file(file)?;
    Ok(())
}

/// Name of the metrics of one kind of request.
pub(super) fn name(place: &ImageLocation, kind: Kind, job: &Job, side: Side) -> String {
    format!("{}, {kind}, {}, {side}", place.name, job.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_the_worst_case_of_rates_and_of_times() {
        let place = ImageLocation {
            name: "disk",
            path: "/".into(),
            size: 0,
            _scratch: None,
        };
        let mut outcome = Outcome::default();
        for kind in Kind::ALL {
            let ours = match kind {
                Kind {
                    format: "qcow2",
                    mode: "falloc",
                } => 1.0,
                Kind { format: "raw", .. } => 3.0,
                _ => 2.0,
            };
            for job in [WRITE_64, READ_64] {
                for (side, value) in [(Side::Extant, ours), (Side::Qemu, 1.0)] {
                    let name = name(&place, kind, &job, side);
                    for unit in [RATE, CPU_UNIT] {
                        outcome.metrics.record(&name, unit, "", value);
                    }
                }
            }
        }
        let places = [place];
        let mut worst = |goal, unit| {
            let cases = GoalCases {
                goal,
                kinds: &Kind::ALL,
                jobs: &[WRITE_64, READ_64],
                unit,
            };
            cases.evaluate(&places, &mut outcome).unwrap();
            outcome.goals[goal].clone()
        };
        assert_eq!(worst("rates", RATE), 1.0.into());
        assert_eq!(worst("times", CPU_UNIT), 3.0.into());
        assert_eq!(
            outcome.notes[0],
            "rates: the worst is disk, qcow2 falloc, write, depth 64"
        );
    }
}
