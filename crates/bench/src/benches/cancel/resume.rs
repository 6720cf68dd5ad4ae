//! A run after `kill -9`: the bytes found and the bytes written.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use extant_space::ExtentState;
use extant_testkit::oracle::filefrag;
use serde::Deserialize;

use super::{
    COUNTED, DISK, KILLED, LET_IN, MISSES_MAX, RESUMED, SECOND_RUN_BYTES, SUM, Work, clear,
};
use crate::measured::{Measured, measure, mib};

/// A killed run that holds its file longer than this is a fault.
const LET_IN_MAX: Duration = Duration::from_secs(10);

/// The part of `extant create --json` that counts.
#[derive(Deserialize)]
struct Created {
    size_bytes: u64,
    written_bytes: u64,
    resumed_bytes: u64,
}

impl Work<'_> {
    /// Kills a run at a random moment, and lets the next one complete the file.
    pub(super) fn resume(&mut self) -> Result<()> {
        for _ in 0..MISSES_MAX {
            self.context.settle();
            let disk_before = self.context.disk().written_bytes();
            let (mut child, _) = self.start()?;
            child.kill()?;
            child.wait()?;
            let killed = Instant::now();
            let Some(left) = partial(&self.file)? else {
                // Ended in time, or not yet begun.
                clear(self.context.path())?;
                continue;
            };
            let found = filefrag(&left).bytes(ExtentState::Written);
            let taken = self.next_run(killed)?;
            let created: Created =
                serde_json::from_str(&taken.stdout).context("extant create --json")?;
            ensure!(
                created.size_bytes == self.size,
                "another size: {}",
                taken.stdout
            );
            let disk = self.context.disk().written_bytes();
            let disk = disk.zip(disk_before).map(|(after, before)| after - before);
            self.record_resume(found, &created, taken.written_bytes, disk);
            ensure!(
                fs::metadata(&self.file)?.len() == self.size && partial(&self.file)?.is_none(),
                "the second run did not complete the file"
            );
            return Ok(fs::remove_file(&self.file)?);
        }
        bail!("{MISSES_MAX} runs in a row ended before their kill")
    }

    /// Runs the command again. The kernel closes a killed process's file only when its
    /// requests have ended: an earlier run may fail because the file is in use.
    fn next_run(&mut self, killed: Instant) -> Result<Measured> {
        let command = self.create();
        loop {
            let tried = killed.elapsed();
            match measure(&command) {
                Err(_) if tried < LET_IN_MAX => thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(error),
                Ok(taken) => {
                    let shown = self.context.shown(&command);
                    self.metrics
                        .record(LET_IN, "ms", &shown, tried.as_secs_f64() * 1000.0);
                    return Ok(taken);
                }
            }
        }
    }

    /// `found` are the bytes written by the dead first run, `counted` the kernel's count for the
    /// second: neither is our own word.
    fn record_resume(&mut self, found: u64, created: &Created, counted: u64, disk: Option<u64>) {
        let shown = self.context.shown(&self.create());
        let killed = format!("{shown}, then kill -9; filefrag -v");
        let metrics = &mut self.metrics;
        metrics.record(KILLED, "MiB", &killed, mib(found));
        metrics.record(RESUMED, "MiB", &shown, mib(created.resumed_bytes));
        metrics.record(SECOND_RUN_BYTES, "MiB", &shown, mib(created.written_bytes));
        metrics.record(COUNTED, "MiB", &shown, mib(counted));
        // Requests that were in flight may end after the kill: more is there than was found.
        let first = found.max(created.resumed_bytes);
        let second = counted.max(created.written_bytes);
        let size = self.size as f64;
        metrics.record(SUM, "", "", (first + second) as f64 / size);
        if let Some(disk) = disk {
            metrics.record(DISK, "", "", disk as f64 / size);
        }
    }
}

/// The partial file beside `file`, if one is there.
fn partial(file: &Path) -> Result<Option<PathBuf>> {
    let name = file.file_name().context("a file has a name")?;
    let partial = file.with_file_name(format!(".{}.extant-partial", name.display()));
    Ok(partial.exists().then_some(partial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_file_is_the_one_beside_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("new.raw");
        assert_eq!(partial(&file).unwrap(), None);
        let left = directory.path().join(".new.raw.extant-partial");
        fs::write(&left, "x").unwrap();
        assert_eq!(partial(&file).unwrap(), Some(left));
    }
}
