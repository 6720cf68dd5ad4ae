//! Writes to clusters that must be built: from the backing file, from compressed data, from data
//! shared with a snapshot, or from zeros in space with other contents.
//!
//! The new cluster is written as a whole before anything refers to it, and its entry waits until
//! the data is durable. The thread that builds a cluster marks it busy, and alone changes its
//! mapping: discards and assigns wait, and writes are rewrites, which wait as well. A thread that
//! waits for a cluster holds no other.

use std::ops::Range;

use extant_blockdev::{Operation, Persistence, Zeroing};
use extant_space::{ByteRange, Result};
use smallvec::smallvec;

use super::Qcow2;
use super::file::read_or_zero;
use super::mapped::Source;
use super::metadata::Metadata;
use super::plan::{DeviceRequests, WriteCursor};
use super::space::Wanted;
use crate::format::{L2Entry, Mapping};

/// Clusters of this many bytes are built together.
const REWRITE_BYTES_MAX: u64 = 2 << 20;

/// Clusters that one writer makes.
struct ClaimedClusters<'q> {
    image: &'q Qcow2,
    clusters: Range<u64>,
}

impl Drop for ClaimedClusters<'_> {
    fn drop(&mut self) {
        let mut metadata = self.image.metadata();
        for cluster in self.clusters.clone() {
            metadata.busy.remove(&cluster);
        }
        drop(metadata);
        self.image.idle.notify_all();
    }
}

/// Destination of a guest cluster that is being rewritten.
struct NewCluster {
    cluster: u64,
    offset: u64,
    /// Its present mapping; `None` if it is kept.
    old: Option<Mapping>,
    /// The source of its other bytes.
    rest: Rest,
}

enum Rest {
    /// As they are there.
    Kept,
    /// Zeros, and there is something else.
    Zeroed,
    Copied(Source),
}

impl Qcow2 {
    /// Writes `from` to `range`.
    pub(super) fn rewrite(&self, range: ByteRange, from: &[&[u8]]) -> Result<()> {
        let mut cursor = WriteCursor::new(from);
        for piece in range.chunks(REWRITE_BYTES_MAX.max(self.geometry.cluster_bytes())) {
            self.rewrite_piece(piece, &cursor.take(piece.len()))?;
        }
        Ok(())
    }

    fn rewrite_piece(&self, range: ByteRange, from: &[&[u8]]) -> Result<()> {
        let _occupied = self.occupy(self.clusters_of(range));
        let mut metadata = self.metadata();
        let epoch = metadata.epoch.clone();
        let mut places = Vec::new();
        let prepared = self.clusters_of(range).try_for_each(|cluster| {
            places.push(self.prepare(&mut metadata, cluster)?);
            Ok(())
        });
        drop(metadata);
        let mut result = prepared.and_then(|()| self.fill(range, from, &places));
        let mut metadata = self.metadata();
        for place in places {
            if result.is_ok() {
                result = self.install(&mut metadata, &place);
            }
            if result.is_err() && place.is_new() && self.data.is_none() {
                metadata.release(place.offset);
            }
        }
        drop(epoch);
        result
    }

    fn occupy(&self, clusters: Range<u64>) -> ClaimedClusters<'_> {
        let mut metadata = self.wait_until_idle(&clusters);
        metadata.busy.extend(clusters.clone());
        let image = self;
        ClaimedClusters { image, clusters }
    }

    fn prepare(&self, metadata: &mut Metadata, cluster: u64) -> Result<NewCluster> {
        let source = self.source(metadata, cluster)?;
        let (mapping, entry) = metadata.mapping(cluster)?;
        if self.data.is_some() {
            let is_there = matches!(mapping, Mapping::Data(_));
            return Ok(NewCluster {
                cluster,
                offset: cluster << self.geometry.cluster_bits(),
                old: (!is_there).then_some(mapping),
                rest: match source {
                    Source::Host(_) => Rest::Kept,
                    Source::Backing => Rest::Copied(source),
                    _ => Rest::Zeroed,
                },
            });
        }
        let (offset, rest) = match mapping {
            Mapping::Data(offset) if entry.is_copied() => (Some(offset), Rest::Kept),
            Mapping::Zero(Some(offset)) if entry.is_copied() => (Some(offset), Rest::Zeroed),
            // A new cluster is zeros.
            Mapping::Zero(_) => (None, Rest::Kept),
            Mapping::Unallocated if source == Source::Zero => (None, Rest::Kept),
            _ => (None, Rest::Copied(source)),
        };
        let is_in_place = offset.is_some() && matches!(mapping, Mapping::Data(_));
        let offset = match offset {
            Some(offset) => offset,
            None => {
                let run = metadata.allocate(1, Wanted::For(cluster))?;
                run.first << self.geometry.cluster_bits()
            }
        };
        let old = (!is_in_place).then_some(mapping);
        Ok(NewCluster {
            cluster,
            offset,
            old,
            rest,
        })
    }

    /// Writes the range, and the other bytes of its clusters.
    fn fill(&self, range: ByteRange, from: &[&[u8]], places: &[NewCluster]) -> Result<()> {
        let mut rests = Vec::new();
        for place in places {
            let start = place.cluster << self.geometry.cluster_bits();
            let end = (start + self.geometry.cluster_bytes()).min(match self.data {
                // The file of the data ends with the disk.
                Some(_) => self.disk_geometry.size,
                None => u64::MAX,
            });
            let cluster = ByteRange::new(start, end);
            let inner = range.intersection(cluster).expect("a cluster of the range");
            let head = ByteRange::new(cluster.start(), inner.start());
            let tail = ByteRange::new(inner.end(), cluster.end());
            rests.push((
                place,
                inner,
                [self.rest(place, head)?, self.rest(place, tail)?],
            ));
        }
        let mut cursor = WriteCursor::new(from);
        let mut parts = DeviceRequests::default();
        for (place, inner, [head, tail]) in &rests {
            let host = |guest: u64| place.offset + self.within(guest);
            let start = host(inner.start());
            add(&mut parts, place.offset, head);
            let data = cursor.take(inner.len());
            parts.write(0, start, inner.len(), data, Persistence::Cached);
            add(&mut parts, start + inner.len(), tail);
        }
        let mut result = Ok(());
        parts.run(self.data_device(), &mut |_, error| {
            if result.is_ok() {
                result = Err(error);
            }
        });
        result
    }

    /// The contents of a part of a cluster outside the request.
    fn rest(&self, place: &NewCluster, part: ByteRange) -> Result<Fill> {
        if part.is_empty() {
            return Ok(Fill::Nothing);
        }
        let source = match place.rest {
            Rest::Kept => return Ok(Fill::Nothing),
            Rest::Zeroed => return Ok(Fill::Zeroes(part.len())),
            Rest::Copied(source) => source,
        };
        let mut bytes = vec![0; part.len() as usize];
        let within = self.within(part.start());
        match source {
            Source::Host(offset) | Source::Shared(offset) => {
                read_or_zero(self.data_device(), offset + within, &mut bytes)?;
            }
            Source::Backing => {
                // The guest cannot read beyond the end of the disk.
                self.read_backing(part.start(), smallvec![&mut bytes[..]])?;
            }
            Source::Compressed(compressed) => {
                let cluster = self.expand(compressed)?;
                bytes.copy_from_slice(&cluster[within as usize..][..part.len() as usize]);
            }
            Source::Zero | Source::AllocatedZero(_) => {}
        }
        Ok(Fill::Bytes(bytes))
    }

    fn install(&self, metadata: &mut Metadata, place: &NewCluster) -> Result<()> {
        let Some(old) = place.old else {
            return Ok(());
        };
        let (present, _) = metadata.mapping(place.cluster)?;
        assert_eq!(present, old, "a busy cluster has one writer");
        metadata.set(place.cluster, L2Entry::exclusive(place.offset))?;
        metadata.order_data();
        if self.data.is_none() {
            match old {
                Mapping::Data(offset) | Mapping::Zero(Some(offset)) if offset != place.offset => {
                    metadata.release(offset);
                }
                Mapping::Compressed(compressed) => metadata.release_compressed(compressed),
                _ => {}
            }
        }
        Ok(())
    }
}

impl NewCluster {
    /// The cluster was allocated for it.
    fn is_new(&self) -> bool {
        self.old
            .is_some_and(|old| old != Mapping::Zero(Some(self.offset)))
    }
}

enum Fill {
    Nothing,
    Zeroes(u64),
    Bytes(Vec<u8>),
}

fn add<'s>(parts: &mut DeviceRequests<'s>, offset: u64, fill: &'s Fill) {
    match fill {
        Fill::Nothing => {}
        Fill::Zeroes(length) => {
            let range = ByteRange::new(offset, offset + length);
            parts.other(0, Operation::WriteZeroes(range, Zeroing::ALLOCATED));
        }
        Fill::Bytes(bytes) => {
            let length = bytes.len() as u64;
            parts.write(
                0,
                offset,
                length,
                smallvec![&bytes[..]],
                Persistence::Cached,
            );
        }
    }
}
