//! Gives every cluster of a guest range a cluster of the image with a refcount of 1.
//!
//! Clusters and L2 tables shared with snapshots are copied; the snapshots keep theirs, and those
//! refcounts are lowered last. The same holds for compressed clusters, which are expanded.

use std::ops::{ControlFlow, Range};

use extant_space::{ByteRange, Control, Error, ErrorKind, Phase, Preallocation as Space, Result};

use super::OfflineEdit;
use crate::format::{CompressedPlace, L1Entry, L2Entry, Mapping};
use crate::layer::states;
use crate::preallocation::Preallocation;
use crate::qcow2::{Run, read_table};

/// Zeros are written, and data is copied, in such pieces.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes zeroed on a disk between two checks for a cancel.
const ZERO_BYTES_MAX: u64 = 16 << 20;

/// Wanted state of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// Zeros where it is.
    Zeros(u64),
    /// A new place, with zeros.
    Place,
    /// A new cluster with the contents of this one, which others use as well. `is_data`: it is
    /// read.
    Copy {
        place: u64,
        is_data: bool,
    },
    /// A new place, with the data decompressed from here.
    Expand(CompressedPlace),
}

impl Need {
    fn of(mapping: Mapping, is_copied: bool) -> Self {
        match mapping {
            Mapping::Unallocated | Mapping::Zero(None) => Self::Place,
            Mapping::Zero(Some(place)) if is_copied => Self::Zeros(place),
            Mapping::Zero(Some(place)) => Self::Copy {
                place,
                is_data: false,
            },
            Mapping::Data(place) if !is_copied => Self::Copy {
                place,
                is_data: true,
            },
            Mapping::Data(_) => Self::Nothing,
            Mapping::Compressed(place) => Self::Expand(place),
        }
    }

    fn is_new_place(self) -> bool {
        matches!(self, Self::Place | Self::Copy { .. } | Self::Expand(_))
    }
}

impl OfflineEdit<'_> {
    /// Maps all clusters of `range` to places of their own; the new ones are one run of the file
    /// with the space that `preallocation` asks for.
    ///
    /// # Errors
    /// After `NoSpace`, `Cancelled` and other errors before clusters are counted, the image is
    /// unchanged.
    pub(crate) fn map_range(
        &mut self,
        range: ByteRange,
        preallocation: Preallocation,
        control: Control<'_>,
    ) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        self.make_zeros(range, control)?;
        if let (Some((cluster, bytes)), true) = (&self.below, self.has_data_file()) {
            self.data().write_at(bytes, cluster << bits)?;
        }
        let clusters = if self.has_data_file() {
            0
        } else {
            self.new_places(range)?
        };
        let tables = self.tables_to_make(range);
        let plan = self.plan(tables, clusters)?;
        let file_bytes = self.file().size()?;
        if clusters > 0 || tables > 0 {
            self.lengthen(&plan)
                .and_then(|()| {
                    let data = self.data_range(&plan);
                    let space = preallocation.space();
                    self.file.make_space(data, space, control)?;
                    self.write_clusters(range, data, space, control)
                })
                .inspect_err(|_| {
                    // Nothing refers to it yet, and the first error is the one to report.
                    let _ = self.file.truncate(file_bytes);
                })?;
            self.count(&plan)?;
        }
        if let Some(data) = self.file.data_file() {
            data.make_space(range, preallocation.space(), control)?;
            data.file().sync(extant_space::SyncMode::Data)?;
        }
        self.sync()?;
        let mut places = plan.data..;
        let mut new_tables = plan.tables..;
        let mut left = Vec::new();
        let mut l1 = self.image.l1.clone();
        for part in range.chunks(geometry.l2_coverage_bytes()) {
            let index = (part.start() / geometry.l2_coverage_bytes()) as usize;
            let old = L1Entry(l1[index]);
            let mut entries = match old.offset() {
                0 => vec![0; geometry.l2_entries() as usize],
                place => read_table(self.file(), place, geometry.l2_entries())?,
            };
            let mut is_changed = !old.is_copied() || old.offset() == 0;
            let table = if is_changed {
                new_tables.next().expect("an endless range") << bits
            } else {
                old.offset()
            };
            for cluster in part.start() >> bits..geometry.clusters(part.end()) {
                let entry = &mut entries[(cluster % geometry.l2_entries()) as usize];
                let old = L2Entry(*entry);
                let mapping = old.mapping(geometry, self.entry_rules(), cluster << bits)?;
                let need = self.need(mapping, old.is_copied())?;
                let place = match need {
                    Need::Nothing => continue,
                    Need::Zeros(place) => place,
                    _ if self.has_data_file() => cluster << bits,
                    _ => places.next().expect("an endless range") << bits,
                };
                match need {
                    Need::Copy { place, .. } => add_cluster(&mut left, place >> bits),
                    Need::Expand(_) => left.extend(self.clusters_of(mapping, 0)),
                    _ => {}
                }
                *entry = L2Entry::exclusive(place).raw();
                is_changed = true;
            }
            if is_changed {
                self.file().write_at(&encode(&entries), table)?;
            }
            if table != old.offset() {
                l1[index] = L1Entry::exclusive(table).raw();
                if old.offset() != 0 {
                    add_cluster(&mut left, old.offset() >> bits);
                }
            }
        }
        self.sync()?;
        if l1 != self.image.l1 {
            self.file()
                .write_at(&encode(&l1), self.image.header.l1_offset)?;
            self.sync()?;
            self.image.l1 = l1;
        }
        if !left.is_empty() {
            self.release_counts(left.into_iter().flatten())?;
            self.sync()?;
        }
        Ok(())
    }

    fn need(&self, mapping: Mapping, is_copied: bool) -> Result<Need> {
        // Clusters of a data file are not shared.
        match Need::of(mapping, is_copied || self.has_data_file()) {
            Need::Expand(_) if self.has_data_file() => Err(Error::new(ErrorKind::Corrupt)
                .detail("qcow2 cluster is compressed, which a data file cannot be")),
            need => Ok(need),
        }
    }

    /// Visits the action for each run of `range`, with its clusters.
    fn for_each_need(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Need, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        self.image.for_each_run(range, &mut |run: Run| {
            let clusters = run.guest.start() >> bits..geometry.clusters(run.guest.end());
            let aligned = |place: u64| place >> bits << bits;
            let need = self
                .need(run.mapping, run.is_copied)
                .map_err(|error| error.in_range(run.guest))?;
            let need = match need {
                Need::Zeros(place) => Need::Zeros(aligned(place)),
                Need::Copy { place, is_data } => Need::Copy {
                    place: aligned(place),
                    is_data,
                },
                need => need,
            };
            visit(need, clusters)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Clusters that get a new place.
    pub(super) fn new_places(&self, range: ByteRange) -> Result<u64> {
        let mut count = 0;
        self.for_each_need(range, &mut |need, clusters| {
            if need.is_new_place() {
                count += clusters.end - clusters.start;
            }
            Ok(())
        })?;
        Ok(count)
    }

    /// Writes zeros where zeros are mapped and the file may hold other bytes: the space of zero
    /// clusters, and in a data file the unmapped clusters.
    fn make_zeros(&self, range: ByteRange, control: Control<'_>) -> Result<()> {
        let bits = self.geometry().cluster_bits();
        self.for_each_need(range, &mut |need, clusters| {
            let place = match need {
                Need::Zeros(place) => place,
                Need::Place if self.has_data_file() => clusters.start << bits,
                _ => return Ok(()),
            };
            let bytes = (clusters.end - clusters.start) << bits;
            self.clear_data(ByteRange::new(place, place + bytes), control)
        })
    }

    /// Writes the data other than zeros to the new places, which are `data`; on a disk zeros as
    /// well.
    fn write_clusters(
        &self,
        range: ByteRange,
        data: ByteRange,
        space: Space,
        control: Control<'_>,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bits = self.geometry().cluster_bits();
        let mut next = data.start();
        let mut buffer = Vec::new();
        self.for_each_need(range, &mut |need, clusters| {
            if !need.is_new_place() {
                return Ok(());
            }
            let bytes = (clusters.end - clusters.start) << bits;
            let to = next;
            next += bytes;
            match need {
                Need::Copy {
                    place,
                    is_data: true,
                } => {
                    for piece in ByteRange::new(0, bytes).chunks(PIECE_BYTES) {
                        control.cancel.check()?;
                        buffer.resize(piece.len() as usize, 0);
                        let got = self.file().read_at(&mut buffer, place + piece.start())?;
                        buffer[got..].fill(0);
                        self.file().write_at(&buffer, to + piece.start())?;
                    }
                }
                Need::Expand(place) => {
                    control.cancel.check()?;
                    buffer.resize(bytes as usize, 0);
                    self.image
                        .expand(place, clusters.start << bits, &mut buffer)?;
                    self.file().write_at(&buffer, to)?;
                }
                _ if self.file.is_disk() => {
                    for piece in ByteRange::new(to, next).chunks(ZERO_BYTES_MAX) {
                        control.cancel.check()?;
                        self.file.zero(piece, space)?;
                        control.report(Phase::Write, piece.end() - data.start(), data.len());
                    }
                }
                _ => {}
            }
            if let Some((cluster, bytes)) = &self.below
                && need == Need::Place
                && clusters.contains(cluster)
            {
                let place = to + ((cluster - clusters.start) << bits);
                self.file().write_at(bytes, place)?;
            }
            Ok(())
        })
    }

    /// L2 tables that `range` needs, and that are not there or not the image's alone.
    pub(super) fn tables_to_make(&self, range: ByteRange) -> u64 {
        let coverage = self.geometry().l2_coverage_bytes();
        let is_to_make = |&index: &u64| {
            let entry = L1Entry(self.image.l1.get(index as usize).copied().unwrap_or(0));
            entry.offset() == 0 || !entry.is_copied()
        };
        let tables = range.start() / coverage..range.end().div_ceil(coverage);
        if range.is_empty() {
            0
        } else {
            tables.filter(is_to_make).count() as u64
        }
    }

    /// Writes zeros over `range` in the guest's data file, cut at the end of the file.
    pub(super) fn clear_data(&self, range: ByteRange, control: Control<'_>) -> Result<()> {
        let file = self.data();
        let inside = ByteRange::new(0, file.size()?);
        let Some(range) = range.intersection(inside) else {
            return Ok(());
        };
        let zeros = vec![0; PIECE_BYTES.min(range.len()) as usize];
        states(file, range, &mut |part, state| {
            if state == extant_space::ExtentState::Written {
                for piece in part.chunks(PIECE_BYTES) {
                    control.cancel.check()?;
                    file.write_at(&zeros[..piece.len() as usize], piece.start())?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })
        .map(drop)
    }
}

/// A table in file format.
pub(super) fn encode(entries: &[u64]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|entry| entry.to_be_bytes())
        .collect()
}

fn add_cluster(runs: &mut Vec<Range<u64>>, cluster: u64) {
    match runs.last_mut() {
        Some(last) if last.end == cluster => last.end += 1,
        _ => runs.push(cluster..cluster + 1),
    }
}
