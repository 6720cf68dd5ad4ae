//! Caches of shared objects that are not evicted while they are in use.
//!
//! The inner cache searches all entries in use for one that it may evict, on each insertion
//! beyond its capacity. So it gets room for further entries, and is trimmed to the wanted capacity
//! after every eighth of its length: an insertion costs a constant number of steps, however many
//! entries are in use.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};

/// A trim follows after `entries / TRIM_FRACTION` insertions.
const TRIM_FRACTION: u64 = 8;

type Entries<K, V> = Cache<K, Arc<V>, UnitWeighter, DefaultHashBuilder, KeepReferenced>;

/// A cache that evicts unused entries only: there are never two objects of one key.
pub(crate) struct PinnedCache<K, V> {
    entries: Entries<K, V>,
    capacity: u64,
    /// Insertions until the next trim; below 1 while one runs.
    until_trim: AtomicI64,
}

/// A table that tries to keep `capacity` entries.
pub(crate) fn held_cache<K: Clone + Eq + Hash, V>(capacity: usize) -> PinnedCache<K, V> {
    let entries = Cache::with(
        capacity,
        capacity as u64,
        UnitWeighter,
        DefaultHashBuilder::default(),
        KeepReferenced,
    );
    let cache = PinnedCache {
        entries,
        capacity: capacity as u64,
        until_trim: AtomicI64::new(0),
    };
    cache.make_room();
    cache
}

impl<K: Clone + Eq + Hash, V> PinnedCache<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.entries.get(key)
    }

    /// As [`get`](Self::get), without counting as a use.
    pub(crate) fn peek(&self, key: &K) -> Option<Arc<V>> {
        self.entries.peek(key)
    }

    pub(crate) fn insert(&self, key: K, value: Arc<V>) {
        self.entries.insert(key, value);
        self.inserted();
    }

    pub(crate) fn get_or_insert_with<E>(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<Arc<V>, E>,
    ) -> Result<Arc<V>, E> {
        let mut is_new = false;
        let value = self.entries.get_or_insert_with(key, || {
            is_new = true;
            make()
        })?;
        if is_new {
            self.inserted();
        }
        Ok(value)
    }

    pub(crate) fn remove(&self, key: &K) {
        self.entries.remove(key);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, Arc<V>)> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries that it keeps, apart from those in use.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn inserted(&self) {
        // One caller trims.
        if self.until_trim.fetch_sub(1, Ordering::Relaxed) == 1 {
            let share = self.capacity / TRIM_FRACTION;
            self.entries.set_capacity(self.capacity - share);
            self.make_room();
        }
    }

    /// Permits the insertions until the next trim.
    fn make_room(&self) {
        let entries = self.capacity.max(self.entries.len() as u64);
        self.entries.set_capacity(entries * 2);
        let until_trim = (entries / TRIM_FRACTION).max(1);
        self.until_trim.store(until_trim as i64, Ordering::Relaxed);
    }
}

/// Keeps entries that are in use.
#[derive(Clone)]
struct KeepReferenced;

impl<K, V> Lifecycle<K, Arc<V>> for KeepReferenced {
    type RequestState = Option<Arc<V>>;

    fn is_pinned(&self, _key: &K, value: &Arc<V>) -> bool {
        // Asked under the lock under which others take theirs.
        Arc::strong_count(value) > 1
    }

    fn begin_request(&self) -> Self::RequestState {
        None
    }

    fn on_evict(&self, last: &mut Self::RequestState, _key: K, value: Arc<V>) {
        // Dropped after the table's lock. A trim evicts many, and drops all but the last under that
        // lock: a drop must not call the cache.
        *last = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_entries_stay_while_others_are_dropped_and_go_later() {
        const HELD: u32 = 500;
        let cache = held_cache::<u32, u32>(8);
        let held: Vec<_> = (0..HELD).map(Arc::new).collect();
        let add = |keys: std::ops::Range<u32>| {
            keys.for_each(|key| cache.insert(key, Arc::new(key)));
        };
        for (key, value) in held.iter().enumerate() {
            cache.insert(key as u32, Arc::clone(value));
        }
        add(HELD..10_000);
        for (key, value) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(&cache.peek(&(key as u32)).unwrap(), value));
        }
        assert!(cache.len() < HELD as usize + 100);
        drop(held);
        add(10_000..20_000);
        assert!(cache.len() < 100, "{} are left", cache.len());
    }
}
