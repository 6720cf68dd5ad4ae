//! The metadata of an open image, behind one lock.
//!
//! Model: memory is ahead of the file. An entry set here is visible to the next request at once and
//! reaches the file with the next commit (`commit.rs`), whose order is safe against power cuts. A
//! cluster that an entry no longer refers to is *released*: it keeps its refcount until the change
//! of the entry is durable, and until no request that began earlier can still read or write there
//! (`epoch`).
//!
//! The lock is held for lookups and changes, and for reading a table that is not in memory; never
//! for data of the guest.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};

use super::cluster_cache::{ClusterCache, DirtyRange};
use super::file::MetadataFile;
use super::l1_table::L1Table;
use super::refcounts::Refcounts;
use super::space::{Run, Space, Wanted};
use crate::format::{CompressedPlace, EntryRules, Geometry, Header, L1Entry, L2Entry, Mapping};

/// Released clusters that are kept in memory before a commit.
const RELEASED_MAX: usize = 1 << 16;

/// Held by requests that may access clusters that were mapped when they began.
#[derive(Clone)]
pub(super) struct Epoch(Arc<()>);

/// Clusters whose last reference is durably removed; one entry per removed reference.
pub(super) struct Retired {
    epoch: Epoch,
    pub clusters: Vec<u64>,
}

impl Retired {
    /// No request can access them any more.
    pub(super) fn is_quiet(&self) -> bool {
        Arc::strong_count(&self.epoch.0) == 1
    }
}

pub(super) struct Metadata {
    pub(super) file: MetadataFile,
    geometry: Geometry,
    rules: EntryRules,
    l1: L1Table,
    l2: ClusterCache,
    /// Only of images that are written.
    changes: Option<Changes>,
    pub(super) epoch: Epoch,
    pub(super) retired: VecDeque<Retired>,
    /// Guest clusters whose contents a writer is preparing.
    pub(super) busy: HashSet<u64>,
    /// Regions in which no guest cluster may be, in order: the metadata of the file when it was
    /// opened.
    reserved: Vec<(u64, u64)>,
    /// Offsets and sizes of the metadata that no change moves.
    fixed: [(u64, u64); 3],
    /// A commit is under way.
    pub(super) is_committing: bool,
    /// A panic interrupted a change: the metadata in memory may be half changed, and is neither
    /// used nor written any more.
    is_broken: bool,
}

struct Changes {
    refcounts: Refcounts,
    space: Space,
    /// Clusters that are mentioned once less than their refcounts say.
    released: Vec<u64>,
    /// Data was written that has to be durable before entries are.
    is_ordered: bool,
    /// Why nothing is changed any more.
    fault: Option<String>,
}

/// Copies of the tables that a commit writes.
pub(super) struct CommitBatch {
    pub refcounts: Vec<DirtyRange>,
    pub l2: Vec<DirtyRange>,
    pub l1: Vec<DirtyRange>,
    pub is_ordered: bool,
    pub released: Vec<u64>,
    epoch: Epoch,
}

impl Metadata {
    pub(super) fn load(
        file: MetadataFile,
        header: &Header,
        writes: bool,
        cache_bytes: u64,
    ) -> Result<Self> {
        let geometry = header.geometry;
        let block = u64::from(file.0.geometry().logical_block);
        // A page, where clusters are not smaller: entries next to each other are often changed
        // together.
        let piece_bytes = geometry.cluster_bytes().min(4096.max(block));
        let l1 = L1Table::load(&file, header, piece_bytes)?;
        let mut reserved = Vec::new();
        let changes = if writes {
            let refcounts = Refcounts::load(&file, header, piece_bytes)?;
            reserved = reserved_places(header, &l1, &refcounts);
            let disk_clusters = header.virtual_bytes.div_ceil(geometry.cluster_bytes());
            Some(Changes {
                refcounts,
                space: Space::new(geometry, file.0.geometry().size, disk_clusters),
                released: Vec::new(),
                is_ordered: false,
                fault: None,
            })
        } else {
            None
        };
        Ok(Self {
            file,
            fixed: fixed_places(header),
            geometry,
            rules: header.entry_rules(),
            l1,
            l2: ClusterCache::new(geometry.cluster_bytes(), piece_bytes, cache_bytes),
            changes,
            epoch: Epoch(Arc::new(())),
            retired: VecDeque::new(),
            busy: HashSet::new(),
            reserved,
            is_committing: false,
            is_broken: false,
        })
    }

    fn split(&self, cluster: u64) -> (u64, usize) {
        let entries = self.geometry.l2_entries();
        (cluster / entries, (cluster % entries) as usize)
    }

    /// The mapping of a guest cluster.
    pub(super) fn mapping(&mut self, cluster: u64) -> Result<(Mapping, L2Entry)> {
        self.check_usable()?;
        let (index, at) = self.split(cluster);
        let entry = match self.table(index)? {
            None => L2Entry::UNALLOCATED,
            Some((_, bytes)) => entry_at(bytes, at),
        };
        let guest_offset = cluster << self.geometry.cluster_bits();
        let mapping = entry.mapping(self.geometry, self.rules, guest_offset)?;
        Ok((mapping, entry))
    }

    /// Whether an L2 table exists for a guest cluster; without one all of its neighbours are
    /// unallocated.
    pub(super) fn has_table(&self, cluster: u64) -> bool {
        let (index, _) = self.split(cluster);
        self.l1.get(index).offset() != 0
    }

    /// Sets the L2 entry of a guest cluster.
    pub(super) fn set(&mut self, cluster: u64, entry: L2Entry) -> Result<()> {
        self.check_fault()?;
        let (index, at) = self.split(cluster);
        let offset = self.own_table(index)?;
        self.l2.change(offset, at * 8, |bytes| {
            bytes[at * 8..][..8].copy_from_slice(&entry.raw().to_be_bytes());
        });
        Ok(())
    }

    /// Up to `clusters` consecutive clusters that read as zeros.
    pub(super) fn allocate(&mut self, clusters: u64, wanted: Wanted) -> Result<Run> {
        self.check_fault()?;
        let Self {
            file,
            l1,
            changes,
            geometry,
            fixed,
            ..
        } = self;
        let changes = changes.as_mut().expect("opened for writing");
        let Changes {
            refcounts,
            space,
            released,
            ..
        } = changes;
        let cluster_bytes = geometry.cluster_bytes();
        let places = |refcounts: &Refcounts| {
            let tables = l1.places().map(|offset| (offset, cluster_bytes));
            let moving = tables.chain(refcounts.places());
            fixed.iter().copied().chain(moving).collect()
        };
        let run = space.take(file, refcounts, &places, clusters, wanted);
        for old in space.old_tables.drain(..) {
            released.extend(old.first..old.first + old.clusters);
        }
        run
    }

    /// Takes note that a cluster of the file is mentioned once less.
    pub(super) fn release(&mut self, offset: u64) {
        let cluster = offset >> self.geometry.cluster_bits();
        self.changes().released.push(cluster);
    }

    /// As [`release`](Self::release), for the clusters of compressed data.
    pub(super) fn release_compressed(&mut self, place: CompressedPlace) {
        let bits = self.geometry.cluster_bits();
        let last = (place.offset + place.length_bytes - 1) >> bits;
        self.changes()
            .released
            .extend((place.offset >> bits)..=last);
    }

    /// Entries set from now on count on data that was written before.
    pub(super) fn order_data(&mut self) {
        self.changes().is_ordered = true;
    }

    fn changes(&mut self) -> &mut Changes {
        self.changes.as_mut().expect("opened for writing")
    }

    /// Takes note that a panic interrupted a change.
    pub(super) fn note_panic(&mut self) {
        self.is_broken = true;
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        if self.is_broken {
            Err(Error::new(ErrorKind::Io)
                .detail("a panic interrupted a change of the qcow2 metadata")
                .advice("open the image again; flushed data is intact"))
        } else {
            Ok(())
        }
    }

    fn check_fault(&self) -> Result<()> {
        self.check_usable()?;
        match self
            .changes
            .as_ref()
            .and_then(|changes| changes.fault.as_ref())
        {
            None => Ok(()),
            Some(fault) => Err(Error::new(ErrorKind::Corrupt)
                .detail(fault.clone())
                .advice("close the image, check and repair it")),
        }
    }

    /// The L2 table of an L1 entry.
    fn table(&mut self, index: u64) -> Result<Option<(u64, &[u8])>> {
        let Self {
            l1,
            l2,
            file,
            geometry,
            reserved,
            rules,
            ..
        } = self;
        let entry = l1.get(index);
        if entry.offset() == 0 {
            return Ok(None);
        }
        let file_bytes = file.0.geometry().size;
        let offset = entry
            .table(*geometry, index, file_bytes)?
            .expect("has an offset");
        let rules = *rules;
        let bytes = l2.get(offset, |bytes| {
            file.read(offset, bytes)?;
            if rules.has_data_file {
                Ok(())
            } else {
                judge(bytes, *geometry, rules, index, file_bytes, reserved)
            }
        })?;
        Ok(Some((offset, bytes)))
    }

    /// Offset of the L2 table of an L1 entry, in memory, with one reference. A missing table is
    /// made, and a table shared with a snapshot is copied.
    fn own_table(&mut self, index: u64) -> Result<u64> {
        let entry = self.l1.get(index);
        let old = self
            .table(index)?
            .map(|(offset, bytes)| (offset, Box::from(bytes)));
        if let (Some((offset, _)), true) = (&old, entry.is_copied()) {
            return Ok(*offset);
        }
        let run = self.allocate(1, Wanted::Piece)?;
        let offset = run.first << self.geometry.cluster_bits();
        let (old, bytes) = match old {
            Some((old, bytes)) => (Some(old), bytes),
            None => (
                None,
                vec![0; self.geometry.cluster_bytes() as usize].into_boxed_slice(),
            ),
        };
        // Nothing refers to it yet. Written now, so that `NoSpace` fails the request that needs the
        // space and not a flush.
        if let Err(error) = self.file.write(offset, &bytes) {
            self.release(offset);
            return Err(error);
        }
        self.l2.insert(offset, bytes);
        self.l1.set(index, L1Entry::exclusive(offset));
        if let Some(old) = old {
            self.l2.forget(old);
            self.release(old);
        }
        Ok(offset)
    }

    /// More was changed than should be kept in memory.
    pub(super) fn is_too_dirty(&self) -> bool {
        let Some(changes) = &self.changes else {
            return false;
        };
        self.l2.is_too_dirty()
            || changes.refcounts.blocks.is_too_dirty()
            || changes.released.len() > RELEASED_MAX
    }

    /// Nothing waits for a commit, and none is under way.
    pub(super) fn is_clean(&self) -> bool {
        let Some(changes) = &self.changes else {
            return true;
        };
        !self.is_broken
            && self.l2.dirty_bytes() == 0
            && !self.l1.is_dirty()
            && changes.refcounts.blocks.dirty_bytes() == 0
            && changes.released.is_empty()
            && !self.is_committing
    }

    /// A copy of all that waits for a commit.
    pub(super) fn begin_round(&mut self) -> CommitBatch {
        let epoch = std::mem::replace(&mut self.epoch, Epoch(Arc::new(())));
        let (l2, l1) = (self.l2.take_dirty(), self.l1.take_dirty());
        let changes = self.changes();
        CommitBatch {
            refcounts: changes.refcounts.blocks.take_dirty(),
            l2,
            l1,
            is_ordered: std::mem::take(&mut changes.is_ordered),
            released: std::mem::take(&mut changes.released),
            epoch,
        }
    }

    /// All of a round is durable; or is not, and waits again.
    pub(super) fn end_round(&mut self, round: CommitBatch, is_durable: bool) {
        let CommitBatch {
            refcounts,
            l2,
            l1,
            is_ordered,
            released,
            epoch,
        } = round;
        self.l2.settle(&l2, is_durable);
        if !is_durable {
            self.l1.put_back(&l1);
        }
        let changes = self.changes();
        changes.refcounts.blocks.settle(&refcounts, is_durable);
        if !is_durable {
            changes.is_ordered |= is_ordered;
            changes.released.extend_from_slice(&released);
        }
        // A holder of this epoch may access what later ones release as well: the queue is emptied
        // from its front.
        let clusters = if is_durable { released } else { Vec::new() };
        self.retired.push_back(Retired { epoch, clusters });
    }

    /// Processes released clusters: `times` references of each are removed. Returns the clusters
    /// without references, which keep their counts until [`free`](Self::free).
    pub(super) fn give_back(&mut self, mentions: &[(u64, u64)]) -> Result<Vec<u64>> {
        self.check_usable()?;
        let file = self.file.clone();
        let changes = self.changes();
        let mut last = Vec::new();
        for (cluster, times) in mentions {
            let count = changes.refcounts.get(&file, *cluster)?;
            match count.checked_sub(*times) {
                Some(0) => last.push(*cluster),
                Some(left) => changes.refcounts.set(&file, *cluster, left)?,
                None => {
                    let offset = cluster << self.geometry.cluster_bits();
                    let fault = format!(
                        "qcow2 cluster at {offset:#x} has a refcount of {count} and was used {times} times"
                    );
                    return Err(Error::new(ErrorKind::Corrupt).detail(self.note_fault(fault)));
                }
            }
        }
        Ok(last)
    }

    /// Frees clusters; those that read as zeros are handed out again.
    pub(super) fn free(&mut self, run: Run, is_zero: bool) -> Result<()> {
        let file = self.file.clone();
        let bits = self.geometry.cluster_bits();
        unreserve(
            &mut self.reserved,
            run.first << bits,
            (run.first + run.clusters) << bits,
        );
        let changes = self.changes();
        for cluster in run.first..run.first + run.clusters {
            changes.refcounts.set(&file, cluster, 0)?;
        }
        if is_zero {
            changes.space.put(run);
        }
        Ok(())
    }

    /// The length to truncate the file to, if it was preallocated beyond its last used cluster.
    pub(super) fn spare_from(&mut self) -> Option<u64> {
        let is_clean = self.is_clean();
        let space = &mut self.changes.as_mut()?.space;
        if is_clean {
            space.trim();
        }
        space.has_spare().then(|| space.used_end_bytes())
    }

    fn note_fault(&mut self, fault: String) -> String {
        self.changes().fault.get_or_insert(fault).clone()
    }
}

fn entry_at(bytes: &[u8], at: usize) -> L2Entry {
    let (entries, _) = bytes.as_chunks();
    L2Entry(u64::from_be_bytes(entries[at]))
}

/// Refuses a table with a cluster outside the file or in metadata: a guest that wrote there would
/// change the image's structure.
fn judge(
    bytes: &[u8],
    geometry: Geometry,
    rules: EntryRules,
    index: u64,
    file_bytes: u64,
    reserved: &[(u64, u64)],
) -> Result<()> {
    let (entries, _) = bytes.as_chunks();
    for (at, raw) in entries.iter().enumerate() {
        if *raw == [0; 8] {
            continue;
        }
        let entry = L2Entry(u64::from_be_bytes(*raw));
        let guest_offset = (index * geometry.l2_entries() + at as u64) << geometry.cluster_bits();
        let (start, end) = match entry.mapping(geometry, rules, guest_offset)? {
            Mapping::Data(offset) | Mapping::Zero(Some(offset)) => (offset, offset + 1),
            Mapping::Compressed(place) => (place.offset, place.offset + place.length_bytes),
            Mapping::Unallocated | Mapping::Zero(None) => continue,
        };
        let before = reserved.partition_point(|(from, _)| *from < end);
        let is_reserved = before > 0 && reserved[before - 1].1 > start;
        if start >= file_bytes || is_reserved {
            let where_ = if is_reserved {
                "in metadata of the image"
            } else {
                "past the end of the file"
            };
            return Err(Error::new(ErrorKind::Corrupt)
                .detail(format!(
                    "qcow2 L2 entry of guest offset {guest_offset:#x} points at {start:#x}, {where_}"
                ))
                .advice("check the image and repair it"));
        }
    }
    Ok(())
}

/// Header, L1 table, and the least size of the snapshot table.
fn fixed_places(header: &Header) -> [(u64, u64); 3] {
    const SNAPSHOT_BYTES_MIN: u64 = 40;
    let (l1, snapshots) = (header.l1_range(), header.snapshots);
    let snapshots_bytes = u64::from(snapshots.count) * SNAPSHOT_BYTES_MIN;
    [
        (0, header.geometry.cluster_bytes()),
        (l1.start(), l1.len()),
        (snapshots.offset, snapshots_bytes),
    ]
}

/// Header, tables and refcounts, in order of their places.
fn reserved_places(header: &Header, l1: &L1Table, refcounts: &Refcounts) -> Vec<(u64, u64)> {
    let cluster_bytes = header.geometry.cluster_bytes();
    let l1_range = header.l1_range();
    let mut places = vec![(0, cluster_bytes), (l1_range.start(), l1_range.end())];
    places.extend(l1.places().map(|offset| (offset, offset + cluster_bytes)));
    let counts = refcounts.places();
    places.extend(counts.map(|(offset, bytes)| (offset, offset.saturating_add(bytes))));
    places.sort_unstable();
    // A region inside another one would hide it from the search.
    places.dedup_by(|next, kept| {
        let joins = next.0 < kept.1;
        if joins {
            kept.1 = kept.1.max(next.1);
        }
        joins
    });
    places
}

/// Takes a range that metadata has left out of `places`.
fn unreserve(places: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    let first = places.partition_point(|(_, to)| *to <= start);
    let last = places.partition_point(|(from, _)| *from < end);
    if first >= last {
        return;
    }
    let left = (places[first].0, start.max(places[first].0));
    let right = (end.min(places[last - 1].1), places[last - 1].1);
    let rest = [left, right].into_iter().filter(|(from, to)| from < to);
    places.splice(first..last, rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_taken_out_of_the_middle_and_across_others() {
        let mut places = vec![(0, 10), (20, 30), (40, 50)];
        unreserve(&mut places, 10, 20);
        assert_eq!(places, [(0, 10), (20, 30), (40, 50)]);
        unreserve(&mut places, 3, 5);
        assert_eq!(places, [(0, 3), (5, 10), (20, 30), (40, 50)]);
        unreserve(&mut places, 8, 45);
        assert_eq!(places, [(0, 3), (5, 8), (45, 50)]);
    }
}
