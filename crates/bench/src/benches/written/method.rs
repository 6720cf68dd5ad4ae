//! The methods of `written`, and a sample of each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use extant_testkit::command::run;
use extant_testkit::oracle::filefrag_count;

use super::{EXTENTS, PEAK, PROBE_COLD, PROBE_WARM, RATE};
use crate::bench::{Context, size_word};
use crate::fio::Fio;
use crate::measured::{Measured, measure, mib};
use crate::metrics::Metrics;
use crate::{memory, peers};

/// A way to a written file, or a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Create,
    Fallocate,
    Dd,
    QemuWarm,
    QemuCold,
    Overwrite,
    FirstTouch,
    Materialize,
}

pub(super) const METHODS: [Method; 8] = [
    Method::Create,
    Method::Dd,
    Method::QemuWarm,
    Method::QemuCold,
    Method::Fallocate,
    Method::Materialize,
    Method::Overwrite,
    Method::FirstTouch,
];

impl Method {
    /// The word in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "extant create",
            Self::Fallocate => "fallocate (unwritten)",
            Self::Dd => "dd direct",
            Self::QemuWarm => "qemu-img full, warm memory",
            Self::QemuCold => "qemu-img full, cold memory",
            Self::Overwrite => "ceiling: fio overwriting",
            Self::FirstTouch => "ceiling: fio, new blocks",
            Self::Materialize => "extant materialize, old blocks",
        }
    }
}

/// Takes the samples.
pub(super) struct Work<'a> {
    pub(super) context: &'a Context,
    pub(super) size: u64,
    /// Made and removed by each sample.
    pub(super) new: PathBuf,
    /// Written once; its blocks stay.
    pub(super) old: PathBuf,
    pub(super) metrics: &'a mut Metrics,
}

impl Work<'_> {
    /// Makes the old file.
    pub(super) fn prepare(&self) -> Result<()> {
        self.context.step("a file to overwrite");
        measure(&self.create(&self.old))?;
        Ok(())
    }

    fn create(&self, file: &Path) -> Command {
        let mut command = self.context.extant();
        command.arg("create").arg(file).arg(size_word(self.size));
        command
    }

    /// Takes one sample of `method` and removes the file.
    pub(super) fn sample(&mut self, method: Method) -> Result<()> {
        match method {
            Method::Create => self.rated(method, &self.create(&self.new)),
            Method::Dd => self.rated(method, &peers::dd(&self.new, self.size)),
            Method::Fallocate => {
                let seconds = self
                    .made(method, &peers::fallocate(&self.new, self.size, &[]))?
                    .seconds;
                let shown = self
                    .context
                    .shown(&peers::fallocate(&self.new, self.size, &[]));
                self.metrics.record(method.name(), "s", &shown, seconds);
                Ok(fs::remove_file(&self.new)?)
            }
            Method::QemuWarm => {
                // A quarter more than is needed, as other processes take some of it.
                memory::touch(self.size / 4 * 5)?;
                let probe = memory::probe()?;
                self.metrics.record(PROBE_WARM, RATE, "", probe);
                self.rated(method, &peers::qemu_img(&self.new, self.size))
            }
            Method::QemuCold => {
                let patience = self.context.options.pick(60, 4);
                memory::cool(Duration::from_secs(patience))?;
                let probe = memory::probe()?;
                self.metrics.record(PROBE_COLD, RATE, "", probe);
                self.rated(method, &peers::qemu_img(&self.new, self.size))
            }
            Method::Overwrite => self.ceiling(method, &self.old.clone()),
            Method::FirstTouch => {
                run(&mut peers::fallocate(&self.new, self.size, &[]))?;
                self.context.settle();
                self.ceiling(method, &self.new.clone())?;
                Ok(fs::remove_file(&self.new)?)
            }
            Method::Materialize => {
                run(&mut peers::fallocate(&self.old, self.size, &["-z"]))?;
                self.context.settle();
                let mut command = self.context.extant();
                command.arg("materialize").arg(&self.old);
                let taken = self.made(method, &command)?;
                self.rate(method, &command, &taken);
                Ok(())
            }
        }
    }

    /// Measures a command that makes the new file, and removes it.
    fn rated(&mut self, method: Method, command: &Command) -> Result<()> {
        let taken = self.made(method, command)?;
        self.rate(method, command, &taken);
        Ok(fs::remove_file(&self.new)?)
    }

    fn made(&mut self, method: Method, command: &Command) -> Result<Measured> {
        let taken = measure(command)?;
        let shown = self.context.shown(command);
        let file = match method {
            Method::Materialize => &self.old,
            _ => &self.new,
        };
        let extents = filefrag_count(file) as f64;
        let peak = mib(taken.peak_memory_bytes);
        self.metrics.record(method.name(), EXTENTS, &shown, extents);
        self.metrics.record(method.name(), PEAK, &shown, peak);
        Ok(taken)
    }

    fn rate(&mut self, method: Method, command: &Command, taken: &Measured) {
        let shown = self.context.shown(command);
        let rate = taken.mib_per_second(self.size);
        self.metrics.record(method.name(), RATE, &shown, rate);
        self.metrics
            .record(method.name(), "s", &shown, taken.seconds);
    }

    fn ceiling(&mut self, method: Method, file: &Path) -> Result<()> {
        let job = Fio::ceiling(file, self.size);
        let writes = job.run()?;
        let shown = self.context.shown(&job.command());
        let rate = writes.mib_per_second;
        self.metrics.record(method.name(), RATE, &shown, rate);
        self.metrics
            .record(method.name(), "s", &shown, mib(self.size) / rate);
        Ok(())
    }
}
