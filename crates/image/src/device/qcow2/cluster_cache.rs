//! Clusters of metadata in memory: L2 tables and refcount blocks.
//!
//! Model: changed parts of a cluster are dirty. They stay cached until a commit has copied them
//! ([`take_dirty`]) and reports that the copy is written ([`settle`]). Until then the cluster is
//! not dropped, as the file may hold something older.
//!
//! The capacity bounds the clean clusters; the owner commits before there are too many dirty ones.
//!
//! [`take_dirty`]: ClusterCache::take_dirty
//! [`settle`]: ClusterCache::settle

use std::collections::BTreeSet;

use extant_space::Result;
use hashlink::LinkedHashMap;

/// Bytes to be written, and where.
pub(super) struct DirtyRange {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

pub(super) struct ClusterCache {
    cluster_bytes: u64,
    piece_bytes: u64,
    capacity: usize,
    /// Least recently used first.
    clusters: LinkedHashMap<u64, Cached>,
    /// Offsets of pieces.
    dirty: BTreeSet<u64>,
}

struct Cached {
    bytes: Box<[u8]>,
    /// Pieces that a commit has a copy of, not written yet.
    in_commit: u32,
}

impl ClusterCache {
    /// At least two clusters, however large they are.
    pub(super) fn new(cluster_bytes: u64, piece_bytes: u64, capacity_bytes: u64) -> Self {
        assert!(cluster_bytes.is_multiple_of(piece_bytes));
        Self {
            cluster_bytes,
            piece_bytes,
            capacity: (capacity_bytes / cluster_bytes).max(2) as usize,
            clusters: LinkedHashMap::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// The cluster at `offset`, which `load` reads when it is not here.
    pub(super) fn get(
        &mut self,
        offset: u64,
        load: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<&[u8]> {
        if !self.clusters.contains_key(&offset) {
            let mut bytes = vec![0; self.cluster_bytes as usize].into_boxed_slice();
            load(&mut bytes)?;
            self.insert(offset, bytes);
        }
        let cached = self.clusters.to_back(&offset).expect("just seen");
        Ok(&cached.bytes)
    }

    /// Adds a clean cluster: its content is that of the file.
    pub(super) fn insert(&mut self, offset: u64, bytes: Box<[u8]>) {
        self.make_room();
        let in_commit = 0;
        self.clusters.insert(offset, Cached { bytes, in_commit });
    }

    /// Changes bytes of a cluster that is here, within one piece.
    ///
    /// # Panics
    /// When the cluster is not here.
    pub(super) fn change(&mut self, offset: u64, at: usize, change: impl FnOnce(&mut [u8])) {
        let cached = self.clusters.get_mut(&offset).expect("loaded before");
        change(&mut cached.bytes);
        let piece = offset + (at as u64 & !(self.piece_bytes - 1));
        self.dirty.insert(piece);
    }

    /// Forgets a cluster that nothing refers to any more.
    pub(super) fn forget(&mut self, offset: u64) {
        if self
            .clusters
            .get(&offset)
            .is_some_and(|cached| cached.in_commit == 0)
        {
            self.clusters.remove(&offset);
            for piece in self.dirty_of(offset) {
                self.dirty.remove(&piece);
            }
        }
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty.len() as u64 * self.piece_bytes
    }

    /// Whether the owner must commit before more becomes dirty.
    pub(super) fn is_too_dirty(&self) -> bool {
        self.dirty_bytes() > self.capacity as u64 * self.cluster_bytes / 2
    }

    /// A copy of all that is dirty, neighbours joined; clean from now on.
    pub(super) fn take_dirty(&mut self) -> Vec<DirtyRange> {
        let mut pieces: Vec<DirtyRange> = Vec::new();
        for offset in std::mem::take(&mut self.dirty) {
            let cluster = offset & !(self.cluster_bytes - 1);
            let cached = self.clusters.get_mut(&cluster).expect("dirty stays");
            cached.in_commit += 1;
            let start = (offset - cluster) as usize;
            let bytes = &cached.bytes[start..start + self.piece_bytes as usize];
            match pieces.last_mut() {
                // Within a cluster, so that `settle` matches the counted parts.
                Some(last)
                    if last.offset + last.bytes.len() as u64 == offset && offset != cluster =>
                {
                    last.bytes.extend_from_slice(bytes);
                }
                _ => pieces.push(DirtyRange {
                    offset,
                    bytes: bytes.to_vec(),
                }),
            }
        }
        pieces
    }

    /// Marks taken pieces as written, or as dirty again.
    pub(super) fn settle(&mut self, pieces: &[DirtyRange], is_written: bool) {
        for piece in pieces {
            let cluster = piece.offset & !(self.cluster_bytes - 1);
            let cached = self.clusters.get_mut(&cluster).expect("in a commit");
            let count = piece.bytes.len() as u64 / self.piece_bytes;
            cached.in_commit -= count as u32;
            if !is_written {
                let again = (0..count).map(|index| piece.offset + index * self.piece_bytes);
                self.dirty.extend(again);
            }
        }
    }

    fn dirty_of(&self, offset: u64) -> Vec<u64> {
        let range = offset..offset + self.cluster_bytes;
        self.dirty.range(range).copied().collect()
    }

    fn make_room(&mut self) {
        if self.clusters.len() < self.capacity {
            return;
        }
        let dirty = &self.dirty;
        let is_clean = |(offset, cached): &(&u64, &Cached)| {
            let range = **offset..**offset + self.cluster_bytes;
            cached.in_commit == 0 && dirty.range(range).next().is_none()
        };
        let clean = self.clusters.iter().find(is_clean);
        if let Some(offset) = clean.map(|(offset, _)| *offset) {
            self.clusters.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> ClusterCache {
        ClusterCache::new(4096, 512, 8192)
    }

    fn load(cache: &mut ClusterCache, offset: u64) -> bool {
        let mut is_read = false;
        let read = |_: &mut [u8]| {
            is_read = true;
            Ok(())
        };
        cache.get(offset, read).unwrap();
        is_read
    }

    #[test]
    fn least_recently_used_clean_cluster_is_evicted_first() {
        let mut cache = cache();
        assert!(load(&mut cache, 0) && load(&mut cache, 4096));
        assert!(!load(&mut cache, 0));
        load(&mut cache, 8192);
        assert!(!load(&mut cache, 0) && load(&mut cache, 4096));
    }

    #[test]
    fn dirty_cluster_stays_until_its_commit_is_settled() {
        let mut cache = cache();
        load(&mut cache, 0);
        cache.change(0, 600, |bytes| bytes[600] = 7);
        cache.change(0, 512, |bytes| bytes[512] = 8);
        cache.change(0, 1024, |bytes| bytes[1024] = 9);
        let taken = cache.take_dirty();
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].offset, taken[0].bytes.len()), (512, 1024));
        for offset in [4096, 8192, 12_288] {
            load(&mut cache, offset);
        }
        assert!(!load(&mut cache, 0));
        cache.settle(&taken, false);
        assert_eq!(cache.dirty_bytes(), 1024);
        let taken = cache.take_dirty();
        cache.settle(&taken, true);
        assert_eq!(cache.dirty_bytes(), 0);
        for offset in [4096, 8192, 12_288] {
            load(&mut cache, offset);
        }
        assert!(load(&mut cache, 0));
    }
}
