//! will-it-scale's fallocate2: every thread repeatedly extends its own file 128 times by 8 KiB and
//! truncates it. Both operations are counted.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use crossbeam_utils::CachePadded;
use extant_space::{ByteRange, FallocateMode, SpaceFile};
use rustix::fs::FallocateFlags;

use super::image::{Image, REGULAR, kernel};
use crate::bench::{Context, Outcome, rounds};
use crate::table::{Table, number, spread};

/// One thread, over the kernel's.
pub(super) const ONE: &str = "fallocate2-one-thread";
/// 64 threads, over the kernel's total.
pub(super) const MANY: &str = "fallocate2-64-threads";
/// The least of the engine's totals on 2 to 64 threads, of the best.
pub(super) const LOWEST_RATE: &str = "fallocate2-least-of-best";

const GIB: u64 = 1 << 30;
const DISK: u64 = 200 * GIB;
const MEMORY: u64 = 2 * GIB;
const STEP: u64 = 8 << 10;
const STEPS: u64 = 128;
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const RATE: &str = "k/s in total";

/// A file that is extended and truncated.
pub(in crate::benches) trait Subject: Sync {
    fn extend(&self, range: ByteRange) -> Result<()>;
    fn truncate(&self) -> Result<()>;
}

impl Subject for File {
    fn extend(&self, range: ByteRange) -> Result<()> {
        let none = FallocateFlags::empty();
        Ok(rustix::fs::fallocate(
            self,
            none,
            range.start(),
            range.len(),
        )?)
    }

    fn truncate(&self) -> Result<()> {
        Ok(self.set_len(0)?)
    }
}

impl Subject for extant_ext4::File {
    fn extend(&self, range: ByteRange) -> Result<()> {
        Ok(self.fallocate(FallocateMode::Allocate, range)?)
    }

    fn truncate(&self) -> Result<()> {
        Ok(self.resize(0)?)
    }
}

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 3);
    let window = Duration::from_millis(context.options.pick(1500, 200));
    let most = THREADS[THREADS.len() - 1];
    let scratch = kernel(DISK, MEMORY, &[]);
    let theirs: Vec<File> = (0..most)
        .map(|number| File::create_new(scratch.path().join(number.to_string())))
        .collect::<Result<_, _>>()?;
    let image = Image::new(DISK, MEMORY, &[])?;
    let engine = image.open()?;
    let root = engine.root()?;
    let ours: Vec<extant_ext4::File> = (0..most)
        .map(|number| root.create(number.to_string().as_bytes(), &REGULAR)?.file())
        .collect::<Result<_, _>>()?;
    for (round, at) in rounds(runs, THREADS.len()) {
        let threads = THREADS[at];
        context.step(format!(
            "fallocate2, round {}: {threads} threads",
            round + 1
        ));
        let rate = run(&theirs[..threads], window)?;
        outcome
            .metrics
            .record(&name("kernel", threads), RATE, "", rate / 1e3);
        let rate = run(&ours[..threads], window)?;
        outcome
            .metrics
            .record(&name("engine", threads), RATE, "", rate / 1e3);
    }
    drop(ours);
    drop(root);
    engine.close()?;
    drop(theirs);
    fs::remove_file(&image.path)?;
    report(outcome)
}

fn report(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let heading = [
        "fallocate2, threads",
        "engine, k/s",
        "spread",
        "kernel, k/s",
        "spread",
        "ratio",
    ];
    let mut table = Table::new(&heading);
    let mut totals = Vec::new();
    for threads in THREADS {
        let (ours, theirs) = (name("engine", threads), name("kernel", threads));
        let (ours, theirs) = (metrics.of(&ours, RATE)?, metrics.of(&theirs, RATE)?);
        // One thread has one processor.
        if threads > 1 {
            totals.push(ours.median());
        }
        table.row(vec![
            threads.to_string(),
            number(ours.median()),
            spread(Some(ours)),
            number(theirs.median()),
            spread(Some(theirs)),
            number(ours.median() / theirs.median()),
        ]);
    }
    let ratio = |threads| metrics.ratio(&name("engine", threads), &name("kernel", threads), RATE);
    let (one, many) = (ratio(1)?, ratio(64)?);
    let best = totals.iter().copied().fold(0.0, f64::max);
    let least = totals.iter().copied().fold(f64::INFINITY, f64::min);
    outcome.goals.insert(ONE, one.into());
    outcome.goals.insert(MANY, many.into());
    outcome.goals.insert(LOWEST_RATE, (least / best).into());
    outcome.tables.push(table);
    Ok(())
}

fn name(who: &str, threads: usize) -> String {
    format!("fallocate2, {who}, {threads}")
}

/// Operations a second, of one thread for each file.
pub(in crate::benches) fn run<S: Subject>(files: &[S], window: Duration) -> Result<f64> {
    let stop = AtomicBool::new(false);
    let counts: Vec<CachePadded<AtomicU64>> =
        files.iter().map(|_| CachePadded::default()).collect();
    thread::scope(|scope| {
        let workers: Vec<_> = files
            .iter()
            .zip(&counts)
            .map(|(file, count)| scope.spawn(|| work(file, count, &stop)))
            .collect();
        let warm = window / 10;
        thread::sleep(warm);
        let done = || {
            counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .sum::<u64>()
        };
        let (before, start) = (done(), Instant::now());
        thread::sleep(window);
        let rate = (done() - before) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(rate)
    })
}

fn work<S: Subject>(file: &S, count: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    repeat(file, |done| {
        count.store(done, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

/// Extends and truncates the file, until `then` breaks, which gets the number of operations so far
/// after each truncate.
pub(in crate::benches) fn repeat<S: Subject>(
    file: &S,
    mut then: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<()> {
    let mut done = 0;
    loop {
        for step in 0..STEPS {
            file.extend(ByteRange::new(step * STEP, (step + 1) * STEP))?;
        }
        file.truncate()?;
        done += STEPS + 1;
        if then(done).is_break() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn round_extends_to_a_mebibyte_in_order_and_truncates() {
        struct Model(Mutex<u64>);
        impl Subject for Model {
            fn extend(&self, range: ByteRange) -> Result<()> {
                let mut size = self.0.lock();
                assert_eq!(range.start(), *size);
                *size = range.end();
                Ok(())
            }

            fn truncate(&self) -> Result<()> {
                assert_eq!(std::mem::take(&mut *self.0.lock()), 1 << 20);
                Ok(())
            }
        }
        let mut rounds = Vec::new();
        repeat(&Model(Mutex::new(0)), |done| {
            rounds.push(done);
            if rounds.len() == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        assert_eq!(rounds, [129, 258]);
    }
}
