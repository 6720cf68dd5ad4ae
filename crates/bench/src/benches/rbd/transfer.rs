//! Thick images made, and files uploaded.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use extant_testkit::command::tool;

use super::Pool;
use crate::bench::{Context, Outcome, rounds, size_word};
use crate::measured::measure as take;
use crate::table::{Table, median, number, spread};

/// Time of `extant vol create`, over that of `rbd create --thick-provision`.
pub(super) const CREATE: &str = "create-over-rbd";
/// Rate of `extant vol upload`, over the faster of `rbd import` and `qemu-img convert`.
pub(super) const UPLOAD: &str = "upload-over-peers";

const TIME: &str = "s";
const RATE: &str = "MiB/s";
const IMAGE: &str = "v";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Create,
    RbdCreate,
    Upload,
    RbdImport,
    QemuConvert,
}

const METHODS: [Method; 5] = [
    Method::Create,
    Method::RbdCreate,
    Method::Upload,
    Method::RbdImport,
    Method::QemuConvert,
];

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "extant vol create",
            Self::RbdCreate => "rbd create --thick-provision",
            Self::Upload => "extant vol upload",
            Self::RbdImport => "rbd import",
            Self::QemuConvert => "qemu-img convert",
        }
    }

    /// The method of ours that it is compared with.
    fn ours(self) -> Self {
        match self {
            Self::Create | Self::RbdCreate => Self::Create,
            _ => Self::Upload,
        }
    }

    fn command(self, context: &Context, pool: &Pool, source: &PathBuf) -> Command {
        let size = size_word(pool.size);
        let mut rbd = pool.ceph.rbd();
        match self {
            Self::Create => pool.extant(
                context,
                &["vol", "create", "cloud", IMAGE, &size, "--quiet"],
            ),
            Self::Upload => {
                let mut upload = pool.extant(context, &["vol", "upload", "cloud", IMAGE]);
                upload.arg(source).arg("--quiet");
                upload
            }
            Self::RbdCreate => {
                rbd.args(["create", "--thick-provision", "--no-progress", "--size"]);
                rbd.args([&format!("{}M", pool.size >> 20), IMAGE]);
                rbd
            }
            Self::RbdImport => {
                rbd.args(["import", "--no-progress"]).arg(source).arg(IMAGE);
                rbd
            }
            Self::QemuConvert => {
                let mut convert = tool("qemu-img");
                convert.args(["convert", "-f", "raw", "-O", "raw"]);
                convert.arg(source).arg(pool.ceph.name(IMAGE));
                convert
            }
        }
    }
}

pub(super) fn measure(
    context: &Context,
    pool: &Pool,
    runs: usize,
    outcome: &mut Outcome,
) -> Result<()> {
    let source = context.file("source");
    write_noise(&source, pool.size)?;
    for (round, at) in rounds(runs, METHODS.len()) {
        let method = METHODS[at];
        context.step(format!("round {}: {}", round + 1, method.name()));
        context.settle();
        let command = method.command(context, pool, &source);
        let taken = take(&command)?;
        let (name, shown) = (method.name(), pool.shown(context, &command));
        let metrics = &mut outcome.metrics;
        metrics.record(name, TIME, &shown, taken.seconds);
        metrics.record(name, RATE, &shown, taken.mib_per_second(pool.size));
        pool.remove(IMAGE)?;
    }
    fs::remove_file(&source)?;
    summarise(outcome)
}

/// Data that no program takes for zeros.
fn write_noise(path: &PathBuf, bytes: u64) -> Result<()> {
    let mut file = File::create_new(path).with_context(|| path.display().to_string())?;
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8 | 1).collect();
    for _ in 0..bytes >> 20 {
        std::io::Write::write_all(&mut file, &piece)?;
    }
    Ok(file.sync_all()?)
}

fn summarise(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let mut table = Table::new(&["method", TIME, "spread", RATE, "time over ours"]);
    for method in METHODS {
        let name = method.name();
        table.row(vec![
            name.to_owned(),
            median(metrics.get(name, TIME)),
            spread(metrics.get(name, TIME)),
            median(metrics.get(name, RATE)),
            number(metrics.ratio(name, method.ours().name(), TIME)?),
        ]);
    }
    let of = |ours: Method, peer: Method, unit| metrics.ratio(ours.name(), peer.name(), unit);
    let create = of(Method::Create, Method::RbdCreate, TIME)?;
    let upload = of(Method::Upload, Method::RbdImport, RATE)?;
    let upload = upload.min(of(Method::Upload, Method::QemuConvert, RATE)?);
    outcome
        .goals
        .extend([(CREATE, create.into()), (UPLOAD, upload.into())]);
    outcome.tables.push(table);
    Ok(())
}
