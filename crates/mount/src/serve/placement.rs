//! How many threads answer, and on which CPUs.
//!
//! A program that waits for an answer sleeps meanwhile, and so does a thread that waits for a request. Waking one on
//! another CPU can cost many times what the answer itself does. Threads that stay on one CPU each draw the program to
//! where its answer comes from. On two CPUs that other work used as well, with a file system that answers at once, two such
//! threads did 250 to 280 thousand `fallocate` a second with 1, 2, 4 and 8 programs (medians of 20 rounds); one or four,
//! or free ones, did 105 to 285 thousand, and varied more. An idle machine, and more than two CPUs, were not measured.

use std::num::NonZero;
use std::thread::available_parallelism;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// By default there are no more; each has up to 2 MiB of memory.
const THREADS_MAX: usize = 8;

/// On which CPUs threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Where the kernel puts them.
    Free,
    /// The first on the first CPU that the process may use, and so on, and around.
    OnePerCpu,
}

/// How many threads answer, unless it is said: one for each CPU, within bounds. With two, one that waits for a disk does not
/// stop the rest.
pub(crate) fn threads_by_default() -> NonZero<usize> {
    let cpus = available_parallelism().map_or(1, NonZero::get);
    NonZero::new(cpus.clamp(2, THREADS_MAX)).unwrap_or(NonZero::<usize>::MIN)
}

impl Placement {
    /// Puts the calling thread, the `number`th, in its place. Where that is not allowed it stays where it is.
    pub(super) fn settle(self, number: usize) {
        let Self::OnePerCpu = self else { return };
        let Ok(allowed) = sched_getaffinity(None) else {
            return;
        };
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .collect();
        if let Some(&cpu) = cpus.get(number % cpus.len().max(1)) {
            let mut only = CpuSet::new();
            only.set(cpu);
            let _ = sched_setaffinity(None, &only);
        }
    }
}
