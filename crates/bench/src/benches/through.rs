//! `through`: the gain of space that is written in every layer.
//!
//! A file in an ext4 image, one and two layers above the machine's disk: made by `extant create
//! --in` with zeros in the image's metadata alone (written in name only), with zeros through every
//! layer, and by `dd` in the mounted image. Then 4 KiB direct writes with fdatasync to it, in the
//! image mounted on a direct loop device. Every sample has a fresh, sparse image.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use extant_space::ByteSize;
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{DirectIo, LoopDevice, Mount};

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::measured::measure;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::peers;
use crate::table::{Table, median, number, spread};

const IOPS: &str = "IOPS";
const RATE: &str = "MiB/s";
const CEILING: &str = "ceiling: fio overwriting";

/// The bench.
pub struct Through;

/// How the file gets its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Metadata,
    Through,
    Dd,
}

const METHODS: [Method; 3] = [Method::Metadata, Method::Through, Method::Dd];

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Metadata => "create --in --zeroes metadata",
            Self::Through => "create --in",
            Self::Dd => "dd in the mount",
        }
    }
}

/// Number of layers below the file, its name, and its goals: over `dd`, and over the ceiling.
const DEPTHS: [(usize, &str, &str, &str); 2] = [
    (1, "1 layer", "through-over-dd-1", "create-over-ceiling-1"),
    (2, "2 layers", "through-over-dd-2", "create-over-ceiling-2"),
];

/// A sample.
#[derive(Clone, Copy)]
enum Sample {
    Write {
        depth: usize,
        name: &'static str,
        method: Method,
    },
    Ceiling,
}

impl Bench for Through {
    fn name(&self) -> &'static str {
        "through"
    }

    fn about(&self) -> &'static str {
        "files in images, written in every layer or in name only: their making, and 4 KiB with fdatasync"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Program("fio"), Need::Program("mkfs.ext4"), Need::Root]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(DEPTHS[0].2, 0.9, ""),
                Goal::at_least(DEPTHS[1].2, 0.9, ""),
                Goal::at_least(DEPTHS[0].3, 0.9, ""),
                Goal::at_least(DEPTHS[1].3, 0.9, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        3 * image_bytes(size(options))
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 1);
        let size = size(&context.options);
        let outer = Image::new(context.path(), "outer", 2 * image_bytes(size))?;
        let outer = outer.mounted()?;
        let mut samples = vec![Sample::Ceiling];
        for (depth, name, ..) in DEPTHS {
            samples.extend(METHODS.map(|method| Sample::Write {
                depth,
                name,
                method,
            }));
        }
        let mut metrics = Metrics::default();
        for (round, at) in rounds(runs, samples.len()) {
            match samples[at] {
                Sample::Ceiling => {
                    context.step(format!("round {}: {CEILING}", round + 1));
                    ceiling(context, size, &mut metrics)?;
                }
                Sample::Write {
                    depth,
                    name,
                    method,
                } => {
                    let name = format!("{name}, {}", method.name());
                    context.step(format!("round {}: {name}", round + 1));
                    let directory = match depth {
                        1 => context.path(),
                        _ => outer.mount.path(),
                    };
                    one(context, directory, &name, method, size, &mut metrics)?;
                }
            }
        }
        drop(outer);
        outcome(size, runs, metrics)
    }
}

fn size(options: &Options) -> u64 {
    options.size(1 << 30, 128 << 20)
}

/// Room for the file, and as much again.
fn image_bytes(size: u64) -> u64 {
    2 * size + (256 << 20)
}

/// A sparse file with ext4.
struct Image {
    path: PathBuf,
    place: PathBuf,
}

/// An image on a direct loop device. Dropped from above.
struct MountedImage {
    mount: Mount,
    _device: LoopDevice,
    image: Image,
}

impl Image {
    fn new(directory: &Path, name: &str, bytes: u64) -> Result<Self> {
        let path = directory.join(format!("{name}.img"));
        File::create_new(&path)?.set_len(bytes)?;
        let mut mkfs = tool("mkfs.ext4");
        mkfs.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        run(mkfs.arg(&path))?;
        let place = directory.join(name);
        fs::create_dir_all(&place)?;
        Ok(Self { path, place })
    }

    fn mounted(self) -> Result<MountedImage> {
        let device = LoopDevice::attach_with(&self.path, DirectIo::On, 4096);
        Ok(MountedImage {
            mount: Mount::new("ext4", device.path(), &self.place, ""),
            _device: device,
            image: self,
        })
    }
}

impl MountedImage {
    fn end(self) -> Result<()> {
        let Self {
            mount,
            _device,
            image,
        } = self;
        drop(mount);
        drop(_device);
        fs::remove_dir(&image.place)?;
        Ok(fs::remove_file(&image.path)?)
    }
}

fn one(
    context: &Context,
    directory: &Path,
    name: &str,
    method: Method,
    size: u64,
    metrics: &mut Metrics,
) -> Result<()> {
    // Space of the image before is free on disk only after a commit.
    rustix::fs::sync();
    let image = Image::new(directory, "disk", image_bytes(size))?;
    rustix::fs::sync();
    context.settle();
    let mut create = context.extant();
    create.args(["create", "--quiet", "--in"]).arg(&image.path);
    create.args(["/file", &size_word(size)]);
    if method == Method::Metadata {
        create.args(["--zeroes", "metadata"]);
    }
    if method != Method::Dd {
        let made = measure(&create)?;
        metrics.record(
            name,
            RATE,
            &context.shown(&create),
            made.mib_per_second(size),
        );
    }
    let mounted = image.mounted()?;
    let file = mounted.mount.path().join("file");
    if method == Method::Dd {
        let dd = peers::dd(&file, size);
        let made = measure(&dd)?;
        metrics.record(name, RATE, &context.shown(&dd), made.mib_per_second(size));
    }
    context.settle();
    let job = Fio::sync4k(&file, size, context.options.pick(10, 2));
    let writes = job.run()?;
    metrics.record(name, IOPS, &context.shown(&job.command()), writes.iops);
    mounted.end()
}

/// The disk's rate for overwriting a written file.
fn ceiling(context: &Context, size: u64, metrics: &mut Metrics) -> Result<()> {
    let file = context.path().join("ceiling");
    if !file.exists() {
        run(&mut peers::dd(&file, size))?;
    }
    context.settle();
    let job = Fio::ceiling(&file, size);
    let rate = job.run()?.mib_per_second;
    metrics.record(CEILING, RATE, &context.shown(&job.command()), rate);
    Ok(())
}

fn outcome(size: u64, runs: usize, metrics: Metrics) -> Result<Outcome> {
    let heading = ["file", IOPS, "spread", "over dd", RATE, "spread"];
    let mut table = Table::new(&heading);
    let mut outcome = Outcome::default();
    for (_, depth, over_dd, over_ceiling) in DEPTHS {
        let name = |method: Method| format!("{depth}, {}", method.name());
        for method in METHODS {
            let name_of_it = name(method);
            let ratio = metrics.ratio(&name_of_it, &name(Method::Dd), IOPS)?;
            table.row(vec![
                name_of_it.clone(),
                median(metrics.get(&name_of_it, IOPS)),
                spread(metrics.get(&name_of_it, IOPS)),
                number(ratio),
                median(metrics.get(&name_of_it, RATE)),
                spread(metrics.get(&name_of_it, RATE)),
            ]);
        }
        let through = name(Method::Through);
        let ratio = metrics.ratio(&through, &name(Method::Dd), IOPS)?;
        outcome.goals.insert(over_dd, ratio.into());
        let ratio = metrics.ratio(&through, CEILING, RATE)?;
        outcome.goals.insert(over_ceiling, ratio.into());
    }
    table.row(vec![
        CEILING.to_owned(),
        String::new(),
        String::new(),
        String::new(),
        median(metrics.get(CEILING, RATE)),
        spread(metrics.get(CEILING, RATE)),
    ]);
    outcome.title = format!("files of {} in images, {runs} rounds", ByteSize(size));
    outcome.tables = vec![table];
    outcome.notes = vec![
        "the images are sparse files on the machine's disk; a layer is an image on a direct loop device"
            .to_owned(),
        "MiB/s: of the making, the whole command; the ceiling is fio's own count".to_owned(),
    ];
    outcome.metrics = metrics;
    Ok(outcome)
}
