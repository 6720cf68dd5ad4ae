//! Everything that was done to a device, in order, from a known beginning.
//!
//! A position is a number of events: the state at position `n` is the one after the first `n` of
//! them. Going through all positions costs no more than the changes themselves; each state is a
//! snapshot that shares unchanged parts.

use std::sync::Arc;

use extant_space::ByteRange;

use super::cache::VolatileCache;
use super::change::Change;
use super::crash::{CrashOptions, CrashState, Crashes, StateSpace};
use crate::{MemoryDevice, Persistence};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A change was submitted and, if the power stayed on, done.
    Change {
        /// Number of its call of `submit`.
        batch: u64,
        /// The change.
        change: Change,
        /// `Fua`: durable when the batch has completed.
        persistence: Persistence,
    },
    /// A flush was submitted.
    Flush {
        /// Number of its call of `submit`.
        batch: u64,
    },
    /// A batch with changes or flushes completed: the caller may rely on it.
    Completed {
        /// Number of the call of `submit`.
        batch: u64,
    },
    /// A remark of the test.
    Mark(Arc<str>),
}

/// A recording of the requests to a device. Clones share the data.
#[derive(Clone)]
pub struct WriteLog {
    base: Arc<MemoryDevice>,
    events: Vec<Event>,
}

impl WriteLog {
    /// An empty log of a device that holds `base`.
    pub(super) fn new(base: MemoryDevice) -> Self {
        Self {
            base: Arc::new(base),
            events: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The contents before the first event, all durable.
    pub fn base(&self) -> &MemoryDevice {
        &self.base
    }

    /// Events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The last position.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True when nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The position right after the first mark of this name.
    pub fn position_of(&self, mark: &str) -> Option<usize> {
        let is_it = |event: &Event| matches!(event, Event::Mark(name) if **name == *mark);
        Some(self.events.iter().position(is_it)? + 1)
    }

    pub(super) fn last_mark(&self) -> Option<Arc<str>> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Mark(name) => Some(name.clone()),
            _ => None,
        })
    }

    /// Contents as read from the device at `position`: with every change up to there, flushed or
    /// not.
    ///
    /// # Panics
    /// When the log is shorter.
    pub fn replay(&self, position: usize) -> MemoryDevice {
        let image = self.base.snapshot();
        for event in &self.events[..position] {
            apply(event, &image);
        }
        image
    }

    /// The ranges that anything changed, in order and merged.
    pub fn changed_ranges(&self) -> Vec<ByteRange> {
        let ranges = self.events.iter().filter_map(|event| match event {
            Event::Change { change, .. } if change.changes_contents() => Some(change.range()),
            _ => None,
        });
        let mut ranges: Vec<ByteRange> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start());
        let mut merged: Vec<ByteRange> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start() <= last.end() => {
                    *last = ByteRange::new(last.start(), last.end().max(range.end()));
                }
                _ => merged.push(range),
            }
        }
        merged
    }

    /// A walk through the positions, from 0.
    pub fn cursor(&self) -> LogCursor<'_> {
        LogCursor {
            log: self,
            position: 0,
            image: self.base.snapshot(),
            cache: VolatileCache::new(self.base.snapshot()),
            mark: None,
            news: true,
        }
    }

    /// States that a power cut at `position` may leave. For many positions, walk a
    /// [`cursor`](Self::cursor) or take [`crashes`](Self::crashes).
    ///
    /// # Panics
    /// When the log is shorter.
    pub fn crash_states(
        &self,
        position: usize,
        options: CrashOptions,
    ) -> impl Iterator<Item = CrashState> + use<> {
        let mut cursor = self.cursor();
        cursor.advance_to(position);
        let states: Vec<_> = cursor.crash_states(options).collect();
        states.into_iter()
    }

    /// States that a power cut may leave, at every position at which new states exist or more was
    /// promised (a mark), in order.
    pub fn crashes(&self, options: CrashOptions) -> Crashes<'_> {
        Crashes::new(self.cursor(), options)
    }
}

fn apply(event: &Event, image: &MemoryDevice) {
    if let Event::Change { change, .. } = event {
        let applied = change.apply(change.range(), image);
        applied.expect("a device without a limit has space");
    }
}

/// A place in a log and the state there.
pub struct LogCursor<'l> {
    log: &'l WriteLog,
    position: usize,
    image: MemoryDevice,
    cache: VolatileCache,
    mark: Option<Arc<str>>,
    news: bool,
}

impl<'l> LogCursor<'l> {
    /// Advances by one event, which is returned; `None` at the end.
    pub fn advance(&mut self) -> Option<&'l Event> {
        let event = self.log.events.get(self.position)?;
        apply(event, &self.image);
        self.news = self.cache.observe(self.position, event);
        if let Event::Mark(name) = event {
            self.mark = Some(name.clone());
            self.news = true;
        }
        self.position += 1;
        Some(event)
    }

    /// Advances to `position`.
    ///
    /// # Panics
    /// If it is before this one, or past the end.
    pub fn advance_to(&mut self, position: usize) {
        assert!(self.position <= position && position <= self.log.len());
        while self.position < position {
            self.advance();
        }
    }

    /// Events that have happened.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The last mark that was passed.
    pub fn mark(&self) -> Option<&Arc<str>> {
        self.mark.as_ref()
    }

    /// The contents here; see [`WriteLog::replay`].
    pub fn image(&self) -> MemoryDevice {
        self.image.snapshot()
    }

    /// The contents here without anything that a power cut could take.
    pub fn durable(&self) -> MemoryDevice {
        self.cache.durable().snapshot()
    }

    /// Changes that a power cut could take, in whole or in part.
    pub fn unflushed(&self) -> usize {
        self.cache.unflushed().len()
    }

    /// Whether crash states here may differ from those one event before.
    pub fn is_crash_point(&self) -> bool {
        self.news
    }

    /// States that a power cut here may leave: every possible state if they are at most
    /// [`CrashOptions::states_max`], else that number of them, by the seed; the first without, the
    /// second with all changes that may be lost.
    pub fn crash_states(
        &self,
        options: CrashOptions,
    ) -> impl Iterator<Item = CrashState> + use<'_, 'l> {
        let space = self.state_space(options);
        (0..space.count()).map(move |index| self.crash_state(&space, index))
    }

    pub(super) fn state_space(&self, options: CrashOptions) -> StateSpace {
        StateSpace::new(&self.cache, self.position, options)
    }

    pub(super) fn crash_state(&self, space: &StateSpace, index: u64) -> CrashState {
        space.state(&self.cache, index, self.mark.clone())
    }
}
