//! Making and removing many files in one directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};

/// The lesser of both, over fuse2fs.
pub(super) const OVER_FUSE2FS: &str = "files-over-fuse2fs";
/// The lesser of both, of the floor.
pub(super) const OF_FLOOR: &str = "files-of-floor";

const CREATE: &str = "create";
const UNLINK: &str = "unlink";

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let count = context.options.pick(10_000, 1000);
    let rates = RateTable {
        title: "files",
        unit: "files/s",
        peers: environments.with_floor(),
        cases: [CREATE, UNLINK].map(str::to_owned).into(),
    };
    for (round, at) in rounds(runs, rates.peers.len()) {
        let peer = rates.peers[at];
        context.step(format!("files, round {}: {peer}", round + 1));
        rustix::fs::sync();
        let directory = environments.path(peer).join("files");
        fs::create_dir(&directory)?;
        let paths = paths(&directory, count);
        let made = rate(&paths, |path| File::create_new(path).map(drop))?;
        rates.record(outcome, peer, CREATE, made);
        let removed = rate(&paths, |path| fs::remove_file(path))?;
        rates.record(outcome, peer, UNLINK, removed);
        fs::remove_dir(&directory)?;
    }
    rates.evaluate(outcome, OVER_FUSE2FS, Peer::Fuse2fs)?;
    rates.evaluate(outcome, OF_FLOOR, Peer::Floor)?;
    rates.print(outcome)
}

fn paths(directory: &Path, count: usize) -> Vec<PathBuf> {
    let numbers = 0..count;
    numbers
        .map(|number| directory.join(format!("file{number:05}")))
        .collect()
}

/// Calls a second.
fn rate(paths: &[PathBuf], call: impl Fn(&Path) -> std::io::Result<()>) -> Result<f64> {
    let start = Instant::now();
    for path in paths {
        call(path)?;
    }
    Ok(paths.len() as f64 / start.elapsed().as_secs_f64())
}
