//! How many threads answer, and on which CPUs.
//!
//! A program that waits for an answer sleeps meanwhile, and so does a thread that waits for a
//! request. Waking one on another CPU can cost many times what the answer itself does. Threads that
//! stay on one CPU each draw the program to where its answer comes from. On two CPUs that other
//! work used as well, with a file system that answers at once, two such threads did 250 to 280
//! thousand `fallocate` a second with 1, 2, 4 and 8 programs (medians of 20 rounds); one or four,
//! or free ones, did 105 to 285 thousand, and varied more. An idle machine, and more than two CPUs,
//! were not measured.

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

/// Where one thread belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Anywhere,
    /// The first on the first CPU that the process may use, and so on, and around.
    Nth(usize),
    /// On the CPU of this number.
    Cpu(usize),
}

/// How many threads answer, unless it is said: one for each CPU, within bounds. With two, one that
/// waits for a disk does not stop the rest.
pub(crate) fn threads_by_default() -> NonZero<usize> {
    let cpus = available_parallelism().map_or(1, NonZero::get);
    NonZero::new(cpus.clamp(2, THREADS_MAX)).unwrap_or(NonZero::<usize>::MIN)
}

impl Placement {
    /// Puts the calling thread in its place. Where that is not allowed it stays where it is.
    pub(super) fn settle(self, seat: Seat) {
        let Self::OnePerCpu = self else { return };
        match seat {
            Seat::Anywhere => {}
            Seat::Cpu(cpu) => _ = stay_on(cpu),
            Seat::Nth(number) => {
                let Ok(allowed) = sched_getaffinity(None) else {
                    return;
                };
                let cpus: Vec<_> = (0..CpuSet::MAX_CPU)
                    .filter(|&cpu| allowed.is_set(cpu))
                    .collect();
                if let Some(&cpu) = cpus.get(number % cpus.len().max(1)) {
                    let _ = stay_on(cpu);
                }
            }
        }
    }
}

/// Does something on one CPU, where that is allowed, and else anywhere.
pub(crate) fn on_cpu<T>(cpu: usize, action: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None);
    let is_there = stay_on(cpu).is_ok();
    let done = action();
    if is_there && let Ok(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    done
}

fn stay_on(cpu: usize) -> rustix::io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)
}
