//! The first table of "Forced zeroes": a written file of zeros, by the disk's write zeroes, against
//! `dd`; on the disk, in an image on it, and by overwriting on a disk that has none.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use extant_space::ByteSize;
use serde_json::Value as Json;

use super::RATE;
use super::guest::{Script, extant, line, seconds, shown};
use crate::bench::{Outcome, rounds, size_word};
use crate::goal::Goal;
use crate::measured::mib;
use crate::metrics::Metrics;
use crate::peers;
use crate::table::{Table, median, number, spread};

pub(super) const GOALS: [Goal; 4] = [
    Goal::at_least("create-over-dd", 2.5, ""),
    Goal::at_least("create-over-dd-small", 2.5, ""),
    Goal::at_least("image-create-over-dd", 2.5, ""),
    Goal::at_least("overwrite-over-dd", 1.0, ""),
];

const PRACTICE_BYTES: u64 = 8 << 20;

/// A way to a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Dd,
    Create,
    /// Where the blocks held data before.
    CreateUsed,
    Fallocate,
    ImageDd,
    ImageCreate,
    VirtioDd,
    VirtioCreate,
}

const METHODS: [Method; 8] = [
    Method::Dd,
    Method::Create,
    Method::CreateUsed,
    Method::Fallocate,
    Method::ImageDd,
    Method::ImageCreate,
    Method::VirtioDd,
    Method::VirtioCreate,
];

/// Those that are measured with the larger size in every round.
const LARGE: [Method; 2] = [Method::Create, Method::Fallocate];

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Dd => "NVMe, dd direct",
            Self::Create => "NVMe, extant create",
            Self::CreateUsed => "NVMe, extant create, blocks in use",
            Self::Fallocate => "NVMe, extant fallocate -w",
            Self::ImageDd => "image on NVMe, dd direct in the mount",
            Self::ImageCreate => "image on NVMe, extant create --in",
            Self::VirtioDd => "virtio, dd direct",
            Self::VirtioCreate => "virtio, extant create",
        }
    }

    fn peer(self) -> Self {
        match self {
            Self::Dd | Self::Create | Self::CreateUsed | Self::Fallocate => Self::Dd,
            Self::ImageDd | Self::ImageCreate => Self::ImageDd,
            Self::VirtioDd | Self::VirtioCreate => Self::VirtioDd,
        }
    }

    fn metric(self, bytes: u64) -> String {
        format!("{}, {}", self.name(), ByteSize(bytes))
    }

    fn command(self, bytes: u64) -> Command {
        let size = size_word(bytes);
        match self {
            Self::Dd => peers::dd(Path::new("/nvme/file"), bytes),
            Self::ImageDd => peers::dd(Path::new("/image/file"), bytes),
            Self::VirtioDd => peers::dd(Path::new("/virtio/file"), bytes),
            Self::Create | Self::CreateUsed => extant(&["create", "/nvme/file", &size, "--json"]),
            Self::VirtioCreate => extant(&["create", "/virtio/file", &size, "--json"]),
            Self::Fallocate => {
                let length = bytes.to_string();
                extant(&[
                    "fallocate",
                    "-w",
                    "--no-fallback",
                    "-l",
                    &length,
                    "/nvme/file",
                ])
            }
            Self::ImageCreate => {
                extant(&["create", "--in", "/nvme/image", "/file", &size, "--json"])
            }
        }
    }

    /// The strategy that `extant create` is to choose.
    fn strategy(self) -> Option<&'static str> {
        match self {
            Self::Create | Self::CreateUsed => Some("write-zeroes"),
            Self::VirtioCreate => Some("overwrite"),
            _ => None,
        }
    }

    /// The sample: everything but the command itself is outside its time.
    fn lines(self, bytes: u64) -> String {
        let timed = format!("timed {}", line(&self.command(bytes)));
        match self {
            Self::Dd | Self::Create | Self::Fallocate => {
                format!("settle /nvme\n{timed}\nwritten /nvme/file\nrm /nvme/file")
            }
            Self::CreateUsed => format!(
                "settle /nvme\n{} 2> /tmp/said\nrm /nvme/file\nsync\n{timed}\nwritten /nvme/file\nrm /nvme/file",
                line(&Self::Dd.command(bytes)),
            ),
            Self::VirtioDd | Self::VirtioCreate => {
                format!("settle /virtio\n{timed}\nwritten /virtio/file\nrm /virtio/file")
            }
            Self::ImageDd => format!(
                "image {image}\nmount_image\nsettle /nvme\n{timed}\nwritten /image/file\n\
                 unmount_image\nrm /nvme/image",
                image = image_bytes(bytes)
            ),
            Self::ImageCreate => format!(
                "image {image}\nsettle /nvme\n{timed}\nmount_image\nwritten /image/file\n\
                 unmount_image\nrm /nvme/image",
                image = image_bytes(bytes)
            ),
        }
    }
}

fn image_bytes(bytes: u64) -> u64 {
    bytes + bytes / 8 + (128 << 20)
}

/// Appends the samples.
pub(super) fn add(script: &mut Script, runs: usize, small: u64, large: u64) {
    // A program's first run is slower: its code is read and, without KVM, translated.
    for method in METHODS {
        script.prepare(&method.lines(PRACTICE_BYTES));
    }
    for (_, method) in rounds(runs, METHODS.len()) {
        sample(script, METHODS[method], small);
    }
    // dd of the larger size takes the time of all others.
    sample(script, Method::Dd, large);
    for (_, method) in rounds(runs, LARGE.len()) {
        sample(script, LARGE[method], large);
    }
}

fn sample(script: &mut Script, method: Method, bytes: u64) {
    let command = shown(&method.command(bytes));
    script.sample(&method.lines(bytes), move |said, metrics| {
        if let Some(wanted) = method.strategy() {
            let strategy = strategy(said)?;
            ensure!(
                strategy == wanted,
                "strategy {strategy} instead of {wanted}"
            );
        }
        let seconds = seconds(said)?;
        let name = method.metric(bytes);
        metrics.record(&name, RATE, &command, mib(bytes) / seconds);
        metrics.record(&name, "s", &command, seconds);
        Ok(())
    });
}

/// The strategy in the report of `extant create`.
fn strategy(said: &str) -> Result<String> {
    let json = said.split("\nmicroseconds ").next().unwrap_or_default();
    let report: Json = serde_json::from_str(json).context("the report of extant create")?;
    let strategy = report["plan"]["strategy"].as_str();
    Ok(strategy.context("no strategy in the report")?.to_owned())
}

/// Rate of `method` over that of its peer, of medians: the peer may have fewer samples.
fn over_dd(metrics: &Metrics, method: Method, bytes: u64) -> Result<f64> {
    let rate = |method: Method| metrics.of(&method.metric(bytes), RATE);
    Ok(rate(method)?.median() / rate(method.peer())?.median())
}

/// Adds the tables and the values of the goals.
pub(super) fn report(
    metrics: &Metrics,
    small: u64,
    large: u64,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut table = Table::new(&["creation", "s", "spread", "MiB/s", "over dd"]);
    for (bytes, methods) in [
        (small, &METHODS[..]),
        (large, &[Method::Dd, Method::Create, Method::Fallocate]),
    ] {
        for &method in methods {
            let name = method.metric(bytes);
            let time = metrics.get(&name, "s");
            let ratio = if method == method.peer() {
                String::new()
            } else {
                number(over_dd(metrics, method, bytes)?)
            };
            table.row(vec![
                name.clone(),
                median(time),
                spread(time),
                median(metrics.get(&name, RATE)),
                ratio,
            ]);
        }
    }
    outcome.tables.push(table);
    let values = [
        over_dd(metrics, Method::Create, large)?,
        over_dd(metrics, Method::Create, small)?,
        over_dd(metrics, Method::ImageCreate, small)?,
        over_dd(metrics, Method::VirtioCreate, small)?,
    ];
    let goals = GOALS.iter().zip(values);
    outcome
        .goals
        .extend(goals.map(|(goal, value)| (goal.name, value.into())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategy_is_read_before_the_time() {
        let said = "{\"plan\": {\n\"strategy\": \"write-zeroes\"}}\n\nmicroseconds 1500000\n";
        assert_eq!(strategy(said).unwrap(), "write-zeroes");
        assert_eq!(seconds(said).unwrap(), 1.5);
        assert!(strategy("extant: no\nmicroseconds 1").is_err());
    }
}
