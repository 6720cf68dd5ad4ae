//! Workers, lives and reports.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::seeds;
use extant_testkit::workdir::Workdir;

use crate::companion;
use crate::generate::Generator;
use crate::model::{Grain, Model};
use crate::mounted::{assert_checked, assert_clean, make, mounted};
use crate::operation::Operation;
use crate::player::Player;

const MEBIBYTES: u64 = 128;
const FILES: usize = 2;
const WORKERS: u64 = 3;
/// Steps of a worker between two mounts.
const STEPS_OF_LIFE: u64 = 800;
/// Steps between two times that the whole machine's caches are dropped: others need them.
const STEPS_OF_DROP: u64 = 5000;
/// Steps between two reports to the watchdog.
const STEPS_OF_PROGRESS: u64 = 50;
/// Steps that a report shows.
const SHOWN: usize = 25;

/// A kind of mount.
pub struct Kind {
    /// The test.
    pub name: &'static str,
    /// As `mount -o` takes it.
    pub mount: &'static str,
    /// For mke2fs.
    pub format: &'static str,
}

impl Kind {
    fn block_bytes(&self) -> u64 {
        let (_, bytes) = self.format.rsplit_once(' ').expect("-b BYTES");
        bytes.parse().expect("a number")
    }

    fn grain(&self) -> Grain {
        if self.mount.starts_with("writeback") {
            Grain::Pages
        } else {
            Grain::Exact
        }
    }
}

/// Plays the steps of each seed.
///
/// # Panics
/// With a report, on a difference to the model.
pub fn exercise(kind: &Kind, operations: u64) {
    let operations = seeds::number("EXTANT_EXERCISE_OPERATIONS", operations);
    let workers = seeds::number("EXTANT_EXERCISE_WORKERS", WORKERS);
    for seed in seeds::seeds("EXTANT_EXERCISE_SEEDS", 0..1) {
        println!("seed {seed}: {operations} steps of {workers} workers");
        let work = Workdir::new();
        let place = work.directory("mount");
        let program = companion::compile(work.path());
        let device = make(kind.format, MEBIBYTES);
        let mut all: Vec<_> = (0..workers).map(|n| Worker::new(seed, n, kind)).collect();
        let steps = operations.div_ceil(workers);
        let lives = steps.div_ceil(STEPS_OF_LIFE);
        for life in 0..lives {
            let steps = STEPS_OF_LIFE.min(steps - life * STEPS_OF_LIFE);
            let failed = mounted(&device, kind.mount, &place, |watchdog| {
                live(&mut all, steps, &place, &program, watchdog)
            });
            if let Some(text) = failed {
                panic!(
                    "{text}\nrepeat: EXTANT_EXERCISE_SEEDS={seed}..{} EXTANT_EXERCISE_OPERATIONS={operations} \
                     EXTANT_EXERCISE_WORKERS={workers} cargo test -p extant-mount --test exercise {}",
                    seed + 1,
                    kind.name
                );
            }
            assert_checked(&device);
        }
        assert_clean(&device);
        seeds::counted(operations, "operations");
    }
}

/// All workers at once; the message of the first failed one.
fn live(
    all: &mut [Worker],
    steps: u64,
    place: &Path,
    program: &Path,
    watchdog: &FuseWatchdog,
) -> Option<String> {
    let has_failed = AtomicBool::new(false);
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter_mut()
            .map(|worker| scope.spawn(|| worker.live(steps, place, program, &has_failed, watchdog)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let failures = results.into_iter().map(|result| result.unwrap().err());
    failures.flatten().next()
}

struct Worker {
    number: u64,
    seed: u64,
    generator: Generator,
    models: Vec<Model>,
    grain: Grain,
    played: u64,
    last: VecDeque<Operation>,
}

impl Worker {
    fn new(seed: u64, number: u64, kind: &Kind) -> Self {
        Self {
            number,
            seed,
            generator: Generator::new(seed * 1000 + number),
            models: vec![Model::new(kind.block_bytes()); FILES],
            grain: kind.grain(),
            played: 0,
            last: VecDeque::new(),
        }
    }

    /// From one mount to the next.
    fn live(
        &mut self,
        steps: u64,
        place: &Path,
        program: &Path,
        has_failed: &AtomicBool,
        watchdog: &FuseWatchdog,
    ) -> Result<(), String> {
        let result = self.play(steps, place, program, has_failed, watchdog);
        result.map_err(|text| {
            has_failed.store(true, Ordering::Relaxed);
            let last = self
                .last
                .iter()
                .zip(self.played + 1 - self.last.len() as u64..);
            let last: Vec<_> = last.map(|(step, n)| format!("  {n}: {step:?}")).collect();
            format!(
                "seed {}, worker {}, step {}: {text}\n{}",
                self.seed,
                self.number,
                self.played,
                last.join("\n")
            )
        })
    }

    fn play(
        &mut self,
        steps: u64,
        place: &Path,
        program: &Path,
        has_failed: &AtomicBool,
        watchdog: &FuseWatchdog,
    ) -> Result<(), String> {
        let paths = (0..FILES).map(|file| place.join(format!("{}-{file}", self.number)));
        let reach = self.generator.reach();
        let mut player = Player::new(paths.collect(), program, self.grain, reach, &self.models)?;
        let compare = |file| [Operation::Map { file }, Operation::Compare { file }];
        // Right after the mount nothing is in the cache.
        for step in (0..FILES).flat_map(compare) {
            self.step(&mut player, step)?;
        }
        for _ in 0..steps {
            if has_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.played.is_multiple_of(STEPS_OF_PROGRESS) {
                watchdog.progress();
            }
            let operation = self.generator.next(&self.models);
            self.step(&mut player, operation)?;
            if self.played % STEPS_OF_DROP == STEPS_OF_DROP / 2 && self.number == 0 {
                drop_caches()?;
            }
        }
        (0..FILES)
            .flat_map(compare)
            .try_for_each(|step| self.step(&mut player, step))
    }

    fn step(&mut self, player: &mut Player, operation: Operation) -> Result<(), String> {
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(operation.clone());
        let result = player.play(&operation, &mut self.models);
        if result.is_ok() {
            self.played += 1;
        }
        result
    }
}

/// Has the kernel forget all that is clean, files and names included.
fn drop_caches() -> Result<(), String> {
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("drop caches: {error}"))
}
