//! Jobs cancelled at random moments: the time until the pool is in its former state.
//!
//! By `extant job cancel` for a background job, and by SIGINT for one in the foreground. libvirt
//! has no equivalent: its daemon finishes a volume after virsh was killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use extant_testkit::command::{describe, run, run_any_status, text};
use rustix::process::{Pid, Signal, kill_process};

use super::size;
use crate::bench::{Context, Outcome, rounds, size_word};
use crate::measured::measure as take;
use crate::random::Random;
use crate::table::{Table, median, spread};

/// The slowest of all.
pub(super) const TIME: &str = "cancel-max";
/// Files left in the pool and in its work directory.
pub(super) const LEFTOVERS: &str = "cancel-leftovers";

const UNIT: &str = "ms";
const BY_COMMAND: &str = "extant job cancel";
const BY_SIGNAL: &str = "SIGINT to exit of extant vol create";
const SEED: u64 = 20_261_122;
const CANCELLED: i32 = 130;
/// Limit of runs that end before their cancel.
const MISSES_MAX: usize = 20;
/// So much longer than [`size`], as a cancel needs a job that lasts.
const LONGER: u64 = 8;

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(20, 4);
    let pool = context.file("cancel");
    fs::create_dir(&pool)?;
    let mut work = Work {
        context,
        pool: &pool,
        size: size_word(LONGER * size(&context.options)),
        whole: Duration::ZERO,
        random: Random::new(SEED),
        leftovers: 0,
    };
    context.step("a whole run, for its time");
    work.whole = Duration::from_secs_f64(take(&work.create(&[]))?.seconds);
    fs::remove_file(pool.join("v"))?;
    for (round, method) in rounds(runs, 2) {
        let name = [BY_COMMAND, BY_SIGNAL][method];
        context.step(format!("round {}: {name}", round + 1));
        work.sample(name, outcome)?;
    }
    let leftovers = work.leftovers;
    let metrics = &outcome.metrics;
    let mut table = Table::new(&["cancel", UNIT, "spread"]);
    for name in [BY_COMMAND, BY_SIGNAL] {
        let metric = metrics.get(name, UNIT);
        table.row(vec![name.to_owned(), median(metric), spread(metric)]);
    }
    let slowest = metrics
        .of(BY_COMMAND, UNIT)?
        .max()
        .max(metrics.of(BY_SIGNAL, UNIT)?.max());
    outcome.goals.extend([
        (TIME, slowest.into()),
        (LEFTOVERS, (leftovers as f64).into()),
    ]);
    outcome.tables.push(table);
    outcome.title += &format!("{runs} cancels of each kind (seed {SEED})");
    Ok(())
}

struct Work<'a> {
    context: &'a Context,
    pool: &'a Path,
    size: String,
    /// The duration of a complete run.
    whole: Duration,
    random: Random,
    leftovers: usize,
}

impl Work<'_> {
    fn create(&self, more: &[&str]) -> Command {
        let mut command = self.context.extant();
        command.args(["vol", "create"]).arg(self.pool);
        command.args(["v", &self.size]).args(more);
        command
    }

    fn sample(&mut self, name: &'static str, outcome: &mut Outcome) -> Result<()> {
        for _ in 0..MISSES_MAX {
            self.context.settle();
            let moment = self.random.moment(self.whole);
            let cancelled = match name {
                BY_COMMAND => self.by_command(moment)?,
                _ => self.by_signal(moment)?,
            };
            let Some((took, shown)) = cancelled else {
                fs::remove_file(self.pool.join("v"))?;
                continue;
            };
            let metrics = &mut outcome.metrics;
            metrics.record(name, UNIT, &shown, took.as_secs_f64() * 1000.0);
            self.leftovers += self.left()?;
            return Ok(());
        }
        bail!("{MISSES_MAX} jobs in a row ended before their cancel")
    }

    /// Time from the start of the command to its end; none for a job that was done before.
    fn by_command(&self, moment: Duration) -> Result<Option<(Duration, String)>> {
        let id = text(&mut self.create(&["--detach"]))?;
        thread::sleep(moment);
        let mut cancel = self.context.extant();
        cancel.args(["job", "cancel"]).arg(self.pool).arg(id.trim());
        let start = Instant::now();
        let output = run_any_status(&mut cancel)?;
        let took = start.elapsed();
        if self.pool.join("v").exists() {
            return Ok(None);
        }
        ensure!(output.status.success(), "{}", describe(&output));
        Ok(Some((took, self.context.shown(&cancel))))
    }

    /// Time from the signal to the exit.
    fn by_signal(&self, moment: Duration) -> Result<Option<(Duration, String)>> {
        let mut create = self.create(&[]);
        let mut child = create.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        thread::sleep(moment);
        let start = Instant::now();
        kill_process(Pid::from_child(&child), Signal::INT)?;
        let status = child.wait()?;
        let took = start.elapsed();
        if self.pool.join("v").exists() {
            return Ok(None);
        }
        // Before the program has set its handlers, the signal itself ends it.
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&status);
        ensure!(
            status.code() == Some(CANCELLED) || by_signal == Some(Signal::INT.as_raw()),
            "extant vol create ended with {status} after a signal"
        );
        Ok(Some((took, self.context.shown(&create))))
    }

    /// Files that the cancel should have taken away; they are, now.
    fn left(&self) -> Result<usize> {
        let names = |directory: &Path| -> Result<usize> {
            Ok(if directory.exists() {
                fs::read_dir(directory)?.count()
            } else {
                0
            })
        };
        let own = usize::from(self.pool.join(".extant").exists());
        let left = names(self.pool)? - own + names(&self.pool.join(".extant/work"))?;
        if left > 0 {
            let mut refresh = self.context.extant();
            refresh.args(["pool", "refresh", "--cancel"]);
            run(refresh.arg(self.pool))?;
        }
        Ok(left)
    }
}
