//! Concurrent callers: success of all commands, the pool's accounting, and the extents of volumes.
//!
//! Each caller is a thread that runs one command after the other, like a management program. Each
//! sample has a new ext4 on a loop device over memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use extant_testkit::command::{describe, run, run_any_status};
use extant_testkit::libvirt::Libvirt;
use extant_testkit::oracle::filefrag_count;
use extant_testkit::scratch::{Filesystem, Scratch};

use super::{ask, make_pool, shown, virsh, vol_create_as};
use crate::bench::{Context, Outcome, rounds, size_word};
use crate::table::{Table, median, spread};

/// Volumes of ours that were not made.
pub(super) const FAILURES: &str = "callers-failures";
/// Bytes by which `extant pool info` differs from the volumes; the most.
pub(super) const ACCOUNTING: &str = "callers-accounting";
/// Volumes made too many or too few where only half of them fit.
pub(super) const OVER_TOTAL: &str = "callers-over-total";
/// Extents of a volume, over those with one caller; the worse of the modes.
pub(super) const EXTENTS: &str = "callers-extents";

const CALLERS: usize = 16;
const SIZE: u64 = 16 << 20;
/// Exit status for a volume that does not fit.
const NO_SPACE: i32 = 3;
const SECONDS: &str = "s";
const FAILED: &str = "failed";
const DIFFERENCE: &str = "B difference";
const MEAN_EXTENTS: &str = "extents";
const EXTENTS_MAX: &str = "extents, the most";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Full,
    Falloc,
    Virsh,
}

impl Method {
    const ALL: [Self; 3] = [Self::Full, Self::Falloc, Self::Virsh];

    fn name(self, callers: usize) -> String {
        let by = match self {
            Self::Full => "extant vol create, full",
            Self::Falloc => "extant vol create, falloc",
            Self::Virsh => "virsh vol-create-as",
        };
        match callers {
            1 => format!("{by}, one caller"),
            _ => format!("{by}, {callers} callers"),
        }
    }
}

pub(super) fn measure(context: &Context, libvirt: &Libvirt, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(3, 1);
    let volumes = context.options.pick(200, 40);
    let samples: Vec<_> = Method::ALL
        .iter()
        .flat_map(|&method| [(method, 1), (method, CALLERS)])
        .collect();
    let (mut failures, mut difference, mut over_total) = (0, 0, 0);
    for (round, at) in rounds(runs, samples.len()) {
        let (method, callers) = samples[at];
        context.step(format!("round {}: {}", round + 1, method.name(callers)));
        let place = BenchPool::new(context, libvirt, method, volumes)?;
        let failed = place.sample(callers, outcome)?;
        if method != Method::Virsh {
            failures += failed;
            difference = difference.max(place.difference(callers, outcome)?);
        }
        place.end()?;
    }
    for round in 0..runs {
        context.step(format!("round {}: half of them fit", round + 1));
        over_total += over_by(context, libvirt, volumes)?;
    }
    let metrics = &outcome.metrics;
    let extents =
        |method: Method| metrics.ratio(&method.name(CALLERS), &method.name(1), MEAN_EXTENTS);
    let extents = extents(Method::Full)?.max(extents(Method::Falloc)?);
    outcome.goals.extend([
        (FAILURES, (failures as f64).into()),
        (ACCOUNTING, (difference as f64).into()),
        (OVER_TOTAL, (over_total as f64).into()),
        (EXTENTS, extents.into()),
    ]);
    outcome.tables.push(table(outcome, &samples));
    outcome.title += &format!(
        "{volumes} volumes of {} by {CALLERS} callers; ",
        size_word(SIZE)
    );
    Ok(())
}

/// A pool on a file system of its own.
struct BenchPool<'a> {
    context: &'a Context,
    libvirt: &'a Libvirt,
    method: Method,
    volumes: usize,
    pool: PathBuf,
    // Unmounted last.
    scratch: Scratch,
}

const LIBVIRT_POOL: &str = "callers";

impl<'a> BenchPool<'a> {
    fn new(
        context: &'a Context,
        libvirt: &'a Libvirt,
        method: Method,
        volumes: usize,
    ) -> Result<Self> {
        let bytes = volumes as u64 * SIZE;
        let device = bytes + bytes / 4 + (256 << 20);
        let scratch = Scratch::builder(Filesystem::Ext4, device)
            .memory(device + (device >> 4))
            .build();
        let pool = scratch.path().join("pool");
        fs::create_dir(&pool)?;
        if method == Method::Virsh {
            make_pool(libvirt, LIBVIRT_POOL, &pool)?;
        }
        context.settle();
        Ok(Self {
            context,
            libvirt,
            method,
            volumes,
            pool,
            scratch,
        })
    }

    fn command(&self, number: usize) -> Command {
        let name = format!("v{number:03}");
        let mode = match self.method {
            Method::Full => "full",
            Method::Falloc => "falloc",
            Method::Virsh => {
                return virsh(self.libvirt, &vol_create_as(LIBVIRT_POOL, &name, SIZE));
            }
        };
        let mut command = self.context.extant();
        command.args(["vol", "create"]).arg(&self.pool);
        command.args([&name, &size_word(SIZE), "--preallocation", mode]);
        command
    }

    /// Makes all volumes; how many were not.
    fn sample(&self, callers: usize, outcome: &mut Outcome) -> Result<usize> {
        let start = Instant::now();
        let statuses = by_callers(callers, self.volumes, |number| self.command(number))?;
        let seconds = start.elapsed().as_secs_f64();
        let failed = statuses.iter().filter(|&&status| status != 0).count();
        let extents: Vec<u64> = self
            .files()?
            .iter()
            .map(|file| filefrag_count(file))
            .collect();
        ensure!(
            extents.len() + failed == self.volumes,
            "{} volumes and {failed} failures of {}",
            extents.len(),
            self.volumes
        );
        let name = self.method.name(callers);
        let command = self.command(0);
        let shown = shown(self.context, self.libvirt, &command);
        let shown = shown.replace(&self.scratch.path().display().to_string(), "DIR");
        let mean = extents.iter().sum::<u64>() as f64 / extents.len().max(1) as f64;
        let most = extents.iter().max().copied().unwrap_or_default();
        let metrics = &mut outcome.metrics;
        metrics.record(&name, SECONDS, &shown, seconds);
        metrics.record(&name, FAILED, "", failed as f64);
        metrics.record(&name, MEAN_EXTENTS, "", mean);
        metrics.record(&name, EXTENTS_MAX, "", most as f64);
        Ok(failed)
    }

    /// Difference between the pool's accounting and its files.
    fn difference(&self, callers: usize, outcome: &mut Outcome) -> Result<u64> {
        let mut info = self.context.extant();
        let info = ask(info.args(["pool", "info", "--json"]).arg(&self.pool))?;
        let told = |field: &str| {
            let number = info["space"][field].as_u64();
            number.with_context(|| format!("no number {field} in {info}"))
        };
        let (mut allocated, mut promised, mut volumes) = (0, 0, 0);
        for file in self.files()? {
            let metadata = fs::metadata(&file)?;
            let taken = metadata.blocks() * 512;
            allocated += taken;
            promised += taken.max(metadata.len());
            volumes += 1;
        }
        let difference = told("allocated_bytes")?.abs_diff(allocated)
            + told("promised_bytes")?.abs_diff(promised)
            + told("volumes")?.abs_diff(volumes) * SIZE
            + told("reserved_bytes")?
            + info["jobs"].as_u64().context("no number of jobs")? * SIZE;
        let name = self.method.name(callers);
        outcome
            .metrics
            .record(&name, DIFFERENCE, "", difference as f64);
        Ok(difference)
    }

    /// The volumes.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.pool)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    fn end(self) -> Result<()> {
        if self.method == Method::Virsh {
            run(&mut virsh(
                self.libvirt,
                &format!("pool-destroy {LIBVIRT_POOL}"),
            ))?;
        }
        Ok(())
    }
}

/// Half of the volumes fit into a pool: by how many the number made differs from that.
fn over_by(context: &Context, libvirt: &Libvirt, volumes: usize) -> Result<usize> {
    let place = BenchPool::new(context, libvirt, Method::Falloc, volumes)?;
    let fit = volumes / 2;
    let config = place.scratch.path().join("config");
    let total = size_word(fit as u64 * SIZE);
    let mut define = context.extant();
    define.args(["pool", "define", "half"]).arg(&place.pool);
    run(define
        .args(["--total", &total, "--config-dir"])
        .arg(&config))?;
    let command = |number: usize| {
        let mut command = context.extant();
        command.args(["vol", "create", "half", &format!("v{number:03}")]);
        command.args([&size_word(SIZE), "--preallocation", "falloc"]);
        command.arg("--config-dir").arg(&config);
        command
    };
    let statuses = by_callers(CALLERS, volumes, command)?;
    let refused = statuses
        .iter()
        .filter(|&&status| status == NO_SPACE)
        .count();
    let made = place.files()?.len();
    ensure!(
        made + refused == volumes,
        "{made} made and {refused} refused of {volumes}"
    );
    Ok(made.abs_diff(fit))
}

/// Runs the commands of all numbers, `callers` at a time; their exit statuses in any order.
fn by_callers(
    callers: usize,
    count: usize,
    command: impl Fn(usize) -> Command + Sync,
) -> Result<Vec<i32>> {
    let next = AtomicUsize::new(0);
    let call = || -> Result<Vec<i32>> {
        let mut statuses = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(statuses);
            }
            let output = run_any_status(&mut command(number))?;
            if !output.status.success() {
                eprintln!("  {}", describe(&output).replace('\n', " "));
            }
            let status = output.status.code();
            statuses.push(status.with_context(|| format!("ended by {}", output.status))?);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        let mut all = Vec::new();
        for thread in threads {
            let statuses = thread.join().map_err(|_| anyhow!("a caller panicked"))?;
            all.extend(statuses?);
        }
        Ok(all)
    })
}

fn table(outcome: &Outcome, samples: &[(Method, usize)]) -> Table {
    let mut table = Table::new(&[
        "volumes at once",
        "s",
        "spread",
        FAILED,
        DIFFERENCE,
        MEAN_EXTENTS,
        EXTENTS_MAX,
    ]);
    for &(method, callers) in samples {
        let name = method.name(callers);
        let metric = |unit| outcome.metrics.get(&name, unit);
        table.row(vec![
            name.clone(),
            median(metric(SECONDS)),
            spread(metric(SECONDS)),
            median(metric(FAILED)),
            median(metric(DIFFERENCE)),
            median(metric(MEAN_EXTENTS)),
            median(metric(EXTENTS_MAX)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_number_is_called_once_and_failures_are_counted() {
        let place = tempfile::tempdir().unwrap();
        let made = |number: usize| {
            let mut command = extant_testkit::command::tool("sh");
            let file = place.path().join(number.to_string());
            // Fails where the number was called before, and for 7.
            command.args(["-c", "set -C; : > \"$0\" && test \"$1\" != 7"]);
            command.arg(file).arg(number.to_string());
            command
        };
        let statuses = by_callers(4, 20, made).unwrap();
        assert_eq!(statuses.len(), 20);
        assert_eq!(statuses.iter().filter(|&&status| status != 0).count(), 1);
        assert_eq!(files_in(place.path()), 20);
    }

    fn files_in(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }
}
