//! will-it-scale's fallocate2, in the mounts: see the `ext4` bench.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};
use crate::benches::ext4::fallocate2::run;

/// One worker, over fuse2fs.
pub(super) const ONE: &str = "fallocate2-over-fuse2fs-1";
/// The total of eight workers, over fuse2fs.
pub(super) const EIGHT: &str = "fallocate2-over-fuse2fs-8";
/// Of the floor, with as many workers: the least.
pub(super) const OF_FLOOR: &str = "fallocate2-of-floor";

const WORKERS: [usize; 4] = [1, 2, 4, 8];

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(7, 1);
    let window = Duration::from_millis(context.options.pick(700, 200));
    let rates = RateTable {
        title: "fallocate2",
        unit: "k/s in total",
        peers: environments.with_floor(),
        cases: WORKERS.map(case).into(),
    };
    let files = |peer| -> Result<(Peer, Vec<File>)> {
        let directory = environments.path(peer);
        let numbers = 0..WORKERS[WORKERS.len() - 1];
        let files =
            numbers.map(|number| File::create_new(directory.join(format!("worker{number}"))));
        Ok((peer, files.collect::<Result<_, _>>()?))
    };
    let peers: Vec<_> = rates
        .peers
        .iter()
        .map(|&peer| files(peer))
        .collect::<Result<_>>()?;
    for (round, at) in rounds(runs, peers.len()) {
        let (peer, files) = &peers[at];
        context.step(format!("fallocate2, round {}: {peer}", round + 1));
        for workers in WORKERS {
            let rate = run(&files[..workers], window)?;
            rates.record(outcome, *peer, &case(workers), rate / 1e3);
        }
    }
    let one = rates.ratio(outcome, Peer::Fuse2fs, &case(1))?;
    let eight = rates.ratio(outcome, Peer::Fuse2fs, &case(8))?;
    outcome.goals.insert(ONE, one.into());
    outcome.goals.insert(EIGHT, eight.into());
    rates.evaluate(outcome, OF_FLOOR, Peer::Floor)?;
    rates.print(outcome)
}

fn case(workers: usize) -> String {
    let plural = if workers == 1 { "" } else { "s" };
    format!("{workers} worker{plural}")
}
