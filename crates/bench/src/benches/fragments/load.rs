//! The requests of a client of an image.

use crate::bench::Context;
use crate::fio::{Fio, Transfers};

const MIB_RATE: &str = "MiB/s";
const RATE: &str = "requests/s";

/// Requests of one kind.
pub(super) struct Load {
    pub(super) name: &'static str,
    /// Unit of its rate.
    pub(super) unit: &'static str,
    pub(super) block_bytes: u64,
    /// fio's word.
    pattern: &'static str,
    depth: u32,
    /// Nothing is cached when it begins. Ends with the image at the latest; the others repeat it.
    pub(super) is_cold: bool,
}

/// In the order in which they run.
pub(super) const LOADS: [Load; 7] = [
    Load {
        is_cold: true,
        ..Load::in_order("cold read 1 MiB in order", "read")
    },
    Load::in_order("read 1 MiB in order", "read"),
    Load::in_order("write 1 MiB in order", "write"),
    Load::random("read 4 KiB, depth 1", "randread", 1),
    Load::random("read 4 KiB, depth 32", "randread", 32),
    Load::random("write 4 KiB, depth 1", "randwrite", 1),
    Load::random("write 4 KiB, depth 32", "randwrite", 32),
];

impl Load {
    const fn in_order(name: &'static str, pattern: &'static str) -> Self {
        Self {
            name,
            unit: MIB_RATE,
            block_bytes: 1 << 20,
            pattern,
            depth: 1,
            is_cold: false,
        }
    }

    const fn random(name: &'static str, pattern: &'static str, depth: u32) -> Self {
        Self {
            name,
            unit: RATE,
            block_bytes: 4096,
            pattern,
            depth,
            is_cold: false,
        }
    }

    pub(super) fn is_in_order(&self) -> bool {
        self.unit == MIB_RATE
    }

    /// On an image of `size` at `uri`.
    pub(super) fn fio(&self, context: &Context, uri: &str, size: u64) -> Fio {
        let job = Fio::nbd("fragments", uri)
            .set("rw", self.pattern)
            .set("bs", self.block_bytes)
            .set("iodepth", self.depth)
            .set("size", size)
            .set("runtime", context.options.pick("1s", "500ms"));
        if self.is_cold {
            job
        } else {
            job.set("time_based", 1)
        }
    }

    /// In its unit.
    pub(super) fn rate(&self, done: &Transfers) -> f64 {
        if self.is_in_order() {
            done.mib_per_second
        } else {
            done.iops
        }
    }
}
