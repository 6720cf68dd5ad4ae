//! A log, as databases keep it: 4 KiB appended, fdatasync, and again.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};

/// Over fuse2fs.
pub(super) const OVER_FUSE2FS: &str = "log-over-fuse2fs";

const APPEND: &str = "append 4 KiB, fdatasync";
const RECORD: usize = 4096;

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(7, 1);
    let window = Duration::from_millis(context.options.pick(1000, 200));
    let rates = RateTable {
        title: "log",
        unit: "appends/s",
        peers: environments.with_floor(),
        cases: vec![APPEND.to_owned()],
    };
    for (round, at) in rounds(runs, rates.peers.len()) {
        let peer = rates.peers[at];
        context.step(format!("log, round {}: {peer}", round + 1));
        rustix::fs::sync();
        let path = environments.path(peer).join("log");
        let mut file = File::create_new(&path)?;
        let (record, start) = ([1; RECORD], Instant::now());
        let mut done = 0;
        while start.elapsed() < window {
            file.write_all(&record)?;
            file.sync_data()?;
            done += 1;
        }
        let rate = f64::from(done) / start.elapsed().as_secs_f64();
        rates.record(outcome, peer, APPEND, rate);
        drop(file);
        fs::remove_file(&path)?;
    }
    rates.evaluate(outcome, OVER_FUSE2FS, Peer::Fuse2fs)?;
    rates.print(outcome)
}
