//! Cluster map of a request: runs of guest bytes that are contiguous in the file.

use extant_blockdev::Device;
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::Qcow2;
use super::metadata::Metadata;
use super::space::Wanted;
use crate::format::{CompressedPlace, L2Entry, Mapping};

/// Source of the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// At this offset of the file, or of the data file.
    Host(u64),
    /// At this offset, where something else uses the cluster as well.
    Shared(u64),
    /// Zeros that the image holds no space for.
    Zero,
    /// Zeros with space at this offset.
    AllocatedZero(u64),
    /// At the same offset of the backing file.
    Backing,
    /// In compressed data; the run is within one cluster.
    Compressed(CompressedPlace),
}

impl Source {
    /// Whether the next cluster is contiguous with this run of `length` bytes.
    fn goes_on(self, length: u64, next: Self) -> bool {
        match (self, next) {
            (Self::Host(here), Self::Host(there))
            | (Self::Shared(here), Self::Shared(there))
            | (Self::AllocatedZero(here), Self::AllocatedZero(there)) => here + length == there,
            (Self::Zero, Self::Zero) | (Self::Backing, Self::Backing) => true,
            _ => false,
        }
    }

    fn moved(self, by: u64) -> Self {
        match self {
            Self::Host(offset) => Self::Host(offset + by),
            Self::Shared(offset) => Self::Shared(offset + by),
            Self::AllocatedZero(offset) => Self::AllocatedZero(offset + by),
            other => other,
        }
    }
}

/// Destination of the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteTarget {
    /// At this offset of the file, or of the data file.
    Host(u64),
    /// In clusters whose other bytes have to be written first.
    Rewrite,
}

/// State of a cluster before a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writable {
    InPlace(u64),
    /// A zeroed cluster replaces it and reads the same.
    Fresh,
    Rewrite,
}

impl Qcow2 {
    pub(super) fn within(&self, offset: u64) -> u64 {
        offset & (self.geometry.cluster_bytes() - 1)
    }

    pub(super) fn cluster_of(&self, offset: u64) -> u64 {
        offset >> self.geometry.cluster_bits()
    }

    /// The clusters that a range touches.
    pub(super) fn clusters_of(&self, range: ByteRange) -> std::ops::Range<u64> {
        self.cluster_of(range.start())..range.end().div_ceil(self.geometry.cluster_bytes())
    }

    /// Whether the backing file has bytes of a cluster.
    pub(super) fn is_backed(&self, cluster: u64) -> bool {
        let offset = cluster << self.geometry.cluster_bits();
        self.backing
            .as_ref()
            .is_some_and(|backing| offset < backing.geometry().size)
    }

    pub(super) fn source(&self, metadata: &mut Metadata, cluster: u64) -> Result<Source> {
        let (mapping, entry) = metadata.mapping(cluster)?;
        self.check_place(cluster, mapping)?;
        Ok(match mapping {
            Mapping::Data(offset) if entry.is_copied() || self.data.is_some() => {
                Source::Host(offset)
            }
            Mapping::Data(offset) => Source::Shared(offset),
            Mapping::Zero(Some(offset)) => Source::AllocatedZero(offset),
            Mapping::Zero(None) => Source::Zero,
            Mapping::Compressed(place) => Source::Compressed(place),
            Mapping::Unallocated if self.is_backed(cluster) => Source::Backing,
            Mapping::Unallocated => Source::Zero,
        })
    }

    /// In a data file every cluster is at its guest offset.
    fn check_place(&self, cluster: u64, mapping: Mapping) -> Result<()> {
        let guest = cluster << self.geometry.cluster_bits();
        let problem = match mapping {
            _ if self.data.is_none() => return Ok(()),
            Mapping::Data(offset) | Mapping::Zero(Some(offset)) if offset != guest => {
                format!("points at {offset:#x} of the data file")
            }
            Mapping::Compressed(_) => "is compressed, which a data file cannot be".to_owned(),
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "qcow2 L2 entry of guest offset {guest:#x} {problem}"
        )))
    }

    /// Source of the bytes from `range.start()` on, and the length of the contiguous run in the
    /// range.
    pub(super) fn find(&self, metadata: &mut Metadata, range: ByteRange) -> Result<(Source, u64)> {
        let cluster_bytes = self.geometry.cluster_bytes();
        let within = self.within(range.start());
        let first = self.cluster_of(range.start());
        let source = self.source(metadata, first)?;
        let mut reach = cluster_bytes;
        if !matches!(source, Source::Compressed(_)) {
            for cluster in first + 1..self.clusters_of(range).end {
                if !source.goes_on(reach, self.source(metadata, cluster)?) {
                    break;
                }
                reach += cluster_bytes;
            }
        }
        Ok((source.moved(within), (reach - within).min(range.len())))
    }

    /// Destination of the bytes from `range.start()` on, and the length of the contiguous run in
    /// the range. Clusters that read as zeros get their place by this.
    pub(super) fn find_target(
        &self,
        metadata: &mut Metadata,
        range: ByteRange,
    ) -> Result<(WriteTarget, u64)> {
        let cluster_bytes = self.geometry.cluster_bytes();
        let within = self.within(range.start());
        let clusters = self.clusters_of(range);
        let first = self.writable(metadata, clusters.start)?;
        let mut count = 1;
        for cluster in clusters.start + 1..clusters.end {
            let goes_on = match (first, self.writable(metadata, cluster)?) {
                (Writable::InPlace(offset), Writable::InPlace(next)) => {
                    offset + count * cluster_bytes == next
                }
                (one, other) => one == other,
            };
            if !goes_on {
                break;
            }
            count += 1;
        }
        let target = match first {
            Writable::InPlace(offset) => WriteTarget::Host(offset + within),
            Writable::Rewrite => WriteTarget::Rewrite,
            Writable::Fresh => {
                let offset;
                let wanted = Wanted::For(clusters.start);
                (offset, count) = self.map_fresh(metadata, clusters.start, count, wanted)?;
                WriteTarget::Host(offset + within)
            }
        };
        Ok((target, (count * cluster_bytes - within).min(range.len())))
    }

    /// Maps up to `count` guest clusters, which read as zeros, to a run of the file. Returns where
    /// it is and how many there are.
    pub(super) fn map_fresh(
        &self,
        metadata: &mut Metadata,
        cluster: u64,
        count: u64,
        wanted: Wanted,
    ) -> Result<(u64, u64)> {
        let bits = self.geometry.cluster_bits();
        let run = metadata.allocate(count, wanted)?;
        for number in 0..run.clusters {
            let offset = (run.first + number) << bits;
            if let Err(error) = metadata.set(cluster + number, L2Entry::exclusive(offset)) {
                (number..run.clusters)
                    .for_each(|left| metadata.release((run.first + left) << bits));
                return Err(error);
            }
        }
        Ok((run.first << bits, run.clusters))
    }

    fn writable(&self, metadata: &mut Metadata, cluster: u64) -> Result<Writable> {
        let (mapping, entry) = metadata.mapping(cluster)?;
        self.check_place(cluster, mapping)?;
        let is_own = entry.is_copied() || self.data.is_some();
        Ok(match mapping {
            // Its builder replaces the mapping.
            _ if metadata.busy.contains(&cluster) => Writable::Rewrite,
            Mapping::Data(offset) if is_own => Writable::InPlace(offset),
            Mapping::Zero(None) if self.data.is_none() => Writable::Fresh,
            Mapping::Unallocated if self.data.is_none() && !self.is_backed(cluster) => {
                Writable::Fresh
            }
            _ => Writable::Rewrite,
        })
    }
}
