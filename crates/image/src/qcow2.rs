//! An open qcow2 file: its header, its L1 table, and the mapping in its L2 tables.
//!
//! Model: the L1 table is in memory (32 MiB at most); L2 tables are read on demand, in parts.
//! Nothing is cached: a sequential scan reads each table once.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_space::{ByteRange, CancelToken, Result, SpaceFile};

use crate::compressed;
use crate::format::{CompressedPlace, Header, L1Entry, L2Entry, Mapping};

/// Bytes of an L2 table read at once.
const TABLE_PIECE_ENTRIES: u64 = 64 << 10;

/// A qcow2 file and its L1 table.
pub(crate) struct Qcow2 {
    pub(crate) file: Arc<dyn SpaceFile>,
    pub(crate) header: Header,
    pub(crate) l1: Vec<u64>,
    /// Asks walks through the tables to stop.
    pub(crate) cancel: CancelToken,
}

/// Neighbouring guest clusters that are mapped the same way and are contiguous in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The guest's bytes, clipped to the requested range.
    pub(crate) guest: ByteRange,
    /// Offset of the first of them. A compressed cluster is a run of its own and is not divided.
    pub(crate) mapping: Mapping,
    /// Its refcounts are one: it is overwritten in place.
    pub(crate) is_copied: bool,
}

impl Qcow2 {
    pub(crate) fn open(file: Arc<dyn SpaceFile>) -> Result<Self> {
        let header = Header::read(&*file)?;
        let range = header.l1_range();
        let l1 = read_table(&*file, range.start(), u64::from(header.l1_entries))?;
        Ok(Self {
            file,
            header,
            l1,
            cancel: CancelToken::new(),
        })
    }

    /// Visits the mapping of `range`, cut at the end of the disk, in order.
    ///
    /// # Errors
    /// `Corrupt` for an entry that points where nothing can be; and errors of reading.
    pub(crate) fn for_each_run(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Run) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let geometry = self.header.geometry;
        let disk = ByteRange::new(0, self.header.virtual_bytes);
        let Some(range) = range.intersection(disk) else {
            return Ok(());
        };
        let file_bytes = self.file.size()?;
        let mut merge = Merge {
            pending: None,
            visit,
        };
        for part in range.chunks(geometry.l2_coverage_bytes()) {
            let index = part.start() / geometry.l2_coverage_bytes();
            let entry = L1Entry(self.l1[index as usize]);
            let Some(table) = entry.table(geometry, index, file_bytes)? else {
                let run = Run {
                    guest: part,
                    mapping: Mapping::Unallocated,
                    is_copied: true,
                };
                if merge.take(run)?.is_break() {
                    return Ok(());
                }
                continue;
            };
            let covered = TABLE_PIECE_ENTRIES << geometry.cluster_bits();
            for piece in part.chunks(covered) {
                if self.walk(table, piece, &mut merge)?.is_break() {
                    return Ok(());
                }
            }
        }
        merge.finish()
    }

    /// Decompresses the cluster at `place` into `cluster`; the guest's offset of the cluster names
    /// it in an error.
    pub(crate) fn expand(
        &self,
        place: CompressedPlace,
        guest_offset: u64,
        cluster: &mut [u8],
    ) -> Result<()> {
        // Bounded: a place is at most twice a cluster.
        let mut data = vec![0; place.length_bytes as usize];
        let got = self.file.read_at(&mut data, place.offset)?;
        let guest = ByteRange::new(guest_offset, guest_offset + cluster.len() as u64);
        compressed::expand(self.header.compression, &data[..got], cluster)
            .map_err(|error| error.in_range(guest))
    }

    /// The entries of one L2 table that map `piece`.
    fn walk(&self, table: u64, piece: ByteRange, merge: &mut Merge<'_>) -> Result<ControlFlow<()>> {
        self.cancel.check()?;
        let geometry = self.header.geometry;
        let cluster_bits = geometry.cluster_bits();
        let first = piece.start() >> cluster_bits;
        let end = geometry.clusters(piece.end());
        let at = table + first % geometry.l2_entries() * 8;
        let entries = read_table(&*self.file, at, end - first)?;
        for (cluster, raw) in (first..end).zip(entries) {
            let start = cluster << cluster_bits;
            let entry = L2Entry(raw);
            let mapping = entry.mapping(geometry, self.header.entry_rules(), start)?;
            let whole = ByteRange::new(start, start + geometry.cluster_bytes());
            let guest = whole.intersection(piece).expect("a cluster of the piece");
            let run = Run {
                guest,
                mapping: advance(mapping, guest.start() - start),
                is_copied: entry.is_copied(),
            };
            if merge.take(run)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The mapping `bytes` further on.
fn advance(mapping: Mapping, bytes: u64) -> Mapping {
    match mapping {
        Mapping::Data(offset) => Mapping::Data(offset + bytes),
        Mapping::Zero(offset) => Mapping::Zero(offset.map(|offset| offset + bytes)),
        other => other,
    }
}

/// Joins runs that continue each other.
struct Merge<'a> {
    pending: Option<Run>,
    visit: &'a mut dyn FnMut(Run) -> Result<ControlFlow<()>>,
}

impl Merge<'_> {
    fn take(&mut self, run: Run) -> Result<ControlFlow<()>> {
        match &mut self.pending {
            Some(pending) if continues(pending, &run) => {
                pending.guest = ByteRange::new(pending.guest.start(), run.guest.end());
                Ok(ControlFlow::Continue(()))
            }
            pending => match pending.replace(run) {
                None => Ok(ControlFlow::Continue(())),
                Some(complete) => (self.visit)(complete),
            },
        }
    }

    fn finish(self) -> Result<()> {
        if let Some(last) = self.pending {
            let _ = (self.visit)(last)?;
        }
        Ok(())
    }
}

fn continues(run: &Run, next: &Run) -> bool {
    let is_plain = !matches!(run.mapping, Mapping::Compressed(_));
    let is_same = match run.mapping {
        Mapping::Unallocated | Mapping::Zero(None) => true,
        _ => run.is_copied == next.is_copied,
    };
    is_plain && is_same && advance(run.mapping, run.guest.len()) == next.mapping
}

/// `count` entries of a table of the file.
pub(crate) fn read_table(file: &dyn SpaceFile, offset: u64, count: u64) -> Result<Vec<u64>> {
    let mut bytes = vec![0; count as usize * 8];
    // A truncated file reads as zeros past its end.
    file.read_at(&mut bytes, offset)?;
    let (entries, _) = bytes.as_chunks::<8>();
    Ok(entries
        .iter()
        .map(|entry| u64::from_be_bytes(*entry))
        .collect())
}
