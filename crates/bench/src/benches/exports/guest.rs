//! Disks of the kernel in the test kit's guest: our ublk disk, and qemu-nbd with the kernel's NBD
//! client.
//!
//! Where there is no KVM the guest's processors are emulated: rates are those of the emulation, and
//! only ratios of one run count. The image is in the guest's memory (tmpfs) and the same for both.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use extant_testkit::guest::Guest;

use super::job::{Direction, End, Job};
use super::results::UBLK;
use super::samples::{RATE, is_wanted};
use crate::bench::{Context, Options, Outcome, rounds, size_word};
use crate::benches::accelerated::guest::{Script, extant, line, shown};
use crate::benches::images::image::Kind;
use crate::fio::{self, Fio};
use crate::metrics::Metrics;
use crate::table::{Table, median, number, spread};

const IMAGE: &str = "/tmp/image";
const IMAGE_BYTES: u64 = 256 << 20;
const KINDS: [Kind; 2] = [Kind::raw("full"), Kind::qcow2("full")];
const DEPTHS: [u32; 2] = [1, 64];

/// A disk of the guest's kernel with its server.
#[derive(Clone, Copy)]
enum Disk {
    Ublk,
    Nbd,
}

impl Disk {
    const BOTH: [Self; 2] = [Self::Ublk, Self::Nbd];

    fn path(self) -> &'static Path {
        Path::new(match self {
            Self::Ublk => "/dev/ublkb0",
            Self::Nbd => "/dev/nbd0",
        })
    }

    /// Makes the disk; the command returns when it is there.
    fn start(self, kind: Kind) -> Command {
        match self {
            Self::Ublk => extant(&[
                "serve",
                IMAGE,
                "--format",
                kind.format,
                "--cache",
                "none",
                "--ublk=0",
                "--fork",
                "--pid-file",
                "/tmp/pid",
            ]),
            Self::Nbd => {
                let mut command = Command::new("qemu-nbd");
                command.arg("--connect=/dev/nbd0");
                command.arg(format!("--format={}", kind.format));
                command.args(["--cache=none", "--aio=native", IMAGE]);
                command
            }
        }
    }

    /// The end of the disk, in lines of the script.
    fn end(self) -> &'static str {
        match self {
            Self::Ublk => "kill \"$(cat /tmp/pid)\"\nwhile [ -e /dev/ublkb0 ]; do sleep 0.05; done",
            Self::Nbd => {
                "qemu-nbd --disconnect /dev/nbd0\n\
                 while [ -e /sys/block/nbd0/pid ]; do sleep 0.05; done"
            }
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ublk => "ublk, extant",
            Self::Nbd => "kernel nbd, qemu",
        })
    }
}

fn jobs() -> impl Iterator<Item = Job> {
    let directions = [Direction::Write, Direction::Read].into_iter();
    directions.flat_map(|direction| DEPTHS.map(|depth| Job::random(direction, depth)))
}

fn name(kind: Kind, job: Job, disk: Disk) -> String {
    format!("guest, {kind}, {job}, {disk}")
}

/// Takes the samples that are wanted, all of them in one guest, and evaluates their goal.
pub(super) fn take(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let Some(script) = script(&context.options) else {
        return Ok(());
    };
    if !Guest::requirement().is_met() {
        let note = "ublk: not measured, as there is no guest (cargo xtask setup)";
        outcome.notes.push(note.to_owned());
        return Ok(());
    }
    context.step("the guest: ublk and the kernel's NBD");
    let (metrics, kernel) = script.run(context, Vec::new())?;
    report(&metrics, outcome);
    outcome.notes.push(format!(
        "guest: kernel {kernel}, QEMU {}; rates are those of the emulation, ratios count",
        Guest::accelerator()
    ));
    outcome.metrics.extend(metrics);
    Ok(())
}

/// The script of the samples that are wanted; `None` without any.
fn script(options: &Options) -> Option<Script> {
    let end = End::After(Duration::from_secs(options.pick(3, 2)));
    let mut script = Script::new();
    // qemu-nbd has its socket there.
    script.prepare("modprobe -a ublk_drv nbd\nmkdir -p /run/lock");
    let mut is_empty = true;
    for kind in KINDS {
        let wanted = |disk: Disk| -> Vec<Job> {
            let is_wanted = |job: &Job| is_wanted(options, &name(kind, *job, disk));
            jobs().filter(is_wanted).collect()
        };
        if Disk::BOTH.into_iter().all(|disk| wanted(disk).is_empty()) {
            continue;
        }
        is_empty = false;
        let size = size_word(IMAGE_BYTES);
        let mut create = extant(&["create", IMAGE, &size]);
        create.args(["--format", kind.format, "--preallocation", kind.mode]);
        script.prepare(&line(&create));
        for (_, at) in rounds(options.runs(3, 1), Disk::BOTH.len()) {
            let disk = Disk::BOTH[at];
            let start = disk.start(kind);
            script.prepare(&line(&start));
            for job in wanted(disk) {
                sample(&mut script, kind, job, disk, end);
            }
            script.prepare(disk.end());
        }
        script.prepare(&format!("rm {IMAGE}"));
    }
    (!is_empty).then_some(script)
}

fn sample(script: &mut Script, kind: Kind, job: Job, disk: Disk, end: End) {
    let fio = Fio::write("exports")
        .file(disk.path())
        .set("ioengine", "libaio");
    let fio = job.set_in(fio, end, IMAGE_BYTES).command();
    let command = shown(&disk.start(kind));
    script.sample(&line(&fio), move |said, metrics| {
        let done = fio::parse(said)?;
        metrics.record(&name(kind, job, disk), RATE, &command, done.iops);
        Ok(())
    });
}

/// Adds the table and the goal: the least ratio of the cases of which both sides were measured.
fn report(metrics: &Metrics, outcome: &mut Outcome) {
    let mut table = Table::new(&[
        "guest, requests/s",
        "ublk",
        "spread",
        "kernel nbd",
        "spread",
        "ratio",
    ]);
    let mut least = f64::INFINITY;
    for kind in KINDS {
        for job in jobs() {
            let names = Disk::BOTH.map(|disk| name(kind, job, disk));
            let [ours, theirs] = names.each_ref().map(|name| metrics.get(name, RATE));
            let Ok(ratio) = metrics.ratio(&names[0], &names[1], RATE) else {
                continue;
            };
            least = least.min(ratio);
            table.row(vec![
                format!("{kind}, {job}"),
                median(ours),
                spread(ours),
                median(theirs),
                spread(theirs),
                number(ratio),
            ]);
        }
    }
    if least.is_finite() {
        outcome.goals.insert(UBLK.name, least.into());
        outcome.tables.push(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_the_least_ratio_of_the_cases_that_were_measured() {
        let mut metrics = Metrics::default();
        let job = Job::random(Direction::Read, 64);
        for (kind, rate) in [(KINDS[0], 8.0), (KINDS[1], 5.0)] {
            metrics.record(&name(kind, job, Disk::Ublk), RATE, "", rate);
            metrics.record(&name(kind, job, Disk::Nbd), RATE, "", 2.0);
        }
        let alone = name(KINDS[0], Job::random(Direction::Read, 1), Disk::Ublk);
        metrics.record(&alone, RATE, "", 1.0);
        let mut outcome = Outcome::default();
        report(&metrics, &mut outcome);
        assert_eq!(outcome.goals.get(UBLK.name), Some(&2.5.into()));
        assert_eq!(outcome.tables.len(), 1);
    }

    #[test]
    fn guest_runs_only_for_samples_that_are_selected() {
        let mut options = Options {
            quick: true,
            ..Options::default()
        };
        assert!(script(&options).is_none());
        options.only = vec!["guest, raw".to_owned()];
        assert!(script(&options).is_some());
    }
}
