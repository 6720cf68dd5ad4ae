//! The interface of a bench, and its context.
//!
//! A bench names its needs and goals, and fills an [`Outcome`]. It measures in rounds
//! ([`rounds`]): every method once a round, so that noise affects all alike, and each round starts
//! with another method, so that none is always the one after the heaviest. Before each sample it
//! calls [`Context::settle`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use extant_space::{BackgroundShare, ByteSize};
use extant_testkit::command;

use crate::directory::RunDirectory;
use crate::disk::Disk;
use crate::goal::{Goal, Value};
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::table::Table;

/// A measurement.
pub trait Bench: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// One line for `list`.
    fn about(&self) -> &'static str;

    /// Requirements.
    fn needs(&self) -> &'static [Need];

    /// The goals that the values in [`Outcome::goals`] are compared with.
    fn goals(&self) -> &'static [Goal];

    /// Most bytes that the bench's files occupy.
    fn disk_bytes(&self, options: &Options) -> u64;

    /// Measures.
    fn run(&self, context: &Context) -> Result<Outcome>;
}

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Under a minute.
    pub quick: bool,
    /// Samples of each method.
    pub runs: Option<usize>,
    /// Size of files.
    pub size_bytes: Option<u64>,
    /// Share of the disk of a further background load in `neighbour`.
    pub background_share: Option<BackgroundShare>,
    /// Words that names of parts and samples must contain, in benches that select them.
    pub only: Vec<String>,
    /// Most pairs of intervals in `neighbour`.
    pub pairs: Option<usize>,
}

impl Options {
    /// The first, or with `--quick` the second.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether a part or sample of this name is to be measured.
    pub fn selects(&self, name: &str) -> bool {
        self.only.iter().all(|word| name.contains(word.as_str()))
    }

    /// Rounds: as asked for, or one of these.
    pub fn runs(&self, full: usize, quick: usize) -> usize {
        self.runs.unwrap_or(self.pick(full, quick))
    }

    /// Size of files: as asked for, or one of these; whole blocks of 2 MiB.
    pub fn size(&self, full: u64, quick: u64) -> u64 {
        const BLOCK: u64 = 2 << 20;
        let bytes = self.size_bytes.unwrap_or(self.pick(full, quick));
        bytes.next_multiple_of(BLOCK).max(BLOCK)
    }
}

/// The place and the means of one run.
pub struct Context {
    /// Options of the command line.
    pub options: Options,
    directory: RunDirectory,
    disk: Disk,
    extant: PathBuf,
}

impl Context {
    /// Creates the directory in `parent` or below `target/`. Fails without enough free space.
    pub fn new(
        bench: &dyn Bench,
        options: Options,
        parent: Option<&Path>,
        extant: PathBuf,
    ) -> Result<Self> {
        let directory = RunDirectory::new(parent, bench.name())?;
        let wanted = bench.disk_bytes(&options);
        let room = rustix::fs::statvfs(directory.path())?;
        let available = room.f_bavail * room.f_frsize;
        ensure!(
            wanted <= available,
            "{}: {} wanted, {} available; choose another --dir or --size",
            directory.path().display(),
            ByteSize(wanted),
            ByteSize(available)
        );
        Ok(Self {
            options,
            disk: Disk::of(directory.path())?,
            directory,
            extant,
        })
    }

    /// The directory of this run, on the file system that is measured.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The disk under it.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The `extant` that is measured.
    pub fn extant(&self) -> Command {
        let mut command = Command::new(&self.extant);
        command.env("LC_ALL", "C");
        command
    }

    /// Waits until the disk is quiet: everything synced, discards of removed files done.
    pub fn settle(&self) {
        rustix::fs::sync();
        let patience = self.options.pick(6000, 700);
        self.disk.settle(Duration::from_millis(patience));
    }

    /// Reports the current step on stderr.
    pub fn step(&self, what: impl std::fmt::Display) {
        eprintln!("  {what}");
    }

    /// A command as a reader would type it, without the directories of this run.
    pub fn shown(&self, command: &Command) -> String {
        let mut line = command::line(command);
        if let Ok(own) = std::env::current_exe() {
            // First: its path may contain that of `extant`.
            line = line.replace(&format!("{}", own.display()), "extant-bench");
        }
        line.replace(&format!("{}", self.extant.display()), "extant")
            .replace(&format!("{}", self.path().display()), "DIR")
            .replace("/usr/bin/", "")
    }
}

/// Results of a bench.
#[derive(Default)]
pub struct Outcome {
    /// The parameters in one line: sizes, rounds.
    pub title: String,
    /// All samples.
    pub metrics: Metrics,
    /// Printed tables.
    pub tables: Vec<Table>,
    /// The value for each goal, by its name.
    pub goals: BTreeMap<&'static str, Value>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A size as a user types it.
pub fn size_word(bytes: u64) -> String {
    let word = ByteSize(bytes).to_string().replace(' ', "");
    // Words are rounded; a command is to get all of it.
    match word.parse() {
        Ok(ByteSize(same)) if same == bytes => word,
        _ => bytes.to_string(),
    }
}

/// Pairs of round and method: each method once a round, each round starting one later.
pub fn rounds(rounds: usize, methods: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds)
        .flat_map(move |round| (0..methods).map(move |place| (round, (round + place) % methods)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_size_means_just_that_size() {
        for bytes in [5, 1 << 30, 1600 << 20] {
            let said = size_word(bytes);
            assert_eq!(said.parse(), Ok(ByteSize(bytes)), "{said}");
        }
        assert_eq!(size_word(1 << 30), "1GiB");
    }

    #[test]
    fn name_is_selected_by_all_the_words_or_without_any() {
        let mut options = Options::default();
        assert!(options.selects("load"));
        options.only = vec!["disk".to_owned(), "native".to_owned()];
        assert!(options.selects("modes, disk, raw off, extant native"));
        assert!(!options.selects("modes, loop, raw off, extant native"));
    }

    #[test]
    fn rounds_hold_every_method_once_and_rotate() {
        let order: Vec<_> = rounds(2, 3).collect();
        assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
    }

    #[test]
    fn sizes_are_whole_blocks_and_asked_ones_come_first() {
        let mut options = Options::default();
        assert_eq!(options.size(8 << 30, 1 << 30), 8 << 30);
        options.quick = true;
        assert_eq!(options.size(8 << 30, 1 << 30), 1 << 30);
        options.size_bytes = Some((2 << 20) + 1);
        assert_eq!(options.size(8 << 30, 1 << 30), 4 << 20);
        assert_eq!((options.runs(5, 3), options.pick("a", "b")), (3, "b"));
    }
}
