//! Durable and volatile contents of a disk with a volatile cache.
//!
//! Model: the durable contents, and the changes after them in their order, each with the parts of
//! it that are still at stake. Positions are those of events in a log, and stand for time.
//!
//! Invariants: a part that a later durable change overwrote is at stake no more, so applying any
//! selection of the parts, in order, to the durable contents is a state that a power cut may leave.

use std::collections::BTreeMap;
use std::mem;

use extant_space::ByteRange;
use smallvec::{SmallVec, smallvec};

use super::change::Change;
use super::log::Event;
use crate::{MemoryDevice, Persistence};

pub(super) struct VolatileCache {
    durable: MemoryDevice,
    unflushed: Vec<Unflushed>,
    /// Those submitted and not yet completed.
    batches: BTreeMap<u64, Batch>,
}

struct Batch {
    started: usize,
    flushes: bool,
    changes: usize,
}

/// A change that may get lost.
pub(super) struct Unflushed {
    pub(super) change: Change,
    /// Parts of the change that may still be lost, in order.
    pub(super) parts: SmallVec<[ByteRange; 1]>,
    batch: u64,
    persistence: Persistence,
    completed: Option<usize>,
}

impl VolatileCache {
    /// `durable` holds everything so far, and is without a limit on capacity.
    pub(super) fn new(durable: MemoryDevice) -> Self {
        assert_eq!(durable.options().capacity, None);
        Self {
            durable,
            unflushed: Vec::new(),
            batches: BTreeMap::new(),
        }
    }

    pub(super) fn durable(&self) -> &MemoryDevice {
        &self.durable
    }

    /// In the order in which they were done.
    pub(super) fn unflushed(&self) -> &[Unflushed] {
        &self.unflushed
    }

    /// Whether every batch has completed.
    pub(super) fn is_idle(&self) -> bool {
        self.batches.is_empty()
    }

    /// Advances by one event. True if the set of possible states after a power cut has changed.
    pub(super) fn observe(&mut self, position: usize, event: &Event) -> bool {
        match event {
            Event::Change {
                batch,
                change,
                persistence,
            } => {
                self.batch(*batch, position).changes += 1;
                self.unflushed.push(Unflushed {
                    change: change.clone(),
                    parts: smallvec![change.range()],
                    batch: *batch,
                    persistence: *persistence,
                    completed: None,
                });
                change.changes_contents()
            }
            Event::Flush { batch } => {
                self.batch(*batch, position).flushes = true;
                false
            }
            Event::Completed { batch } => self.complete(position, *batch),
            Event::Mark(_) => false,
        }
    }

    fn batch(&mut self, batch: u64, position: usize) -> &mut Batch {
        self.batches.entry(batch).or_insert(Batch {
            started: position,
            flushes: false,
            changes: 0,
        })
    }

    fn complete(&mut self, position: usize, number: u64) -> bool {
        let batch = self
            .batches
            .remove(&number)
            .expect("a batch starts before it completes");
        let mut settles = batch.flushes;
        let own = self.unflushed.iter_mut().rev();
        for change in own
            .filter(|change| change.batch == number)
            .take(batch.changes)
        {
            change.completed = Some(position);
            settles |= change.persistence == Persistence::Fua;
        }
        let flushed = |change: &Unflushed| {
            batch.flushes
                && change
                    .completed
                    .is_some_and(|completed| completed < batch.started)
        };
        let forced =
            |change: &Unflushed| change.batch == number && change.persistence == Persistence::Fua;
        settles && self.settle(|change| flushed(change) || forced(change))
    }

    /// Makes the changes selected by `is_durable` durable; true when that was anything.
    fn settle(&mut self, is_durable: impl Fn(&Unflushed) -> bool) -> bool {
        let mut settled = false;
        let mut left: Vec<Unflushed> = Vec::new();
        for change in mem::take(&mut self.unflushed) {
            if !is_durable(&change) {
                left.push(change);
                continue;
            }
            settled = true;
            for part in &change.parts {
                let applied = change.change.apply(*part, &self.durable);
                applied.expect("a device without a limit has space");
                if change.change.changes_contents() {
                    left.iter_mut().for_each(|earlier| earlier.give_up(*part));
                }
            }
        }
        left.retain(|change| !change.parts.is_empty());
        self.unflushed = left;
        settled
    }
}

impl Unflushed {
    /// `overwritten` no longer matters.
    fn give_up(&mut self, overwritten: ByteRange) {
        if !self
            .parts
            .iter()
            .any(|part| part.intersection(overwritten).is_some())
        {
            return;
        }
        let mut left = SmallVec::new();
        for part in &self.parts {
            let before = ByteRange::new(
                part.start(),
                part.end().min(overwritten.start().max(part.start())),
            );
            let after = ByteRange::new(
                part.start().max(overwritten.end().min(part.end())),
                part.end(),
            );
            left.extend([before, after].into_iter().filter(|rest| !rest.is_empty()));
        }
        self.parts = left;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn write(batch: u64, blocks: std::ops::Range<u64>, persistence: Persistence) -> Event {
        let length = ((blocks.end - blocks.start) * 512) as usize;
        let data: Arc<[u8]> = Arc::from(vec![batch as u8; length]);
        let offset = blocks.start * 512;
        Event::Change {
            batch,
            change: Change::Write { offset, data },
            persistence,
        }
    }

    fn cache_after(events: &[Event]) -> VolatileCache {
        let mut cache = VolatileCache::new(MemoryDevice::new(1 << 16));
        for (position, event) in events.iter().enumerate() {
            cache.observe(position, event);
        }
        cache
    }

    fn durable(cache: &VolatileCache, blocks: usize) -> Vec<u8> {
        let bytes = cache.durable().to_vec();
        bytes
            .chunks(512)
            .take(blocks)
            .map(|block| block[0])
            .collect()
    }

    #[test]
    fn flush_covers_only_writes_completed_before_its_submission() {
        use Event::{Completed, Flush};
        use Persistence::Cached;
        let cache = cache_after(&[
            write(1, 0..1, Cached),
            write(2, 1..2, Cached),
            Completed { batch: 1 },
            // Batch 2 is in flight, batch 3 writes and flushes at once.
            write(3, 2..3, Cached),
            Flush { batch: 3 },
            Completed { batch: 2 },
            Completed { batch: 3 },
        ]);
        assert_eq!(durable(&cache, 3), [1, 0, 0]);
        assert_eq!(cache.unflushed().len(), 2);
    }

    #[test]
    fn fua_write_in_flight_is_not_durable() {
        let event = write(1, 0..1, Persistence::Fua);
        assert_eq!(durable(&cache_after(std::slice::from_ref(&event)), 1), [0]);
        let cache = cache_after(&[event, Event::Completed { batch: 1 }]);
        assert_eq!(durable(&cache, 1), [1]);
    }

    #[test]
    fn fua_write_ends_the_stake_of_earlier_writes_below_it() {
        use Event::{Completed, Flush};
        let events = [
            write(1, 0..4, Persistence::Cached),
            Completed { batch: 1 },
            write(2, 1..2, Persistence::Fua),
            Completed { batch: 2 },
            Flush { batch: 3 },
            Completed { batch: 3 },
        ];
        let cache = cache_after(&events[..4]);
        let parts = cache.unflushed()[0].parts.to_vec();
        assert_eq!(parts, [ByteRange::new(0, 512), ByteRange::new(1024, 2048)]);
        assert_eq!(durable(&cache, 4), [0, 2, 0, 0]);
        let cache = cache_after(&events);
        assert_eq!(durable(&cache, 4), [1, 2, 1, 1]);
        assert!(cache.unflushed().is_empty());
    }
}
