//! Zeroes, discards and assigns.
//!
//! | | without a backing file | with one |
//! |---|---|---|
//! | zeroes, may unmap; discard | unallocated | zero cluster (version 3) |
//! | zeroes, allocated or written | mapped, and so zeroed below | the same |
//! | assign | mapped to one run, and assigned below | the data stays in the backing file |
//!
//! Parts of clusters, and a version that cannot say "zero", have the zeros written.

use std::ops::Range;

use extant_blockdev::{Device, Persistence, Speed, ZeroedSpace, Zeroing};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::Qcow2;
use super::mapped::{Source, WriteTarget};
use super::metadata::Metadata;
use super::space::Wanted;
use crate::format::{L2Entry, Mapping, Version};

/// Clusters that are changed before others get a turn.
const CLUSTERS_PER_STEP_MAX: u64 = 4096;
const ZEROES: &[u8] = &[0; 64 << 10];

/// The new state of an unmapped cluster.
enum Unmapped {
    Done,
    /// It has to be zeroed where it is.
    InPlace,
}

impl Qcow2 {
    pub(super) fn discard(&self, range: ByteRange) -> Result<()> {
        let (_, whole, _) = self.split_clusters(range);
        self.unmap(whole, &mut |range| match &self.data {
            Some(data) => data.discard(range),
            None => Ok(()),
        })
    }

    pub(super) fn write_zeroes(&self, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        // The caller flushes.
        let zeroing = Zeroing {
            persistence: Persistence::Cached,
            ..zeroing
        };
        match zeroing.space {
            ZeroedSpace::Allocated | ZeroedSpace::Written => self.zero_in_place(range, zeroing),
            ZeroedSpace::MayUnmap => {
                let (head, whole, tail) = self.split_clusters(range);
                self.zero_in_place(head, zeroing)?;
                self.unmap(whole, &mut |range| self.zero_in_place(range, zeroing))?;
                self.zero_in_place(tail, zeroing)
            }
        }
    }

    /// Maps the range; existing data is kept.
    pub(super) fn assign(&self, range: ByteRange) -> Result<()> {
        let bits = self.geometry.cluster_bits();
        let clusters = self.clusters_of(range);
        let size = self.disk_geometry.size;
        let mut rest = ByteRange::new(clusters.start << bits, (clusters.end << bits).min(size));
        while !rest.is_empty() {
            self.make_room()?;
            let most = rest.len().min(CLUSTERS_PER_STEP_MAX << bits);
            let piece = ByteRange::new(rest.start(), rest.start() + most);
            let mut metadata = self.wait_until_idle(&self.clusters_of(piece));
            let _epoch = metadata.epoch.clone();
            let (source, mut length) = self.find(&mut metadata, piece)?;
            let host = match source {
                Source::Zero if self.data.is_none() => {
                    let count = length.div_ceil(self.geometry.cluster_bytes());
                    let first = self.cluster_of(rest.start());
                    let (host, mapped) =
                        self.map_fresh(&mut metadata, first, count, Wanted::Whole)?;
                    length = length.min(mapped << bits);
                    Some(host)
                }
                Source::Host(host) | Source::AllocatedZero(host) => Some(host),
                _ => None,
            };
            drop(metadata);
            rest = ByteRange::new(rest.start() + length, rest.end());
            if let Some(host) = host {
                // A refusal is an answer: the clusters have their place in the image.
                self.data_device()
                    .assign(ByteRange::new(host, host + length))?;
            }
        }
        Ok(())
    }

    /// The part of a cluster that begins the range, whole clusters, and the part that ends it. At
    /// the end of the disk a cluster is whole.
    fn split_clusters(&self, range: ByteRange) -> (ByteRange, ByteRange, ByteRange) {
        let bytes = self.geometry.cluster_bytes();
        let start = range.start().next_multiple_of(bytes);
        let end = if range.end() == self.disk_geometry.size {
            range.end()
        } else {
            range.end() & !(bytes - 1)
        };
        if start >= end {
            let nothing = ByteRange::new(range.end(), range.end());
            return (range, nothing, nothing);
        }
        (
            ByteRange::new(range.start(), start),
            ByteRange::new(start, end),
            ByteRange::new(end, range.end()),
        )
    }

    /// Zeros in the clusters already mapped, or in new clusters on request.
    fn zero_in_place(&self, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        let mut rest = range;
        while !rest.is_empty() {
            self.make_room()?;
            let mut metadata = self.metadata();
            let _epoch = metadata.epoch.clone();
            let most = rest
                .len()
                .min(CLUSTERS_PER_STEP_MAX << self.geometry.cluster_bits());
            let piece = ByteRange::new(rest.start(), rest.start() + most);
            let (source, length) = self.find(&mut metadata, piece)?;
            let is_zero = matches!(source, Source::Zero | Source::AllocatedZero(_));
            if is_zero && zeroing.space == ZeroedSpace::MayUnmap {
                rest = ByteRange::new(rest.start() + length, rest.end());
                continue;
            }
            let piece = ByteRange::new(rest.start(), rest.start() + length);
            let (target, length) = self.find_target(&mut metadata, piece)?;
            drop(metadata);
            let piece = ByteRange::new(rest.start(), rest.start() + length);
            rest = ByteRange::new(piece.end(), rest.end());
            match target {
                WriteTarget::Host(host) => {
                    let range = ByteRange::new(host, host + length);
                    self.data_device().write_zeroes(range, zeroing)?;
                }
                WriteTarget::Rewrite if zeroing.speed == Speed::OnlyIfFast => {
                    return Err(Error::new(ErrorKind::Unsupported)
                        .detail("the clusters have to be written with zeros")
                        .in_range(piece));
                }
                WriteTarget::Rewrite => {
                    for piece in piece.chunks(ZEROES.len() as u64) {
                        self.rewrite(piece, &[&ZEROES[..piece.len() as usize]])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Unmaps whole clusters. `in_place` is called for ranges where that is impossible.
    fn unmap(
        &self,
        range: ByteRange,
        in_place: &mut dyn FnMut(ByteRange) -> Result<()>,
    ) -> Result<()> {
        let mut clusters = self.clusters_of(range);
        if range.is_empty() {
            clusters = 0..0;
        }
        while !clusters.is_empty() {
            self.make_room()?;
            let end = clusters.end.min(clusters.start + CLUSTERS_PER_STEP_MAX);
            let piece = clusters.start..end;
            let mut left: Vec<Range<u64>> = Vec::new();
            let mut metadata = self.wait_until_idle(&piece);
            let mut cluster = piece.start;
            while cluster < piece.end {
                if !metadata.has_table(cluster) && !self.is_backed(cluster) {
                    let entries = self.geometry.l2_entries();
                    cluster = (cluster / entries + 1) * entries;
                    continue;
                }
                match self.unmap_one(&mut metadata, cluster)? {
                    Unmapped::Done => {}
                    Unmapped::InPlace => match left.last_mut() {
                        Some(last) if last.end == cluster => last.end += 1,
                        _ => left.push(cluster..cluster + 1),
                    },
                }
                cluster += 1;
            }
            drop(metadata);
            clusters.start = cluster.min(clusters.end);
            let bits = self.geometry.cluster_bits();
            for Range { start, end } in left {
                let end = (end << bits).min(self.disk_geometry.size);
                in_place(ByteRange::new(start << bits, end))?;
            }
        }
        Ok(())
    }

    fn unmap_one(&self, metadata: &mut Metadata, cluster: u64) -> Result<Unmapped> {
        let source = self.source(metadata, cluster)?;
        let (mapping, _) = metadata.mapping(cluster)?;
        let is_backed = self.is_backed(cluster);
        if mapping == Mapping::Zero(None) || (mapping == Mapping::Unallocated && !is_backed) {
            return Ok(Unmapped::Done);
        }
        // Clusters of a data file stay mapped.
        if self.data.is_some() {
            return Ok(Unmapped::InPlace);
        }
        let entry = match (is_backed, self.version) {
            (false, _) => L2Entry::UNALLOCATED,
            (true, Version::V3) => L2Entry::ZERO,
            (true, Version::V2) => return Ok(Unmapped::InPlace),
        };
        metadata.set(cluster, entry)?;
        match source {
            Source::Host(offset) | Source::Shared(offset) | Source::AllocatedZero(offset) => {
                metadata.release(offset);
            }
            Source::Compressed(place) => metadata.release_compressed(place),
            Source::Zero | Source::Backing => {}
        }
        Ok(Unmapped::Done)
    }
}
