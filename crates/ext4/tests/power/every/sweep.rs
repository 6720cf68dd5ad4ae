//! Runs sequences and cuts them.
//!
//! A cut is validated once: positions that a sequence shares with another one are validated there,
//! and of equal images of one sequence with the same promises the first is.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::simulation::{CrashDevice, CrashOptions, CrashState};
use extant_blockdev::{Device, MemoryDevice};
use extant_testkit::exhaustive::{self, Tally, on_all_processors};

use super::operations::tree;
use crate::image::Format;
use crate::judge::Look;
use crate::life::{End, Life, Start};
use crate::oracle::Oracle;
use crate::step::Step;

/// Most states of a position. If there are fewer, they are all.
const STATES_MAX: u64 = 16;
/// Intervals in cuts, as those of `survive`.
const READ_ONLY: u64 = 5;
const EXAMINED: u64 = 997;
const RECOVERED_BY_OTHERS: u64 = 1999;

/// Number of the first step: data differs from that of the tree.
const FIRST_STEP: usize = 100;

/// Returns the device on which the engine runs, given the one that records.
pub type Wrap = dyn Fn(Arc<CrashDevice>) -> Arc<dyn Device> + Sync;

pub type Sequence<'m> = exhaustive::Sequence<'m, Step>;
pub type Sequences = exhaustive::Sequences<Step>;

/// A format with the tree on it.
pub struct Bed {
    pub name: &'static str,
    format: Format,
    base: MemoryDevice,
    fast_commits: AtomicU64,
}

/// A cut after which a promise was broken.
struct Wrong {
    life: Life,
    crash: CrashState,
    reason: String,
}

impl Bed {
    pub fn new(name: &'static str, format: Format) -> Self {
        let empty = format.make();
        let start = Start {
            base: &empty,
            commits: format.commits,
            first_step: 0,
            device: &|disk| disk,
        };
        let life = Life::branch("tree", &start, &tree(), End::Closed);
        assert!(life.actors[0].failed.is_empty());
        let base = life.log.replay(life.log.len());
        Self {
            name,
            format,
            base,
            fast_commits: AtomicU64::new(0),
        }
    }

    /// Syncs so far that were fast commits.
    pub fn fast_commits(&self) -> u64 {
        self.fast_commits.load(Ordering::Relaxed)
    }

    pub fn is_possible(&self, sequence: &Sequence<'_>) -> bool {
        self.live(String::new(), sequence, &|disk| disk).is_some()
    }

    /// Runs a sequence; `None` if an operation fails.
    fn live(&self, name: String, sequence: &Sequence<'_>, device: &Wrap) -> Option<Life> {
        let start = Start {
            base: &self.base,
            commits: self.format.commits,
            first_step: FIRST_STEP,
            device,
        };
        // After a sync at the end nothing is of interest. Without one, closing commits and
        // checkpoints.
        let end = if sequence.is_synced() {
            End::Crashed
        } else {
            End::Closed
        };
        let life = Life::branch(name, &start, &sequence.steps(), end);
        life.actors[0].failed.is_empty().then_some(life)
    }

    /// Cuts the sequences of these numbers everywhere.
    ///
    /// # Panics
    /// With the words that repeat it, if a promise is broken.
    pub fn sweep(&self, sequences: &Sequences, numbers: &[usize]) -> Tally {
        let begins: Vec<bool> = sequences
            .moves()
            .iter()
            .map(|one| self.is_possible(&Sequence::of(vec![one])))
            .collect();
        let work = |cutter: &mut Cutter, number| {
            cutter.tally.sequences += 1;
            if begins[sequences.first_move(number)] {
                self.survive(sequences, number, cutter);
            }
        };
        on_all_processors(numbers, || Cutter::new(&self.base), work, Cutter::tally)
    }

    fn survive(&self, sequences: &Sequences, number: usize, cutter: &mut Cutter) {
        let sequence = sequences.get(number);
        let name = format!("every {} {number} of {}", self.name, sequences.count());
        let Some(life) = self.live(name, &sequence, &|disk| disk) else {
            return;
        };
        cutter.tally.possible += 1;
        let fast_commits = life.actors[0].fast_commits;
        self.fast_commits.fetch_add(fast_commits, Ordering::Relaxed);
        if let Err(wrong) = cutter.cut(life, &sequence) {
            let repeat = exhaustive::repeat(number, sequences.count());
            let reason = format!("{}\n{repeat}: {sequence}", wrong.reason);
            wrong.life.fail(&wrong.crash, &reason);
        }
    }

    /// Number of sequences in which a promise is broken on a faulty device, and of all.
    pub fn found(&self, sequences: &Sequences, device: &Wrap) -> (usize, usize) {
        let mut cutter = Cutter::new(&self.base);
        let (mut found, mut all) = (0, 0);
        for number in 0..sequences.count() {
            let sequence = sequences.get(number);
            let name = format!("every faulty {number}");
            if let Some(life) = self.live(name, &sequence, device) {
                all += 1;
                found += usize::from(cutter.cut(life, &sequence).is_err());
            }
        }
        (found, all)
    }
}

/// Cuts lives, one after the other.
struct Cutter {
    oracle: Oracle,
    tally: Tally,
}

impl Cutter {
    fn new(base: &MemoryDevice) -> Self {
        Self {
            oracle: Oracle::new(base),
            tally: Tally::default(),
        }
    }

    fn tally(&self) -> Tally {
        Tally {
            by_oracle: self.oracle.runs as u64,
            ..self.tally
        }
    }

    /// Cuts at every position that is not another sequence's.
    fn cut(&mut self, life: Life, sequence: &Sequence<'_>) -> Result<(), Box<Wrong>> {
        match self.first_wrong(&life, sequence.shared_steps()) {
            None => Ok(()),
            Some((crash, reason)) => Err(Box::new(Wrong {
                life,
                crash,
                reason,
            })),
        }
    }

    fn first_wrong(&mut self, life: &Life, shared: usize) -> Option<(CrashState, String)> {
        let options = CrashOptions {
            states_max: STATES_MAX,
            ..CrashOptions::seeded(1)
        };
        let actor = &life.actors[0];
        let changed = life.log.changed_ranges();
        let mut seen = HashSet::new();
        let mut cursor = life.log.cursor();
        cursor.advance_to(actor.end_of(shared));
        while cursor.advance().is_some() {
            if !cursor.is_crash_point() {
                continue;
            }
            let ended = actor.ended(cursor.position());
            for crash in cursor.crash_states(options) {
                if !seen.insert((ended, crash.digest(&changed))) {
                    self.tally.equal += 1;
                } else if let Err(wrong) = self.judge(life, &crash) {
                    return Some((crash, wrong));
                }
            }
        }
        None
    }

    fn judge(&mut self, life: &Life, crash: &CrashState) -> Result<(), String> {
        self.tally.cuts += 1;
        let cuts = self.tally.cuts;
        let look = match cuts % READ_ONLY {
            0 => Look::ReadOnlyToo,
            _ => Look::Recovered,
        };
        let recovered = life.judge(crash, look)?;
        if cuts.is_multiple_of(EXAMINED) {
            self.oracle.examine(&recovered.image)?;
        }
        if cuts.is_multiple_of(RECOVERED_BY_OTHERS) {
            let theirs = self.oracle.recover(&crash.image, life.actors[0].commits);
            life.compare(crash, &recovered, theirs);
        }
        Ok(())
    }
}
