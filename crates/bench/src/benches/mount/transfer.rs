//! Reading and writing: sequential and random, buffered and direct, in requests of three sizes.
//!
//! A sample covers a file at most once and ends after its time limit. Buffered reads start with a
//! cold page cache; the time of writes includes the sync. Sequential writes create a file, random
//! ones overwrite blocks of a written file.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::fs::{Advice, OFlags, fadvise};

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};
use crate::measured::mib;
use crate::random::Random;

/// The least over fuse2fs.
pub(super) const OVER_FUSE2FS: &str = "transfer-over-fuse2fs";
/// The least of the floor.
pub(super) const OF_FLOOR: &str = "transfer-of-floor";

const WHOLE: &str = "whole";
const FRESH: &str = "fresh";
const MIB: u64 = 1 << 20;
/// Direct I/O wants memory like this.
const ALIGNMENT: usize = 4096;
const REQUESTS: [(&str, usize); 3] = [
    ("4 KiB", 4 << 10),
    ("128 KiB", 128 << 10),
    ("1 MiB", 1 << 20),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Sequential,
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    Buffered,
    Direct,
}

#[derive(Clone, Copy)]
struct Job {
    operation: Operation,
    order: Order,
    cache: Cache,
    request: (&'static str, usize),
}

/// The files of a peer. They remain open, so that the kernel does not drop their cached state.
struct Files {
    peer: Peer,
    /// Written from its start to its end.
    whole: File,
    /// Created by each sequential write.
    fresh: File,
}

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let window = Duration::from_millis(context.options.pick(250, 40));
    let size = context.options.pick(256, 64) * MIB;
    let mut jobs = jobs();
    jobs.retain(|job| {
        let name = format!("transfer, {}", job.name());
        context.options.selects(&name)
    });
    if jobs.is_empty() {
        return Ok(());
    }
    let rates = RateTable {
        title: "transfer",
        unit: "MiB/s",
        peers: environments.all(),
        cases: jobs.iter().map(Job::name).collect(),
    };
    let files: Vec<_> = rates
        .peers
        .iter()
        .map(|&peer| Files::new(environments, peer, size))
        .collect::<Result<_>>()?;
    for (round, at) in rounds(runs, jobs.len()) {
        let job = &jobs[at];
        context.step(format!("transfer, round {}: {}", round + 1, job.name()));
        for turn in 0..files.len() {
            let files = &files[(turn + round) % files.len()];
            let rate = job.run(environments, files, size, window)?;
            rates.record(outcome, files.peer, &job.name(), rate);
        }
    }
    for &peer in &rates.peers {
        for name in [WHOLE, FRESH] {
            fs::remove_file(environments.path(peer).join(name))?;
        }
    }
    drop(files);
    rates.evaluate(outcome, OVER_FUSE2FS, Peer::Fuse2fs)?;
    rates.evaluate(outcome, OF_FLOOR, Peer::Floor)?;
    rates.print(outcome)
}

fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for cache in [Cache::Buffered, Cache::Direct] {
        for operation in [Operation::Read, Operation::Write] {
            for order in [Order::Sequential, Order::Random] {
                jobs.extend(REQUESTS.map(|request| Job {
                    operation,
                    order,
                    cache,
                    request,
                }));
            }
        }
    }
    jobs
}

impl Files {
    fn new(environments: &Environments, peer: Peer, size: u64) -> Result<Self> {
        let create = |name| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create_new(true);
            options.open(environments.path(peer).join(name))
        };
        let (whole, fresh) = (create(WHOLE)?, create(FRESH)?);
        let data = vec![1; MIB as usize];
        for offset in (0..size).step_by(data.len()) {
            whole.write_all_at(&data, offset)?;
        }
        whole.sync_all()?;
        Ok(Self { peer, whole, fresh })
    }
}

impl Job {
    fn name(&self) -> String {
        let cache = match self.cache {
            Cache::Buffered => "buffered",
            Cache::Direct => "direct",
        };
        let order = match self.order {
            Order::Sequential => "sequential",
            Order::Random => "random",
        };
        let operation = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let (size, _) = self.request;
        format!("{cache} {order} {operation} {size}")
    }

    fn writes_fresh(&self) -> bool {
        self.operation == Operation::Write && self.order == Order::Sequential
    }

    /// MiB a second.
    fn run(
        &self,
        environments: &Environments,
        files: &Files,
        size: u64,
        window: Duration,
    ) -> Result<f64> {
        let (name, held) = if self.writes_fresh() {
            (FRESH, &files.fresh)
        } else {
            (WHOLE, &files.whole)
        };
        if self.writes_fresh() {
            held.set_len(0)?;
        }
        // Nothing is dirty, so all of it is dropped.
        held.sync_all()?;
        fadvise(held, 0, None, Advice::DontNeed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self.cache == Cache::Direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let file = options.open(environments.path(files.peer).join(name))?;
        let (_, length) = self.request;
        let mut memory = vec![2; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut memory[start..start + length];
        let places = self.places(size / length as u64);
        let start = Instant::now();
        let mut done = 0;
        for place in places {
            let offset = place * length as u64;
            match self.operation {
                Operation::Read => file.read_exact_at(buffer, offset)?,
                Operation::Write => file.write_all_at(buffer, offset)?,
            }
            done += length as u64;
            if start.elapsed() >= window {
                break;
            }
        }
        if self.operation == Operation::Write {
            file.sync_data()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        ensure!(done > 0, "a file without a request");
        Ok(mib(done) / seconds)
    }

    /// The numbers of all requests' places, each once.
    fn places(&self, count: u64) -> Vec<u64> {
        let mut places: Vec<_> = (0..count).collect();
        if self.order == Order::Random {
            let mut random = Random::new(count);
            for last in (1..places.len()).rev() {
                let other = (random.fraction() * (last + 1) as f64) as usize;
                places.swap(last, other.min(last));
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_places_are_all_places_in_another_order() {
        let job = |order| Job {
            operation: Operation::Read,
            order,
            cache: Cache::Direct,
            request: REQUESTS[0],
        };
        let mut places = job(Order::Random).places(1000);
        let sequential = job(Order::Sequential).places(1000);
        assert_ne!(places, sequential);
        places.sort_unstable();
        assert_eq!(places, sequential);
    }

    #[test]
    fn jobs_are_all_combinations_under_different_names() {
        let names: std::collections::BTreeSet<_> = jobs().iter().map(Job::name).collect();
        assert_eq!(names.len(), 24);
    }
}
