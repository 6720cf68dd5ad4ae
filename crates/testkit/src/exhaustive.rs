//! Bounded exhaustive testing, after ACE (CrashMonkey, OSDI 2018): every sequence of a length over
//! a set of moves, each an operation and the sync behind it.
//!
//! Sequences are numbered, so that a run takes a shard of them and a failure names one:
//! `EXTANT_EXHAUSTIVE=K/N` runs every N-th sequence from K on, `0/1` all. Without it the shard
//! changes from day to day.
//!
//! Sequences share prefixes: what happens in one is tested once ([`Sequence::shared_steps`]).

use std::env;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::seeds;

/// Names the shard.
const SHARD: &str = "EXTANT_EXHAUSTIVE";
/// The seed of sequences that are drawn.
const SEED: &str = "EXTANT_EXHAUSTIVE_SEED";
/// The number of sequences that are drawn.
const SAMPLES: &str = "EXTANT_EXHAUSTIVE_SAMPLES";

/// An operation, of one step or several, and the sync that follows it.
#[derive(Clone, Debug)]
pub struct Move<S> {
    /// The operation.
    pub steps: Vec<S>,
    /// The sync.
    pub sync: Option<S>,
}

/// All sequences of a length; number `n` is `n` written with the moves as digits.
#[derive(Clone, Debug)]
pub struct Sequences<S> {
    moves: Vec<Move<S>>,
    length: u32,
}

/// One of them.
pub struct Sequence<'m, S> {
    moves: Vec<&'m Move<S>>,
}

impl<S> Sequences<S> {
    /// Those of `length` moves.
    pub fn new(moves: Vec<Move<S>>, length: u32) -> Self {
        Self { moves, length }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.moves.len().pow(self.length)
    }

    /// The moves.
    pub fn moves(&self) -> &[Move<S>] {
        &self.moves
    }

    /// Index of the first move of a sequence.
    pub fn first_move(&self, number: usize) -> usize {
        number / self.moves.len().pow(self.length - 1)
    }

    /// The sequence of a number below [`count`](Self::count).
    pub fn get(&self, number: usize) -> Sequence<'_, S> {
        let mut rest = number;
        let mut moves: Vec<_> = (0..self.length)
            .map(|_| {
                let digit = rest % self.moves.len();
                rest /= self.moves.len();
                &self.moves[digit]
            })
            .collect();
        moves.reverse();
        Sequence { moves }
    }
}

impl<'m, S: Clone> Sequence<'m, S> {
    /// These moves.
    pub fn of(moves: Vec<&'m Move<S>>) -> Self {
        assert!(!moves.is_empty(), "a sequence without a move");
        Self { moves }
    }

    /// The steps of all moves, syncs included.
    pub fn steps(&self) -> Vec<S> {
        let steps = self
            .moves
            .iter()
            .flat_map(|one| one.steps.iter().chain(&one.sync));
        steps.cloned().collect()
    }

    /// The number of first steps that another sequence has as well: the one without the last sync,
    /// or the one that is shorter by a move.
    pub fn shared_steps(&self) -> usize {
        let last = self.last();
        let own = match last.sync {
            None => last.steps.len(),
            Some(_) => 1,
        };
        self.steps().len() - own
    }

    /// Whether it ends with a sync.
    pub fn is_synced(&self) -> bool {
        self.last().sync.is_some()
    }

    fn last(&self) -> &Move<S> {
        self.moves.last().expect("a move")
    }
}

impl<S: Clone + fmt::Debug> fmt::Display for Sequence<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.steps())
    }
}

/// Every `step`-th sequence, beginning with `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    first: usize,
    step: usize,
}

impl Shard {
    /// The shard that the environment names, else today's of `shards`; it is printed.
    ///
    /// # Panics
    /// When `EXTANT_EXHAUSTIVE` is not `K/N`.
    pub fn wanted(shards: usize) -> Self {
        let shard = match env::var(SHARD) {
            Ok(wanted) => {
                Self::parse(&wanted).unwrap_or_else(|| panic!("{SHARD}={wanted}: not K/N"))
            }
            Err(_) => Self {
                first: today() % shards,
                step: shards,
            },
        };
        println!("{SHARD}={shard}");
        shard
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, step) = text.split_once('/')?;
        let (first, step) = (first.parse().ok()?, step.parse().ok()?);
        (step > 0).then_some(Self { first, step })
    }

    /// The one sequence of `count` with a number.
    pub fn only(number: usize, count: usize) -> Self {
        Self {
            first: number,
            step: count,
        }
    }

    /// Its sequences of `count`.
    pub fn numbers(self, count: usize) -> Vec<usize> {
        (self.first..count).step_by(self.step).collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.step)
    }
}

/// The words that repeat a sequence, as a shard.
pub fn repeat(number: usize, count: usize) -> String {
    format!("{SHARD}={}", Shard::only(number, count))
}

/// Numbers of sequences of `count` that are drawn with the seed `EXTANT_EXHAUSTIVE_SEED`, or with
/// the day: as many as `EXTANT_EXHAUSTIVE_SAMPLES` says, or `usual`.
///
/// # Panics
/// When a variable is not a number.
pub fn samples(count: usize, usual: usize) -> Vec<usize> {
    let wanted = seeds::number(SAMPLES, usual as u64);
    let mut state = seeds::number(SEED, today() as u64);
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % count as u64) as usize
    };
    (0..wanted).map(|_| next()).collect()
}

/// The number of the day: a seed that changes, and repeats for a day.
fn today() -> usize {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    (time.expect("after 1970").as_secs() / 86_400) as usize
}

/// Counts of sequences and cuts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Sequences generated.
    pub sequences: u64,
    /// Those in which every operation succeeds.
    pub possible: u64,
    /// Validated cuts.
    pub cuts: u64,
    /// Cuts with image and promises of another one of the same sequence.
    pub equal: u64,
    /// Images that an oracle has examined.
    pub by_oracle: u64,
    /// Time.
    pub took: Duration,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            sequences: self.sequences + other.sequences,
            possible: self.possible + other.possible,
            cuts: self.cuts + other.cuts,
            equal: self.equal + other.equal,
            by_oracle: self.by_oracle + other.by_oracle,
            took: self.took + other.took,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sequences, {} possible; {} cuts, {} more equal to one of these; {} by the oracle; \
             {:.1} s",
            self.sequences,
            self.possible,
            self.cuts,
            self.equal,
            self.by_oracle,
            self.took.as_secs_f64()
        )
    }
}

/// Passes each of `numbers` to a worker, one for each processor, and adds what they have done.
///
/// # Panics
/// When `work` panics.
pub fn on_all_processors<W>(
    numbers: &[usize],
    worker: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, usize) + Sync,
    tally: impl Fn(&W) -> Tally + Sync,
) -> Tally {
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut worker = worker();
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(&mut worker, number);
        }
        tally(&worker)
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let sum = thread::scope(|scope| {
        let running: Vec<_> = (0..processors).map(|_| scope.spawn(run)).collect();
        running
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .fold(Tally::default(), |sum, one| sum.plus(&one))
    });
    Tally {
        took: began.elapsed(),
        ..sum
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sequences(length: u32) -> Sequences<char> {
        let one = |steps: &str, sync| Move {
            steps: steps.chars().collect(),
            sync,
        };
        Sequences::new(
            vec![one("a", None), one("a", Some('s')), one("bc", None)],
            length,
        )
    }

    fn text(sequence: &Sequence<'_, char>) -> String {
        sequence.steps().into_iter().collect()
    }

    #[test]
    fn each_sequence_of_a_length_has_one_number() {
        let all = sequences(2);
        let texts: HashSet<_> = (0..all.count())
            .map(|number| text(&all.get(number)))
            .collect();
        assert_eq!(texts.len(), 9);
        assert_eq!(text(&all.get(5)), "asbc");
        assert_eq!(all.first_move(5), 1);
    }

    #[test]
    fn shared_steps_are_all_but_the_last_operation_or_its_sync() {
        let all = sequences(2);
        let shared = |number| all.get(number).shared_steps();
        assert_eq!((shared(3), text(&all.get(3))), (2, "asa".into()));
        assert_eq!((shared(4), text(&all.get(4))), (3, "asas".into()));
        assert_eq!((shared(8), text(&all.get(8))), (2, "bcbc".into()));
        assert_eq!(sequences(1).get(2).shared_steps(), 0);
    }

    #[test]
    fn shards_have_every_sequence_once() {
        let mut numbers: Vec<_> = (0..7)
            .flat_map(|shard| Shard::parse(&format!("{shard}/7")).unwrap().numbers(100))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert_eq!(Shard::only(42, 100).numbers(100), [42]);
        assert_eq!(Shard::parse("1/0"), None);
    }

    #[test]
    fn samples_are_different_sequences_of_the_count() {
        let drawn = samples(1_000_000, 1000);
        let different: HashSet<_> = drawn.iter().collect();
        assert!(different.len() > 990 && drawn.iter().all(|number| *number < 1_000_000));
    }

    #[test]
    fn work_is_done_once_on_all_processors() {
        let numbers: Vec<_> = (0..1000).collect();
        let work = |tally: &mut Tally, number| tally.cuts += number as u64;
        let tally = on_all_processors(&numbers, Tally::default, work, |tally| *tally);
        assert_eq!(tally.cuts, 499_500);
    }
}
