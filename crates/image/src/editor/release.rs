//! Makes the disk smaller: the size first, then the tables, then the counts, then the file.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, ErrorKind, FallocateMode, Result};

use super::Editor;
use crate::format::{L1Entry, Mapping};

impl Editor<'_> {
    /// Cuts the disk at `virtual_bytes`, and gives back what lies behind.
    pub(crate) fn shrink(&mut self, virtual_bytes: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        self.zero_tail(virtual_bytes, control)?;
        let old_bytes = self.image.header.virtual_bytes;
        // Whole clusters behind the new end.
        let first = geometry.clusters(virtual_bytes) << bits;
        let behind = ByteRange::new(first.min(old_bytes), old_bytes);
        let mut freed = Vec::new();
        self.image.for_each_run(behind, &mut |run| {
            match run.mapping {
                Mapping::Data(place) | Mapping::Zero(Some(place)) => {
                    let end = geometry.clusters(place + run.guest.len()) << bits;
                    freed.push(Freed {
                        range: ByteRange::new(place, end),
                        is_exclusive: run.is_copied,
                    });
                }
                Mapping::Compressed(place) => {
                    freed.push(Freed {
                        range: ByteRange::new(place.offset, place.offset + place.length_bytes),
                        is_exclusive: false,
                    });
                }
                Mapping::Unallocated | Mapping::Zero(None) => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        control.cancel.check()?;
        // From here on it is done to the end: what is cut off leaves clusters that nobody sees.
        self.set_size(virtual_bytes)?;
        let kept = geometry.l1_entries(virtual_bytes) as usize;
        let mut l1 = self.image.l1.clone();
        let tables: Vec<L1Entry> = l1.drain(kept..).map(L1Entry).collect();
        l1.resize(self.image.l1.len(), 0);
        let last = l1[..kept]
            .last()
            .map_or(0, |&entry| L1Entry(entry).offset());
        let used = geometry.clusters(virtual_bytes) % geometry.l2_entries();
        if last != 0 && used != 0 {
            let count = geometry.l2_entries() - used;
            self.file()
                .write_at(&vec![0; count as usize * 8], last + used * 8)?;
        }
        let bytes: Vec<u8> = l1.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        self.file().write_at(&bytes, self.image.header.l1_offset)?;
        self.sync()?;
        self.image.l1 = l1;
        let tables = tables.into_iter().filter(|table| table.offset() != 0);
        freed.extend(tables.map(|table| Freed {
            range: ByteRange::new(table.offset(), table.offset() + geometry.cluster_bytes()),
            is_exclusive: table.is_copied(),
        }));
        let clusters = freed
            .iter()
            .flat_map(|freed| freed.range.start() >> bits..geometry.clusters(freed.range.end()));
        self.release_counts(clusters)?;
        self.sync()?;
        self.give_back(&freed)
    }

    /// Cuts the file behind the last cluster that is in use, which ends at the offset that is returned.
    pub(crate) fn cut_end(&self) -> Result<u64> {
        let table = self.refcount_table()?;
        let end = self.counted_end(&table)? << self.geometry().cluster_bits();
        if end < self.file().size()? {
            self.file().resize(end)?;
        }
        Ok(end)
    }

    /// Returns the space of clusters that nothing uses any more to the file system.
    fn give_back(&self, freed: &[Freed]) -> Result<()> {
        let end = self.cut_end()?;
        let kept = ByteRange::new(0, end);
        // Compressed clusters share theirs with others: those are left alone.
        let exclusive = freed.iter().filter(|freed| freed.is_exclusive);
        for range in exclusive.filter_map(|freed| freed.range.intersection(kept)) {
            match self.file().fallocate(FallocateMode::PunchHole, range) {
                // It is free in the image, which is what matters.
                Err(error) if error.kind() == ErrorKind::Unsupported => break,
                done => done?,
            }
        }
        Ok(())
    }
}

/// What the image does not use any more.
struct Freed {
    range: ByteRange,
    is_exclusive: bool,
}
