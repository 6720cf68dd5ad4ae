//! Caches of shared objects that are not evicted while they are in use.

use std::hash::Hash;
use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};

/// A cache that evicts unused entries only: there are never two objects of one key.
pub(crate) type PinnedCache<K, V> =
    Cache<K, Arc<V>, UnitWeighter, DefaultHashBuilder, KeepReferenced>;

/// A table that tries to keep `capacity` entries.
pub(crate) fn held_cache<K: Eq + Hash, V>(capacity: usize) -> PinnedCache<K, V> {
    Cache::with(
        capacity,
        capacity as u64,
        UnitWeighter,
        DefaultHashBuilder::default(),
        KeepReferenced,
    )
}

/// Keeps entries that are in use.
#[derive(Clone)]
pub(crate) struct KeepReferenced;

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
        // Dropped after the table's lock.
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
