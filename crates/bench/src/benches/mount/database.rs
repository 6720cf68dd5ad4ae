//! SQLite: insertions, each a transaction of its own that is durable when it ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Result, ensure};
use extant_testkit::command::{text, tool};

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};

/// Over fuse2fs.
pub(super) const OVER_FUSE2FS: &str = "sqlite-over-fuse2fs";

const INSERT: &str = "insert";

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let count = context.options.pick(1000, 100);
    let script = context.file("script.sql");
    write_script(&mut File::create_new(&script)?, count)?;
    let rates = RateTable {
        title: "sqlite",
        unit: "inserts/s",
        peers: environments.file_systems(),
        cases: vec![INSERT.to_owned()],
    };
    for (round, at) in rounds(runs, rates.peers.len()) {
        let peer = rates.peers[at];
        context.step(format!("sqlite, round {}: {peer}", round + 1));
        rustix::fs::sync();
        let database = environments.path(peer).join("database");
        let mut command = tool("sqlite3");
        command.arg("-bail").arg(&database);
        command.stdin(File::open(&script)?);
        let start = Instant::now();
        let answer = text(&mut command)?;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        let last = answer.lines().next_back().unwrap_or_default();
        ensure!(last == count.to_string(), "{peer}: sqlite says {answer:?}");
        rates.record(outcome, peer, INSERT, rate);
        fs::remove_file(&database)?;
    }
    rates.evaluate(outcome, OVER_FUSE2FS, Peer::Fuse2fs)?;
    rates.print(outcome)
}

fn write_script(script: &mut File, count: usize) -> Result<()> {
    let mut lines = String::from(
        "PRAGMA synchronous = FULL;\nCREATE TABLE t (number INTEGER PRIMARY KEY, words TEXT);\n",
    );
    for number in 0..count {
        lines += &format!("INSERT INTO t VALUES ({number}, 'a line of some length {number}');\n");
    }
    lines += "SELECT count(*) FROM t;\n";
    Ok(script.write_all(lines.as_bytes())?)
}
