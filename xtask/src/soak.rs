//! `cargo xtask soak`: the tests with random inputs, with fresh seeds, in turns until a time is
//! over.
//!
//! A seed that no run had before follows from the clock, and each round of a program continues
//! from it. A failure does not stop the other programs: its output is kept in `target/soak`, and
//! the report names the command that repeats it. The table is meant for the changelog of a release;
//! `target/soak/report.json`, from which the page of numbers is made, is written after each round.

mod programs;
mod report;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{libtest, step};
use programs::{PROGRAMS, Program};
use report::{Failure, Report, counts};

/// A round that takes longer has failed.
const ROUND_SECONDS_MAX: u64 = 900;
/// Seeds from here on mean other formats to some programs.
const SEED_END: u64 = 1 << 31;

/// Time, seed and programs of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// No round begins after it.
    pub time: Duration,
    /// The first seed; `None` for one of the clock.
    pub seed: Option<u64>,
    /// Empty for all.
    pub programs: Vec<String>,
}

/// The names of the programs, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|program| program.name)
}

/// Builds the programs, runs them in turns and reports.
pub fn run(workspace: &Workspace, plan: &Plan) -> Result<()> {
    let is_wanted = |program: &&Program| {
        plan.programs.is_empty() || plan.programs.iter().any(|name| name == program.name)
    };
    let programs: Vec<_> = PROGRAMS.iter().filter(is_wanted).collect();
    step::heading("soak: build");
    for program in &programs {
        step::run(program.cargo(workspace).arg("--no-run"))?;
    }
    let directory = workspace.target_dir()?.join("soak");
    fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
    let seed = plan.seed.unwrap_or_else(seed_of_the_clock);
    let mut report = Report::new(workspace, seed, &programs)?;
    let began = Instant::now();
    'time: for round in 0.. {
        for (program, entry) in programs.iter().enumerate() {
            if began.elapsed() >= plan.time {
                break 'time;
            }
            let seed = seed + round * entry.seeds.per_round();
            step::heading(&format!("soak: {}, seed {seed}", entry.name));
            let failure = play(workspace, entry, seed, &directory, &mut report, program)?;
            if let Some(failure) = failure {
                eprintln!("FAILED; repeat: {}", failure.command);
                report.programs[program].failures.push(failure);
            }
            report.seconds = began.elapsed().as_secs();
            report.write(&directory.join("report.json"))?;
        }
    }
    print!("{}", report.table());
    match report.failures() {
        0 => Ok(()),
        failures => bail!(
            "{failures} rounds failed; their output is in {}",
            directory.display()
        ),
    }
}

/// One round of a program; its failure, if it fails.
fn play(
    workspace: &Workspace,
    program: &Program,
    seed: u64,
    directory: &Path,
    report: &mut Report,
    index: usize,
) -> Result<Option<Failure>> {
    let name = format!("{}-{seed}.log", program.name);
    let log = directory.join(&name);
    let output = fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
    let cargo = program.test(workspace, seed);
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=30", &ROUND_SECONDS_MAX.to_string()]);
    limited.arg(cargo.get_program()).args(cargo.get_args());
    limited.envs(
        cargo
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    limited.current_dir(workspace.root()).stdin(Stdio::null());
    limited.stdout(output.try_clone()?).stderr(output);
    let began = Instant::now();
    let status = limited.status().context("timeout does not start")?;
    let text = fs::read(&log).with_context(|| format!("{}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let entry = &mut report.programs[index];
    entry.rounds += 1;
    entry.seconds += began.elapsed().as_secs_f64();
    for (unit, count) in counts(&text) {
        *entry.counts.entry(unit).or_default() += count;
    }
    let problem = problem(status, &text);
    let Some(problem) = problem else {
        fs::remove_file(&log).with_context(|| format!("{}", log.display()))?;
        return Ok(None);
    };
    eprintln!("{}: {problem}", program.name);
    Ok(Some(Failure {
        seed,
        command: program.repeat(seed),
        log: name,
    }))
}

/// The reason why a round that ended in this way has failed, if it has.
fn problem(status: ExitStatus, output: &str) -> Option<String> {
    if !status.success() {
        return Some(status.to_string());
    }
    let is_empty = !libtest::ran_tests(output.lines());
    is_empty.then(|| "no test ran: nothing has this name any more".to_owned())
}

fn seed_of_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs() % SEED_END
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_without_a_test_has_failed() {
        use std::os::unix::process::ExitStatusExt;
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(problem(ended(0), "running 2 tests\nok\n"), None);
        let none = problem(ended(0), "running 0 tests\n").unwrap();
        assert!(none.contains("no test ran"), "{none}");
        let failed = problem(ended(101), "running 2 tests\n").unwrap();
        assert_eq!(failed, "exit status: 101");
    }
}
