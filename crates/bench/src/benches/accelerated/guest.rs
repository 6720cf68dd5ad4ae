//! The guest's script, built step by step, and the readers of what each step prints.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use extant_testkit::command;
use extant_testkit::guest::{Disk, Guest, Options};

use crate::bench::Context;
use crate::metrics::Metrics;

const HEAD: &str = include_str!("guest.sh");
const MEMORY_MIB: u32 = 2048;
/// For the longest run on a machine that is busy with others.
const TIMEOUT: Duration = Duration::from_secs(7200);

/// Records what a step printed.
type Reader = Box<dyn FnOnce(&str, &mut Metrics) -> Result<()>>;

/// A script with its readers.
pub(in crate::benches) struct Script {
    text: String,
    readers: Vec<Reader>,
}

impl Script {
    pub(in crate::benches) fn new() -> Self {
        Self {
            text: HEAD.to_owned(),
            readers: Vec::new(),
        }
    }

    /// Lines whose output is not read.
    pub(in crate::benches) fn prepare(&mut self, lines: &str) {
        self.text += &format!("mark prepare\n{lines}\n");
    }

    /// Lines whose output is for `reader`.
    pub(in crate::benches) fn sample(
        &mut self,
        lines: &str,
        reader: impl FnOnce(&str, &mut Metrics) -> Result<()> + 'static,
    ) {
        self.text += &format!("mark {}\n{lines}\nmark rest\n", self.readers.len());
        self.readers.push(Box::new(reader));
    }

    /// Runs it in a guest with `disks`; the samples and the release of the guest's kernel.
    pub(in crate::benches) fn run(
        self,
        context: &Context,
        disks: Vec<Disk>,
    ) -> Result<(Metrics, String)> {
        let shared = context.file("shared");
        fs::create_dir(&shared)?;
        let extant = PathBuf::from(context.extant().get_program());
        fs::copy(&extant, shared.join("extant")).with_context(|| extant.display().to_string())?;
        let options = Options {
            memory_mib: MEMORY_MIB,
            timeout: TIMEOUT,
            disks,
            shared: Some(shared),
            ..Options::default()
        };
        let output = Guest::run(&self.text, &options);
        ensure!(output.status == 0, "in the guest: {}", output.text);
        let section = |name: &str| {
            let found = output.section(name);
            found.with_context(|| format!("the guest printed no part {name}: {}", output.text))
        };
        let mut metrics = Metrics::default();
        for (number, reader) in self.readers.into_iter().enumerate() {
            let said = section(&number.to_string())?;
            reader(said, &mut metrics).with_context(|| said.to_owned())?;
        }
        Ok((metrics, section("kernel")?.to_owned()))
    }
}

/// A sparse file for a disk.
pub(in crate::benches) fn sparse(file: PathBuf, bytes: u64) -> Result<PathBuf> {
    File::create_new(&file)?.set_len(bytes)?;
    Ok(file)
}

/// The command as a reader sees it: programs have no path.
pub(in crate::benches) fn shown(command: &Command) -> String {
    command::line(command).replace("/usr/bin/", "")
}

/// The command for the script. fio expands the `$` of its arguments itself.
pub(in crate::benches) fn line(command: &Command) -> String {
    shown(command).replace('$', "\\$")
}

/// `extant` in the guest.
pub(in crate::benches) fn extant(arguments: &[&str]) -> Command {
    let mut command = Command::new("extant");
    command.args(arguments);
    command
}

/// The number on the line `NAME NUMBER`.
pub(in crate::benches) fn count(said: &str, name: &str) -> Result<f64> {
    let mut words = said.lines().filter_map(|line| line.split_once(' '));
    let (_, number) = words
        .find(|(word, _)| *word == name)
        .with_context(|| format!("no line {name}"))?;
    Ok(number.trim().parse()?)
}

/// Seconds of the `timed` or `company_ends` of the script.
pub(in crate::benches) fn seconds(said: &str) -> Result<f64> {
    Ok(count(said, "microseconds")? / 1e6)
}
