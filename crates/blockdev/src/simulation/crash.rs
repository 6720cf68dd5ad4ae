//! States that a power cut may leave.
//!
//! Few blocks at stake: every combination of their versions, each once. Many: the two extremes, and
//! samples of three sorts that find different mistakes: all but one change (a missing order), one
//! change alone (an order that was relied on), and any mixture, with some writes torn.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use extant_space::ByteRange;

use super::cache::VolatileCache;
use super::log::LogCursor;
use super::seed::random;
use super::tear::{torn, units};
use crate::{Device, MemoryDevice};

/// More units at stake than this are always sampled.
const EXHAUSTIVE_UNITS_MAX: u64 = 64;

/// Selection of crash states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashOptions {
    /// Everything random follows from it.
    pub seed: u64,
    /// Most states of one position; at least 1.
    pub states_max: u64,
    /// Unit that the disk writes atomically: a power of two, at most a logical block, which is the
    /// default (`None`).
    pub atomic_bytes: Option<u32>,
}

impl CrashOptions {
    /// Up to 16 states a position, torn at logical blocks.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            states_max: 16,
            atomic_bytes: None,
        }
    }
}

/// A device as a power cut may leave it. Shown, it names what repeats it.
pub struct CrashState {
    /// The contents; a device of its own.
    pub image: MemoryDevice,
    position: usize,
    mark: Option<Arc<str>>,
    seed: u64,
    index: u64,
    kept: usize,
    torn: usize,
    lost: usize,
}

impl CrashState {
    /// Position of the power failure in the log.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The last mark before.
    pub fn mark(&self) -> Option<&str> {
        self.mark.as_deref()
    }

    /// Index of the state at this position.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Digest of the contents in [`WriteLog::changed_ranges`](super::WriteLog::changed_ranges): of
    /// the states of one log, those with equal digests are equal.
    ///
    /// # Panics
    /// When the device is shorter.
    pub fn digest(&self, ranges: &[ByteRange]) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut bytes = Vec::new();
        for range in ranges {
            bytes.resize(range.len() as usize, 0);
            let read = self.image.read_at(&mut bytes, range.start());
            read.expect("ranges of the same device");
            hasher.write(&bytes);
        }
        hasher.finish()
    }
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "power cut at position {}", self.position)?;
        if let Some(mark) = &self.mark {
            write!(f, " after {mark:?}")?;
        }
        let Self {
            seed,
            index,
            kept,
            torn,
            lost,
            ..
        } = self;
        write!(
            f,
            ", seed {seed}, state {index}: {kept} changes kept, {torn} torn, {lost} lost"
        )
    }
}

/// The states that one position is asked for.
pub(super) struct StateSpace {
    options: CrashOptions,
    position: usize,
    unit: u64,
    count: u64,
    /// Every unit at stake with the changes that wrote it, in order, when all combinations are to
    /// be made.
    cells: Option<Vec<Cell>>,
}

struct Cell {
    range: ByteRange,
    versions: Vec<usize>,
}

/// Fate of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Torn,
    Lost,
}

impl StateSpace {
    pub(super) fn new(cache: &VolatileCache, position: usize, options: CrashOptions) -> Self {
        let block = cache.durable().options().logical_block;
        let unit = options.atomic_bytes.unwrap_or(block);
        assert!(
            unit.is_power_of_two() && unit <= block,
            "{unit} bytes written whole"
        );
        assert!(options.states_max > 0, "no state to be made");
        let unit = u64::from(unit);
        let cells = cells(cache, unit);
        let combinations = cells.as_ref().and_then(|cells| {
            let versions = cells.iter().map(|cell| cell.versions.len() as u64 + 1);
            versions.into_iter().try_fold(1, u64::checked_mul)
        });
        let exhaustive = combinations.filter(|combinations| *combinations <= options.states_max);
        Self {
            options,
            position,
            unit,
            count: exhaustive.unwrap_or(options.states_max),
            cells: cells.filter(|_| exhaustive.is_some()),
        }
    }

    /// Samples only, also where all combinations could be made: the meaning of an index does not
    /// depend on the number of pending changes.
    pub(super) fn samples(cache: &VolatileCache, position: usize, seed: u64) -> Self {
        Self {
            options: CrashOptions::seeded(seed),
            position,
            unit: u64::from(cache.durable().options().logical_block),
            count: u64::MAX,
            cells: None,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn state(
        &self,
        cache: &VolatileCache,
        index: u64,
        mark: Option<Arc<str>>,
    ) -> CrashState {
        let (image, fates) = match &self.cells {
            Some(cells) => combination(cache, cells, index),
            None => {
                let place = [self.position as u64, index];
                let mut random = random(self.options.seed, &place);
                let fates = sample(cache, index, &mut random);
                let image = build(cache, &fates, self.unit, &mut random);
                (image, fates)
            }
        };
        let count = |fate| fates.iter().filter(|seen| **seen == fate).count();
        CrashState {
            image,
            position: self.position,
            mark,
            seed: self.options.seed,
            index,
            kept: count(Fate::Kept),
            torn: count(Fate::Torn),
            lost: count(Fate::Lost),
        }
    }
}

/// The units at stake, unless they are many.
fn cells(cache: &VolatileCache, unit: u64) -> Option<Vec<Cell>> {
    let mut cells: BTreeMap<u64, Cell> = BTreeMap::new();
    let mut left = EXHAUSTIVE_UNITS_MAX;
    for (number, change) in cache.unflushed().iter().enumerate() {
        if !change.change.changes_contents() {
            continue;
        }
        for part in &change.parts {
            left = left.checked_sub(units(*part, unit))?;
            for range in part.chunks(unit) {
                let versions = Vec::new();
                let cell = cells
                    .entry(range.start())
                    .or_insert(Cell { range, versions });
                // Parts begin and end with blocks, which are whole units.
                assert_eq!(cell.range, range);
                cell.versions.push(number);
            }
        }
    }
    Some(cells.into_values().collect())
}

/// The combination `index`: its digits say which version each cell holds, 0 the durable one.
fn combination(cache: &VolatileCache, cells: &[Cell], index: u64) -> (MemoryDevice, Vec<Fate>) {
    let image = cache.durable().snapshot();
    let mut digits = index;
    let mut kept_bytes = vec![0; cache.unflushed().len()];
    for cell in cells {
        let radix = cell.versions.len() as u64 + 1;
        let digit = (digits % radix) as usize;
        digits /= radix;
        if digit > 0 {
            let number = cell.versions[digit - 1];
            keep(&cache.unflushed()[number].change, cell.range, &image);
            kept_bytes[number] += cell.range.len();
        }
    }
    let fates = cache.unflushed().iter().zip(kept_bytes);
    let fates = fates.map(|(change, kept)| match kept {
        0 => Fate::Lost,
        kept if kept == change.parts.iter().map(|part| part.len()).sum::<u64>() => Fate::Kept,
        _ => Fate::Torn,
    });
    (image, fates.collect())
}

/// Fates of all changes for sample `index`.
fn sample(cache: &VolatileCache, index: u64, random: &mut fastrand::Rng) -> Vec<Fate> {
    let changes = cache.unflushed().len();
    let mut fates = match (index, random.u8(..4)) {
        (0, _) => return vec![Fate::Lost; changes],
        (1, _) => vec![Fate::Kept; changes],
        (_, 0) => one_other(changes, Fate::Kept, Fate::Lost, random),
        (_, 1) => one_other(changes, Fate::Lost, Fate::Kept, random),
        _ => {
            let kept = [0.1, 0.5, 0.9][random.usize(..3)];
            let fate = |_| match () {
                () if random.f64() < 0.2 => Fate::Torn,
                () if random.f64() < kept => Fate::Kept,
                () => Fate::Lost,
            };
            (0..changes).map(fate).collect()
        }
    };
    for (fate, change) in fates.iter_mut().zip(cache.unflushed()) {
        if !change.change.changes_contents() {
            *fate = Fate::Lost;
        }
    }
    fates
}

fn one_other(changes: usize, most: Fate, one: Fate, random: &mut fastrand::Rng) -> Vec<Fate> {
    let mut fates = vec![most; changes];
    if let Some(fate) = random.choice(&mut fates) {
        *fate = if random.bool() { one } else { Fate::Torn };
    }
    fates
}

/// The durable contents of `cache` with the changes kept by `fates` on top.
fn build(
    cache: &VolatileCache,
    fates: &[Fate],
    unit: u64,
    random: &mut fastrand::Rng,
) -> MemoryDevice {
    let image = cache.durable().snapshot();
    for (change, fate) in cache.unflushed().iter().zip(fates) {
        for part in &change.parts {
            match fate {
                Fate::Kept => keep(&change.change, *part, &image),
                Fate::Lost => {}
                Fate::Torn => torn(*part, unit, random)
                    .into_iter()
                    .for_each(|kept| keep(&change.change, kept, &image)),
            }
        }
    }
    image
}

fn keep(change: &super::Change, part: ByteRange, image: &MemoryDevice) {
    let applied = change.apply(part, image);
    applied.expect("a device without a limit has space");
}

/// Crash states of position after position.
pub struct Crashes<'l> {
    cursor: LogCursor<'l>,
    options: CrashOptions,
    space: StateSpace,
    index: u64,
}

impl<'l> Crashes<'l> {
    pub(super) fn new(cursor: LogCursor<'l>, options: CrashOptions) -> Self {
        let space = cursor.state_space(options);
        Self {
            cursor,
            options,
            space,
            index: 0,
        }
    }
}

impl Iterator for Crashes<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        while self.index == self.space.count() {
            self.cursor.advance()?;
            if self.cursor.is_crash_point() {
                self.space = self.cursor.state_space(self.options);
                self.index = 0;
            }
        }
        let state = self.cursor.crash_state(&self.space, self.index);
        self.index += 1;
        Some(state)
    }
}
