//! Default number of workers, and the CPUs that they run on.
//!
//! A program that waits for a reply sleeps, and so does a worker that waits for a request. Waking
//! one on another CPU can cost many times as much as the reply itself. Workers that stay on one CPU
//! each draw the program to the CPU of its reply.
//!
//! On two CPUs with other load, and a file system that answers at once, two such workers completed
//! 250 to 280 thousand `fallocate` per second with 1, 2, 4 and 8 programs (medians of 20 rounds);
//! one or four workers, or workers without affinity, completed 105 to 285 thousand, with more
//! variation. An idle machine, and more than two CPUs, were not measured.

use std::num::NonZero;
use std::thread::available_parallelism;

use extant_sys::cpus::{allowed, stay_on};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::options::WorkerAffinity;

/// Maximum default number of workers; each has up to 2 MiB of memory.
const DEFAULT_WORKERS_MAX: usize = 8;

/// The CPU that a worker prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCpu {
    Any,
    /// The nth CPU that the process may use, modulo their number.
    Nth(usize),
    /// The CPU with this number.
    Number(usize),
}

/// The default number of workers: one for each CPU, within bounds. With two, a request that waits
/// for a device does not stop the others.
pub(crate) fn default_workers() -> NonZero<usize> {
    let cpus = available_parallelism().map_or(1, NonZero::get);
    NonZero::new(cpus.clamp(2, DEFAULT_WORKERS_MAX)).unwrap_or(NonZero::<usize>::MIN)
}

impl WorkerAffinity {
    /// Moves the calling thread to its CPU. If that is not permitted, it is not moved.
    pub(crate) fn apply(self, cpu: WorkerCpu) {
        let Self::OnePerCpu = self else { return };
        match cpu {
            WorkerCpu::Any => {}
            WorkerCpu::Number(cpu) => _ = stay_on(cpu),
            WorkerCpu::Nth(number) => {
                let cpus = allowed().unwrap_or_default();
                if let Some(&cpu) = cpus.get(number % cpus.len().max(1)) {
                    let _ = stay_on(cpu);
                }
            }
        }
    }
}

/// Runs `action` on one CPU where that is allowed, otherwise on any.
pub(crate) fn on_cpu<T>(cpu: usize, action: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None);
    let is_there = stay_on(cpu).is_ok();
    let done = action();
    if is_there && let Ok(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    done
}
