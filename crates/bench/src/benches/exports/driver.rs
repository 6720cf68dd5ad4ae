//! A client of vhost-user: keeps a number of requests in flight.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use super::job::{End, Job, Order};
use super::sys::{Disk, TIMEOUT};
use crate::random::Random;

/// How a client waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// It reads the ring until there is one.
    Polling,
    /// The server calls it.
    Sleeping,
}

impl Waiting {
    pub(super) const BOTH: [Self; 2] = [Self::Polling, Self::Sleeping];
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Polling => "polling client",
            Self::Sleeping => "sleeping client",
        })
    }
}

/// Result of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) requests: u64,
    pub(super) seconds: f64,
}

impl Done {
    pub(super) fn rate(self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

/// Runs a workload on the first `size` bytes of the disk at `socket`.
pub(super) fn run(socket: &Path, job: Job, waiting: Waiting, end: End, size: u64) -> Result<Done> {
    let mut disk = Disk::connect(socket, job)?;
    disk.set_called(waiting == Waiting::Sleeping);
    let mut offsets = Offsets::new(job, size);
    let started = Instant::now();
    let (mut submitted, mut completed) = (0, 0);
    while submitted < u64::from(job.depth) {
        disk.submit(job.direction, submitted as usize, offsets.next())?;
        submitted += 1;
    }
    disk.notify()?;
    let mut last = started;
    loop {
        let before = completed;
        let now = Instant::now();
        let is_over = match end {
            End::After(time) => now.duration_since(started) >= time,
            End::Requests(count) => submitted >= count,
        };
        while let Some(slot) = disk.completed()? {
            completed += 1;
            if !is_over {
                disk.submit(job.direction, slot, offsets.next())?;
                submitted += 1;
            }
        }
        if completed == submitted {
            break;
        }
        if completed > before {
            last = now;
            disk.notify()?;
            continue;
        }
        match waiting {
            Waiting::Polling if now.duration_since(last) > TIMEOUT => {
                bail!("the server has completed nothing for {TIMEOUT:?}")
            }
            Waiting::Polling => std::hint::spin_loop(),
            Waiting::Sleeping => disk.sleep()?,
        }
    }
    Ok(Done {
        requests: completed,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Places of requests.
struct Offsets {
    order: Order,
    block_bytes: u64,
    blocks: u64,
    next: u64,
    random: Random,
}

impl Offsets {
    fn new(job: Job, size: u64) -> Self {
        Self {
            order: job.order,
            block_bytes: job.block_bytes(),
            blocks: size / job.block_bytes(),
            next: 0,
            random: Random::new(job.depth.into()),
        }
    }

    fn next(&mut self) -> u64 {
        let block = match self.order {
            Order::Random => (self.random.fraction() * self.blocks as f64) as u64,
            Order::Sequential => self.next % self.blocks,
        };
        self.next += 1;
        block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use extant_blockdev::{Access, MemoryDevice};
    use extant_vhost::{Server, ServerOptions, Volume};

    use super::super::job::Direction;
    use super::*;

    #[test]
    fn client_that_polls_and_one_that_sleeps_move_the_data_of_every_request() {
        const SIZE: u64 = 8 << 20;
        let device = Arc::new(MemoryDevice::new(SIZE));
        let volume = Volume::new("v", device.clone(), Access::ReadWrite);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let server = Server::listen(volume, &socket, ServerOptions::default()).unwrap();
        for (waiting, order, depth) in [
            (Waiting::Polling, Order::Random, 64),
            (Waiting::Sleeping, Order::Random, 1),
            (Waiting::Sleeping, Order::Sequential, 8),
        ] {
            let job = Job {
                direction: Direction::Write,
                order,
                depth,
            };
            let done = run(&socket, job, waiting, End::Requests(500), SIZE).unwrap();
            assert!((500..=500 + u64::from(depth)).contains(&done.requests));
        }
        assert_eq!(device.allocated(), SIZE);
        server.shutdown(Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn offsets_are_whole_blocks_inside_and_sequential_ones_start_again() {
        let mut random = Offsets::new(Job::random(Direction::Read, 1), 1 << 20);
        assert!((0..999).all(|_| matches!(random.next(), at if at < 1 << 20 && at % 4096 == 0)));
        let job = Job {
            order: Order::Sequential,
            ..Job::random(Direction::Read, 1)
        };
        let mut sequential = Offsets::new(job, 2 << 20);
        let offsets = [(); 3].map(|()| sequential.next());
        assert_eq!(offsets, [0, 1 << 20, 0]);
    }
}
