//! Runs a command to its end and takes its time and its peak memory.
//!
//! The kernel reports the peak memory only over all children. So the bench starts
//! itself as an intermediate process with one child: the command. The time is measured from
//! just before its start until its end.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use extant_testkit::command;
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

/// The argument that selects the go-between.
pub const WORD: &str = "__measure";

/// Resources used by a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Wall-clock time, start and exit included.
    pub seconds: f64,
    /// Most memory it had at once. The floor is the go-between's own, some MiB.
    pub peak_memory_bytes: u64,
    /// Bytes that it made the disk write, by the kernel's count; metadata is not in it.
    pub written_bytes: u64,
    /// Its output.
    pub stdout: String,
    stderr: String,
    success: bool,
}

impl Measured {
    /// MiB a second, for a command that made `bytes`.
    pub fn mib_per_second(&self, bytes: u64) -> f64 {
        mib(bytes) / self.seconds
    }
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs `command`; a failure is an error with its output.
pub fn measure(command: &Command) -> Result<Measured> {
    let mut between = Command::new(env::current_exe()?);
    between.arg(WORD).arg(command.get_program());
    between.args(command.get_args());
    for (name, value) in command.get_envs() {
        between.env(name, value.unwrap_or_else(|| OsStr::new("")));
    }
    let text = command::text(&mut between)?;
    let measured: Measured = serde_json::from_str(&text).context("the go-between's answer")?;
    if !measured.success {
        bail!(
            "`{}` failed: {}",
            command::line(command),
            last_lines(&measured.stderr)
        );
    }
    Ok(measured)
}

/// The last three lines of a program's output; progress lines come before them.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// The intermediate process.
pub fn serve(words: &[OsString]) -> Result<()> {
    let (program, arguments) = words.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let start = Instant::now();
    let output = command
        .output()
        .with_context(|| program.to_string_lossy().into_owned())?;
    let seconds = start.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let measured = Measured {
        seconds,
        peak_memory_bytes: u64::try_from(usage.max_rss())? << 10,
        // Counted in units of 512 bytes on every disk.
        written_bytes: u64::try_from(usage.block_writes())? * 512,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        success: output.status.success(),
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_shows_the_end_of_the_output() {
        assert_eq!(last_lines("1\n2\n3\n4\n"), "2; 3; 4");
        assert_eq!(last_lines(""), "");
    }
}
