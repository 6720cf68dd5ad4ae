//! The samples: an image of each kind, served by each front end of both sides at each location.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use extant_testkit::scratch::{Filesystem, Scratch};

use super::driver::Waiting;
use super::front::{Front, Served, run_on_file};
use super::job::Job;
use crate::bench::{Context, Options, Outcome, rounds};
use crate::benches::images::image::{Kind, Side};
use crate::measured;

pub(super) const RATE: &str = "requests/s";
pub(super) const CPU: &str = "us CPU/request";
/// Names of the locations: a tmpfs, and the machine's disk.
pub(super) const PLACES: [&str; 2] = ["memory", "disk"];

/// A location of the images.
pub(super) struct Place {
    name: &'static str,
    path: PathBuf,
    /// Mounted as long as this lives.
    _scratch: Option<Scratch>,
}

/// A sample: workloads that follow each other on one image.
struct Sample {
    place: &'static str,
    kind: Kind,
    jobs: Vec<Job>,
    subject: Subject,
}

/// The server of the image, or none.
#[derive(Clone, Copy)]
enum Subject {
    Served(Front, Side),
    /// The file itself.
    Kernel,
    /// A device that does nothing in place of the image.
    Noop(Waiting),
}

impl Place {
    fn new(context: &Context, name: &'static str, size: u64) -> Self {
        let scratch = (name == PLACES[0]).then(|| {
            let bytes = image_bytes(Kind::qcow2("off"), size) + (512 << 20);
            Scratch::builder(Filesystem::Tmpfs, bytes).build()
        });
        let path = scratch.as_ref().map_or(context.path(), Scratch::path);
        Self {
            name,
            path: path.to_owned(),
            _scratch: scratch,
        }
    }
}

impl Subject {
    fn all() -> impl Iterator<Item = Self> {
        let served = |front| Side::BOTH.map(|side| Self::Served(front, side));
        let noop = Waiting::BOTH.map(Self::Noop);
        let served = Front::ALL.into_iter().flat_map(served);
        served.chain([Self::Kernel]).chain(noop)
    }

    fn is_for(self, place: &str, kind: Kind) -> bool {
        match self {
            Self::Served(..) => true,
            Self::Kernel => kind.format == "raw",
            Self::Noop(_) => place == PLACES[0] && kind == Kind::raw("full"),
        }
    }

    fn name(self, place: &str, kind: Kind, job: Job) -> String {
        match self {
            Self::Served(front, side) => name(place, kind, job, front, side),
            Self::Kernel => kernel_name(place, kind, job),
            Self::Noop(waiting) => noop_name(job, waiting),
        }
    }
}

/// Name of the metrics of a workload.
pub(super) fn name(place: &str, kind: Kind, job: Job, front: Front, side: Side) -> String {
    format!("{place}, {kind}, {job}, {front}, {side}")
}

/// The same without a server.
pub(super) fn kernel_name(place: &str, kind: Kind, job: Job) -> String {
    format!("{place}, {kind}, {job}, the kernel alone")
}

/// The same of the device that does nothing.
pub(super) fn noop_name(job: Job, waiting: Waiting) -> String {
    format!("memory, no-op, {job}, vhost, {waiting}")
}

/// Virtual size of an image; thin ones are larger, so that enough requests allocate.
pub(super) fn image_bytes(kind: Kind, size: u64) -> u64 {
    match kind.mode {
        "off" => 4 * size,
        _ => size,
    }
}

/// `--quick` without a selection: the kinds of the goals in memory, at one depth.
pub(super) fn is_wanted(options: &Options, name: &str) -> bool {
    let is_quick = name.starts_with("memory")
        && name.contains("depth 64")
        && ["full", "qcow2 off", "no-op"]
            .iter()
            .any(|word| name.contains(word));
    options.selects(name) && (is_quick || !options.quick || !options.only.is_empty())
}

fn samples(options: &Options) -> Vec<Sample> {
    let mut samples = Vec::new();
    for place in PLACES {
        for kind in Kind::ALL {
            for jobs in Job::samples(kind) {
                for subject in Subject::all().filter(|subject| subject.is_for(place, kind)) {
                    let wanted = |job: &Job| is_wanted(options, &subject.name(place, kind, *job));
                    let jobs: Vec<_> = jobs.iter().copied().filter(wanted).collect();
                    if !jobs.is_empty() {
                        samples.push(Sample {
                            place,
                            kind,
                            jobs,
                            subject,
                        });
                    }
                }
            }
        }
    }
    samples
}

/// Takes them, in rounds.
pub(super) fn take(context: &Context, size: u64, outcome: &mut Outcome) -> Result<()> {
    let samples = samples(&context.options);
    let places: Vec<_> = PLACES
        .into_iter()
        .filter(|name| samples.iter().any(|sample| sample.place == *name))
        .map(|name| Place::new(context, name, size))
        .collect();
    for (round, at) in rounds(context.options.runs(3, 1), samples.len()) {
        let sample = &samples[at];
        let first = sample
            .subject
            .name(sample.place, sample.kind, sample.jobs[0]);
        context.step(format!("round {}: {first}", round + 1));
        let place = places.iter().find(|place| place.name == sample.place);
        sample.take(context, place.expect("one of them"), size, outcome)?;
    }
    Ok(())
}

impl Sample {
    fn take(
        &self,
        context: &Context,
        place: &Place,
        size: u64,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let kind = self.kind;
        let size = image_bytes(kind, size);
        let file = place.path.join("image");
        let side = match self.subject {
            Subject::Served(_, side) => side,
            _ => Side::Extant,
        };
        if !matches!(self.subject, Subject::Noop(_)) {
            measured::measure(&kind.create(context, side, &file, size))?;
            if place.name != PLACES[0] {
                context.settle();
            }
        }
        let served = match self.subject {
            Subject::Served(front, side) => {
                Some(Served::start(context, front, side, kind, &file, size)?)
            }
            Subject::Noop(waiting) => Some(Served::start_noop(context, waiting, size)?),
            Subject::Kernel => None,
        };
        let end = Job::end(context, kind, size);
        for &job in &self.jobs {
            let name = self.subject.name(place.name, kind, job);
            let metrics = &mut outcome.metrics;
            match &served {
                Some(served) => {
                    let (done, cpu) = served.run(job, end)?;
                    metrics.record(&name, RATE, served.command(), done.rate());
                    metrics.record(&name, CPU, "", cpu);
                }
                None => {
                    let done = run_on_file(&file, job, end, size)?;
                    metrics.record(&name, RATE, "", done.rate());
                }
            }
        }
        if let Some(served) = served {
            served.end()?;
        }
        if !matches!(self.subject, Subject::Noop(_)) {
            fs::remove_file(file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_has_few_samples_in_memory_and_a_selection_has_its_own() {
        let mut options = Options {
            quick: true,
            ..Options::default()
        };
        let quick = samples(&options);
        assert!(quick.iter().all(|sample| sample.place == "memory"));
        assert!((10..40).contains(&quick.len()), "{}", quick.len());
        options.only = vec!["disk, qcow2 full, read, depth 1, vhost".to_owned()];
        let chosen = samples(&options);
        assert_eq!(chosen.len(), 4, "two clients of two servers");
        assert!(chosen.iter().all(|sample| sample.jobs.len() == 1));
    }
}
