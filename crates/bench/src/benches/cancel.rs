//! `cancel`: how soon `extant create` stops, and the bytes that a run after a kill writes again.
//!
//! Moments are random over the time that a whole run takes, from a seed that the report
//! shows. A run that ends before its signal does not count and is drawn again.

mod resume;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use extant_space::ByteSize;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::goal::Goal;
use crate::measured::measure;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::random::Random;
use crate::table::{Table, median, spread};

const SIGINT: &str = "SIGINT to exit";
const SIGTERM: &str = "SIGTERM to exit";
const KILLED: &str = "written before kill -9";
const RESUMED: &str = "found by the next run";
const SECOND_RUN_BYTES: &str = "written by the next run";
const COUNTED: &str = "written by the next run, kernel's count";
const LET_IN: &str = "from the kill to a run that is let in";
const SUM: &str = "both runs, of the size";
const DISK: &str = "the disk's own count, of the size";
const SEED: u64 = 20_260_101;
/// Exit status of a cancelled run.
const CANCELLED: i32 = 130;
/// Limit of runs that end before their signal.
const MISSES_MAX: usize = 20;

/// The bench.
pub struct Cancel;

impl Bench for Cancel {
    fn name(&self) -> &'static str {
        "cancel"
    }

    fn about(&self) -> &'static str {
        "how soon extant create stops, and what it writes again after kill -9"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Program("filefrag")]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most("cancel-median", 100.0, "ms"),
                Goal::at_most("cancel-max", 100.0, "ms"),
                Goal::at_most("cancel-leftovers", 0.0, "files"),
                Goal::at_most("resume-total", 1.001, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        size(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let signals = context.options.runs(20, 6);
        let kills = signals.div_ceil(2);
        let mut work = Work {
            context,
            size: size(&context.options),
            file: context.file("new.raw"),
            random: Random::new(SEED),
            whole: Duration::ZERO,
            metrics: Metrics::default(),
            leftovers: 0,
            slowest: (Duration::ZERO, Duration::ZERO, String::new()),
        };
        context.step("a whole run, for its time");
        work.whole = Duration::from_secs_f64(measure(&work.create())?.seconds);
        fs::remove_file(&work.file)?;
        // Every fourth by SIGTERM, which must do the same.
        for (round, _) in rounds(signals, 1) {
            context.step(format!("signal {} of {signals}", round + 1));
            work.cancel(if round % 4 == 3 {
                Signal::TERM
            } else {
                Signal::INT
            })?;
        }
        for (round, _) in rounds(kills, 1) {
            context.step(format!("kill {} of {kills}", round + 1));
            work.resume()?;
        }
        work.outcome(signals, kills)
    }
}

fn size(options: &Options) -> u64 {
    options.size(8 << 30, 1 << 30)
}

struct Work<'a> {
    context: &'a Context,
    size: u64,
    file: PathBuf,
    random: Random,
    /// The duration of a complete run.
    whole: Duration,
    metrics: Metrics,
    leftovers: usize,
    /// Time to the exit, moment of the signal, and phase of the run.
    slowest: (Duration, Duration, String),
}

impl Work<'_> {
    fn create(&self) -> Command {
        let mut command = self.context.extant();
        command.arg("create").arg(&self.file);
        command.arg(size_word(self.size));
        command.args(["--progress", "json", "--json"]);
        command
    }

    /// Starts a run and waits for a random moment in it.
    fn start(&mut self) -> Result<(Child, Duration)> {
        let mut command = self.create();
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let moment = self.random.moment(self.whole);
        let child = command.spawn()?;
        thread::sleep(moment);
        Ok((child, moment))
    }

    fn cancel(&mut self, signal: Signal) -> Result<()> {
        for _ in 0..MISSES_MAX {
            self.context.settle();
            let (mut child, moment) = self.start()?;
            let sent = Instant::now();
            kill_process(Pid::from_child(&child), signal)?;
            let status = child.wait()?;
            let latency = sent.elapsed();
            if latency > self.slowest.0 {
                self.slowest = (latency, moment, last_phase(child.stderr.take()));
            }
            if status.success() {
                fs::remove_file(&self.file)?;
                continue;
            }
            // Before the program has set its handlers, the signal itself ends it.
            let by_signal = std::os::unix::process::ExitStatusExt::signal(&status);
            ensure!(
                status.code() == Some(CANCELLED) || by_signal == Some(signal.as_raw()),
                "extant create ended with {status} after a signal"
            );
            let (name, how) = match signal {
                Signal::TERM => (SIGTERM, "kill -TERM"),
                _ => (SIGINT, "kill -INT"),
            };
            let how = format!("{}, then {how}", self.context.shown(&self.create()));
            self.metrics
                .record(name, "ms", &how, latency.as_secs_f64() * 1000.0);
            self.leftovers += clear(self.context.path())?;
            return Ok(());
        }
        bail!("{MISSES_MAX} runs in a row ended before their signal")
    }

    fn outcome(self, signals: usize, kills: usize) -> Result<Outcome> {
        let mut table = Table::new(&["", "unit", "median", "spread"]);
        let rows = [
            (SIGINT, "ms"),
            (SIGTERM, "ms"),
            (KILLED, "MiB"),
            (RESUMED, "MiB"),
            (SECOND_RUN_BYTES, "MiB"),
            (COUNTED, "MiB"),
            (LET_IN, "ms"),
            (SUM, ""),
            (DISK, ""),
        ];
        for (name, unit) in rows {
            if let Some(metric) = self.metrics.get(name, unit) {
                let cells = [name, unit].map(str::to_owned);
                let numbers = [median(Some(metric)), spread(Some(metric))];
                table.row(cells.into_iter().chain(numbers).collect());
            }
        }
        let mut all = self.metrics.of(SIGINT, "ms")?.clone();
        if let Some(other) = self.metrics.get(SIGTERM, "ms") {
            all.samples.extend(&other.samples);
        }
        let goals = [
            ("cancel-median", all.median()),
            ("cancel-max", all.max()),
            ("cancel-leftovers", self.leftovers as f64),
            ("resume-total", self.metrics.of(SUM, "")?.max()),
        ];
        Ok(Outcome {
            title: format!(
                "{}, {signals} signals and {kills} kills at random moments (seed {SEED})",
                ByteSize(self.size)
            ),
            metrics: self.metrics,
            tables: vec![table],
            goals: goals.map(|(name, value)| (name, value.into())).into(),
            notes: vec![
                format!(
                    "the slowest exit took {} ms, after a signal at {} ms of about {} ms, in the phase {}",
                    self.slowest.0.as_millis(),
                    self.slowest.1.as_millis(),
                    self.whole.as_millis(),
                    self.slowest.2
                ),
                "the disk's own count includes all writers, metadata and journal too, and \
                 what was in flight when the kill came"
                    .to_owned(),
            ],
        })
    }
}

/// The phase in the last line of progress: about 10 a second, and one for each phase.
fn last_phase(errors: Option<impl Read>) -> String {
    let mut said = String::new();
    if let Some(mut errors) = errors {
        let _ = errors.read_to_string(&mut said);
    }
    let mut lines = said.lines().rev();
    let phase = lines.find_map(|line| line.split_once("\"phase\":\"")?.1.split_once('"'));
    phase.map_or_else(|| "before any".to_owned(), |(phase, _)| phase.to_owned())
}

/// Removes all files of `directory`; returns their number.
fn clear(directory: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_is_that_of_the_last_line_of_progress() {
        let said = "{\"event\":\"progress\",\"phase\":\"allocate\",\"done_bytes\":0}\n\
            {\"event\":\"progress\",\"phase\":\"write\",\"done_bytes\":7}\n\
            {\"event\":\"error\",\"kind\":\"cancelled\"}\n";
        assert_eq!(last_phase(Some(said.as_bytes())), "write");
        assert_eq!(last_phase(Some(&b""[..])), "before any");
    }

    #[test]
    fn leftovers_are_removed_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".new.raw.extant-partial"), "x").unwrap();
        assert_eq!(clear(directory.path()).unwrap(), 1);
        assert_eq!(clear(directory.path()).unwrap(), 0);
    }
}
