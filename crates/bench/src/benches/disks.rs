//! `disks`: volumes of a pool on a bare disk, made of zeros.
//!
//! The pool's disk and the peers' one are direct loop devices of the same size, over files on the
//! machine's disk and in memory. All space held data before the first sample. The disk's own rate
//! is that of fio overwriting it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use extant_space::ByteSize;
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{DirectIo, Filesystem, LoopDevice, Scratch};

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::measured::{measure, mib};
use crate::needs::Need;
use crate::peers;
use crate::table::{Table, median, number, spread};

/// Rate of `extant vol create`, over that of fio overwriting the disk: the least of the places.
const OVER_CEILING: &str = "create-over-ceiling";
/// The same over `dd bs=1M`.
const OVER_DD: &str = "create-over-dd";
/// The same over `blkdiscard -z`, where the device has no write zeroes.
const OVER_BLKDISCARD: &str = "create-over-blkdiscard";
/// Memory of `extant vol create`: the most.
const PEAK: &str = "peak-memory";

const RATE: &str = "MiB/s";
const MEMORY: &str = "MiB peak memory";
const DISK: &str = "disk";
const IN_MEMORY: &str = "memory";
const PLACES: [&str; 2] = [DISK, IN_MEMORY];
/// For the tables of partitions, and what alignment takes.
const EXTRA: u64 = 64 << 20;

/// The bench.
pub struct Disks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Extant,
    Ceiling,
    Dd,
    Blkdiscard,
}

const METHODS: [Method; 4] = [
    Method::Extant,
    Method::Ceiling,
    Method::Dd,
    Method::Blkdiscard,
];

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Extant => "extant vol create",
            Self::Ceiling => "ceiling: fio overwriting",
            Self::Dd => "dd bs=1M",
            Self::Blkdiscard => "blkdiscard -z",
        }
    }

    fn is_measured(self, place: &str) -> bool {
        // The file system below the other one zeroes without writing.
        self != Self::Blkdiscard || place == IN_MEMORY
    }
}

impl Bench for Disks {
    fn name(&self) -> &'static str {
        "disks"
    }

    fn about(&self) -> &'static str {
        "volumes of zeros on a bare disk: extant vol create beside dd and blkdiscard -z"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("blkdiscard"),
            Need::Program("sgdisk"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(OVER_CEILING, 0.95, ""),
                Goal::at_least(OVER_DD, 1.3, ""),
                Goal::at_least(OVER_BLKDISCARD, 1.3, ""),
                Goal::at_most(PEAK, 64.0, "MiB"),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        2 * (size(options) + EXTRA)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let size = size(&context.options);
        let runs = context.options.runs(5, 1);
        let mut outcome = Outcome::default();
        for name in PLACES {
            let place = Place::new(context, name, size)?;
            for (round, at) in rounds(runs, METHODS.len()) {
                let method = METHODS[at];
                if method.is_measured(name) {
                    context.step(format!("round {}: {name}, {}", round + 1, method.name()));
                    place.sample(context, method, &mut outcome)?;
                }
            }
        }
        summarise(&mut outcome)?;
        outcome.title = format!("volumes of {}, {runs} rounds", ByteSize(size));
        outcome.notes = vec![
            "direct loop devices over files, whose blocks hold data; whole commands, synced"
                .to_owned(),
            "extant verifies samples of what it wrote, in the time shown".to_owned(),
            "memory: a loop device over tmpfs, where blkdiscard -z has the kernel write zeros"
                .to_owned(),
        ];
        Ok(outcome)
    }
}

fn size(options: &Options) -> u64 {
    options.size(2 << 30, 256 << 20)
}

/// The pool's disk and the peers' one.
struct Place {
    name: &'static str,
    size: u64,
    ours: LoopDevice,
    theirs: LoopDevice,
    definitions: PathBuf,
    // Last: holds the files of the devices.
    _memory: Option<Scratch>,
}

impl Place {
    fn new(context: &Context, name: &'static str, size: u64) -> Result<Self> {
        let bytes = size + EXTRA;
        let memory =
            (name == IN_MEMORY).then(|| Scratch::new(Filesystem::Tmpfs, 2 * bytes + EXTRA));
        let directory = memory.as_ref().map_or(context.path(), Scratch::path);
        let device = |role: &str| -> Result<LoopDevice> {
            context.step(format!("{name}: the disk of {role}"));
            let path = directory.join(format!("{role}.img"));
            File::create_new(&path)?.set_len(bytes)?;
            Ok(LoopDevice::attach_with(&path, DirectIo::On, 4096))
        };
        let (ours, theirs) = (device("extant")?, device("peers")?);
        let definitions = context.file(&format!("pools-{name}"));
        fs::create_dir(&definitions)?;
        let mut define = context.extant();
        define.args(["pool", "define", "bare", "--kind", "disk", "--path"]);
        define
            .arg(ours.path())
            .arg("--config-dir")
            .arg(&definitions);
        run(define.arg("--state").arg(definitions.join("state")))?;
        for device in [&ours, &theirs] {
            fill(device.path(), bytes)?;
        }
        Ok(Self {
            name,
            size,
            ours,
            theirs,
            definitions,
            _memory: memory,
        })
    }

    fn extant(&self, context: &Context, words: &[&str]) -> Command {
        let mut command = context.extant();
        command
            .args(words)
            .arg("--config-dir")
            .arg(&self.definitions);
        command
    }

    fn shown(&self, context: &Context, command: &Command) -> String {
        let disk = |shown: String, device: &LoopDevice| {
            shown.replace(&device.path().display().to_string(), "DISK")
        };
        disk(disk(context.shown(command), &self.ours), &self.theirs)
    }

    fn sample(&self, context: &Context, method: Method, outcome: &mut Outcome) -> Result<()> {
        context.settle();
        let name = format!("{}, {}", self.name, method.name());
        let metrics = &mut outcome.metrics;
        let command = match method {
            Method::Extant => {
                let size = size_word(self.size);
                self.extant(context, &["vol", "create", "bare", "v", &size, "--quiet"])
            }
            Method::Dd => {
                let mut dd = peers::dd(self.theirs.path(), 0);
                let count = format!("count={}", self.size >> 20);
                // The last of equal words counts.
                dd.args(["bs=1M", &count]);
                dd
            }
            Method::Blkdiscard => {
                let mut blkdiscard = tool("blkdiscard");
                blkdiscard.args(["--zeroout", "--force", "--length"]);
                blkdiscard
                    .arg(self.size.to_string())
                    .arg(self.theirs.path());
                blkdiscard
            }
            Method::Ceiling => {
                let job = Fio::ceiling(self.theirs.path(), self.size);
                let rate = job.run()?.mib_per_second;
                metrics.record(&name, RATE, &self.shown(context, &job.command()), rate);
                return Ok(());
            }
        };
        let measured = measure(&command)?;
        let shown = self.shown(context, &command);
        metrics.record(&name, RATE, &shown, measured.mib_per_second(self.size));
        metrics.record(&name, MEMORY, &shown, mib(measured.peak_memory_bytes));
        if method == Method::Extant {
            run(&mut self.extant(context, &["vol", "delete", "bare", "v"]))?;
        }
        Ok(())
    }
}

/// Writes data to all of a disk between the tables of partitions.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    const TABLE: u64 = 1 << 20;
    let job = Fio::ceiling(path, bytes - 2 * TABLE).set("offset", TABLE);
    let job = job.set("bs", "1M").set("buffer_pattern", "0xee");
    job.run().with_context(|| path.display().to_string())?;
    Ok(())
}

fn summarise(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let mut table = Table::new(&["place, method", RATE, "spread", "over the ceiling", MEMORY]);
    let of = |place: &str, method: Method| format!("{place}, {}", method.name());
    let mut least = [f64::INFINITY; 3];
    let mut peak: f64 = 0.0;
    for place in PLACES {
        for (at, method) in METHODS.into_iter().enumerate() {
            if !method.is_measured(place) {
                continue;
            }
            let name = of(place, method);
            table.row(vec![
                name.clone(),
                median(metrics.get(&name, RATE)),
                spread(metrics.get(&name, RATE)),
                number(metrics.ratio(&name, &of(place, Method::Ceiling), RATE)?),
                median(metrics.get(&name, MEMORY)),
            ]);
            if method == Method::Extant {
                peak = peak.max(metrics.of(&name, MEMORY)?.max());
            } else {
                let ratio = metrics.ratio(&of(place, Method::Extant), &name, RATE)?;
                least[at - 1] = least[at - 1].min(ratio);
            }
        }
    }
    let [ceiling, dd, blkdiscard] = least;
    outcome.goals.extend([
        (OVER_CEILING, ceiling.into()),
        (OVER_DD, dd.into()),
        (OVER_BLKDISCARD, blkdiscard.into()),
        (PEAK, peak.into()),
    ]);
    outcome.tables.push(table);
    Ok(())
}
