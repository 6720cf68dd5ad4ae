//! `scaling`: the tests of "mballoc scalability" (docs/background.md) as their author ran them.
//!
//! - [`containers`]: will-it-scale's fallocate2 in 1 to 64 containers, operations of each;
//! - [`appends`]: 64 parallel jobs of fio's falloc engine, bandwidth and fragmentation.
//!
//! Both in the kernel's ext4 on a loop device over memory and in `extant mount` of an image in
//! memory, each with `mb_optimize_scan` 0 and 1. The running kernel may have the patches; the
//! allocator alone runs with both behaviours, re-created ([`extant_mballoc::Options`]).
//!
//! [`worker`] is the process in a container.

mod appends;
mod containers;
pub(crate) mod worker;

use std::fmt;

use anyhow::Result;

use super::mount::environment::Environment;
use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

const DISK: u64 = 200 << 30;

/// The bench.
pub struct Scaling;

impl Bench for Scaling {
    fn name(&self) -> &'static str {
        "scaling"
    }

    fn about(&self) -> &'static str {
        "fallocate2 in containers and parallel appends, in extant mount and the kernel's ext4"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("mkfs.ext4"),
            Need::Program("e2fsck"),
            Need::Program("e2freefrag"),
            Need::Program("fio"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(containers::OF_FLOOR, 0.7, ""),
                Goal::at_least(containers::LINEAR, 0.9, ""),
                Goal::at_most(appends::EXTENTS, 32.0, ""),
                Goal::at_most(appends::SCORE, 2.0, ""),
                Goal::at_most(appends::FREE, 1.5, ""),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        0
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome {
            title: "file systems of 200 GiB in memory".to_owned(),
            ..Outcome::default()
        };
        containers::measure(context, &mut outcome)?;
        appends::measure(context, &mut outcome)?;
        Ok(outcome)
    }
}

/// A file system, and how its allocator scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subject {
    system: System,
    /// `mb_optimize_scan`.
    scan: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Mount,
    Kernel,
}

impl Subject {
    const ALL: [Self; 4] = [
        Self::new(System::Mount, 0),
        Self::new(System::Mount, 1),
        Self::new(System::Kernel, 0),
        Self::new(System::Kernel, 1),
    ];

    const fn new(system: System, scan: u8) -> Self {
        Self { system, scan }
    }

    /// Mounts a new one. Neither passes allocations down: the image is larger than the memory.
    fn mount(self, context: &Context, memory: u64, mkfs: &[&str]) -> Result<Environment> {
        let scan = format!("mb_optimize_scan={}", self.scan);
        match self.system {
            System::Mount => {
                let options = format!("{scan},assign=off");
                Environment::of_extant(context, (DISK, memory), mkfs, &options)
            }
            System::Kernel => Ok(Environment::of_kernel((DISK, memory), mkfs, &scan)),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = match self.system {
            System::Mount => "extant mount",
            System::Kernel => "kernel",
        };
        write!(f, "{system}, scan {}", self.scan)
    }
}
