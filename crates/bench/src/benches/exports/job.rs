//! The workloads of a client: random requests of 4 KiB, and requests of 1 MiB in order.

use std::fmt;
use std::time::Duration;

use crate::bench::Context;
use crate::benches::images::image::Kind;
use crate::fio::Fio;

/// Direction of the transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Where the next request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Anywhere.
    Random,
    /// Behind the one before.
    Sequential,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) direction: Direction,
    pub(super) order: Order,
    /// Requests in flight.
    pub(super) depth: u32,
}

/// When a workload ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    After(Duration),
    /// At this number of requests.
    Requests(u64),
}

/// Requests in flight of random workloads.
const DEPTHS: [u32; 4] = [1, 16, 64, 256];
/// Of sequential ones.
const SEQUENTIAL_DEPTH: u32 = 8;
/// An image that allocates gets a request for each of these bytes: the same share of its clusters
/// is new for every server.
const BYTES_PER_ALLOCATING_REQUEST: u64 = 64 << 10;

impl Job {
    pub(super) const fn random(direction: Direction, depth: u32) -> Self {
        Self {
            direction,
            order: Order::Random,
            depth,
        }
    }

    const fn sequential(direction: Direction) -> Self {
        Self {
            direction,
            order: Order::Sequential,
            depth: SEQUENTIAL_DEPTH,
        }
    }

    /// Random workloads of a direction, at all depths.
    pub(super) fn random_depths(direction: Direction) -> impl Iterator<Item = Self> {
        DEPTHS
            .map(|depth| Self::random(direction, depth))
            .into_iter()
    }

    /// Samples of an image of this kind: the workloads that follow each other on one image. What
    /// allocates or converts has an image for each.
    pub(super) fn samples(kind: Kind) -> Vec<Vec<Self>> {
        if kind.mode != "full" {
            return Self::random_depths(Direction::Write)
                .map(|job| vec![job])
                .collect();
        }
        let sequential = [Direction::Write, Direction::Read].map(Self::sequential);
        let random = [Direction::Write, Direction::Read].into_iter();
        vec![
            sequential
                .into_iter()
                .chain(random.flat_map(Self::random_depths))
                .collect(),
        ]
    }

    /// Bytes of a request.
    pub(super) fn block_bytes(self) -> u64 {
        match self.order {
            Order::Random => 4 << 10,
            Order::Sequential => 1 << 20,
        }
    }

    /// When it ends on an image of this kind and size.
    pub(super) fn end(context: &Context, kind: Kind, size: u64) -> End {
        if kind.mode == "full" {
            return End::After(Duration::from_secs(context.options.pick(2, 1)));
        }
        let requests = size / BYTES_PER_ALLOCATING_REQUEST;
        End::Requests(requests / context.options.pick(1, 4))
    }

    /// The same by fio, which has the rest of its options already.
    pub(super) fn set_in(self, fio: Fio, end: End, size: u64) -> Fio {
        let pattern = match (self.order, self.direction) {
            (Order::Random, Direction::Read) => "randread",
            (Order::Random, Direction::Write) => "randwrite",
            (Order::Sequential, Direction::Read) => "read",
            (Order::Sequential, Direction::Write) => "write",
        };
        let fio = fio
            .set("rw", pattern)
            .set("bs", self.block_bytes())
            .set("iodepth", self.depth)
            .set("size", size);
        match end {
            End::After(time) => fio.set("time_based", 1).set("runtime", time.as_secs()),
            // Without a map of blocks, as the other clients have none.
            End::Requests(count) => fio.set("norandommap", 1).set("number_ios", count),
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            direction, depth, ..
        } = self;
        f.pad(&match self.order {
            Order::Random => format!("{direction}, depth {depth}"),
            Order::Sequential => format!("{direction} 1 MiB in order"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_that_allocates_gets_one_workload_and_a_written_one_all() {
        let samples = Job::samples(Kind::qcow2("off"));
        assert!(samples.iter().all(|jobs| jobs.len() == 1));
        assert_eq!(samples.len(), DEPTHS.len());
        let written = Job::samples(Kind::raw("full"));
        let names: Vec<_> = written[0].iter().map(Job::to_string).collect();
        assert_eq!(names[0], "write 1 MiB in order");
        assert!(names.contains(&"read, depth 256".to_owned()), "{names:?}");
        assert_eq!(names.len(), 2 + 2 * DEPTHS.len());
    }

    #[test]
    fn fio_gets_the_same_requests() {
        let job = Job::random(Direction::Write, 16);
        let fio = job.set_in(Fio::nbd("x", "u"), End::Requests(7), 1 << 20);
        let line = extant_testkit::command::line(&fio.command());
        let wanted = "--rw=randwrite --bs=4096 --iodepth=16 --size=1048576 --norandommap=1 \
            --number_ios=7 ";
        assert!(line.contains(wanted), "{line}");
    }
}
