//! Changes of a qcow2 image in place, by which a crash costs space at worst.
//!
//! The order of everything: space is made, refcounts count it and are synced, tables that point there are written and synced, and what
//! they pointed to before is given back last. The fields of the header that move tables and change the size lie in one sector and are
//! written at once.
//!
//! What is not known here is refused by name before anything is changed.

mod append;
mod map;
mod release;

use std::mem::offset_of;
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result, SpaceFile, SyncMode};

use crate::format::{
    Autoclear, Extensions, Geometry, Incompatible, RawHeader, RefcountBlock, RefcountTableEntry,
};
use crate::qcow2::{Qcow2, read_table};
use crate::target::Target;

/// An image that nobody else uses, open for changes.
pub(crate) struct Editor<'a> {
    target: &'a Target,
    image: Qcow2,
}

impl<'a> Editor<'a> {
    /// # Errors
    /// `Unsupported` for what is not changed here, `Corrupt` for an image that has to be repaired first.
    pub(crate) fn open(target: &'a Target) -> Result<Self> {
        let image = Qcow2::open(Arc::clone(target.file()))?;
        let header = &image.header;
        let repair = |what: &str| {
            Error::new(ErrorKind::Corrupt)
                .detail(format!("the image is marked as {what}"))
                .advice("repair it first: qemu-img check -r all")
        };
        if header.incompatible.contains(Incompatible::CORRUPT) {
            return Err(repair("corrupt"));
        }
        if header.incompatible.contains(Incompatible::DIRTY) {
            return Err(repair("dirty: its refcounts may be wrong"));
        }
        if header.snapshots.count > 0 {
            return Err(Target::refuse(format!(
                "the image has {} internal snapshots, which share its clusters; images with snapshots are not changed",
                header.snapshots.count
            )));
        }
        if header.extensions.find(Extensions::BITMAPS).is_some() {
            return Err(Target::refuse(
                "the image has persistent bitmaps, which would be wrong afterwards; remove them first (qemu-img bitmap --remove)",
            ));
        }
        if header.has_data_file() {
            return Err(Target::refuse(
                "the image has a data file; images with data files are not changed",
            ));
        }
        let editor = Self { target, image };
        let unknown =
            editor.image.header.autoclear - (Autoclear::BITMAPS | Autoclear::RAW_DATA_FILE);
        if !unknown.is_empty() {
            // Whoever changes an image without knowing what they stand for takes them away first.
            let known = (editor.image.header.autoclear - unknown).bits();
            editor.file().write_at(&known.to_be_bytes(), 88)?;
            editor.sync()?;
        }
        Ok(editor)
    }

    pub(crate) fn image(&self) -> &Qcow2 {
        &self.image
    }

    fn file(&self) -> &dyn SpaceFile {
        &**self.target.file()
    }

    fn geometry(&self) -> Geometry {
        self.image.header.geometry
    }

    fn sync(&self) -> Result<()> {
        self.file().sync(SyncMode::Data)
    }

    /// Writes the size and the places of the tables, and makes them durable.
    fn write_fields(&self) -> Result<()> {
        let header = &self.image.header;
        let mut bytes = Vec::new();
        bytes.extend(header.virtual_bytes.to_be_bytes());
        // No encryption.
        bytes.extend([0; 4]);
        bytes.extend(header.l1_entries.to_be_bytes());
        bytes.extend(header.l1_offset.to_be_bytes());
        bytes.extend(header.refcount_table_offset.to_be_bytes());
        bytes.extend(header.refcount_table_clusters.to_be_bytes());
        const START: usize = offset_of!(RawHeader, size);
        const END: usize = offset_of!(RawHeader, nb_snapshots);
        assert_eq!(bytes.len(), END - START);
        self.file().write_at(&bytes, START as u64)?;
        self.sync()
    }

    /// Changes the size alone.
    pub(crate) fn set_size(&mut self, virtual_bytes: u64) -> Result<()> {
        self.image.header.virtual_bytes = virtual_bytes;
        self.write_fields()
    }

    fn refcount_table(&self) -> Result<Vec<u64>> {
        let range = self.image.header.refcount_table_range();
        read_table(self.file(), range.start(), range.len() / 8)
    }

    /// Changes the counts of clusters, in any order but best in theirs; not synced.
    fn change_counts(
        &self,
        clusters: impl Iterator<Item = u64>,
        change: impl Fn(u64, u64) -> Result<u64>,
    ) -> Result<()> {
        let geometry = self.geometry();
        let entries = geometry.refcount_block_entries();
        let table = self.refcount_table()?;
        let file_bytes = self.file().size()?;
        let mut held: Option<(u64, u64, Vec<u8>)> = None;
        for cluster in clusters {
            let index = cluster / entries;
            if held.as_ref().is_none_or(|(number, ..)| *number != index) {
                if let Some((_, offset, bytes)) = held.take() {
                    self.file().write_at(&bytes, offset)?;
                }
                let entry = RefcountTableEntry(table.get(index as usize).copied().unwrap_or(0));
                let Some(offset) = entry.block(geometry, index, file_bytes)? else {
                    return Err(Error::new(ErrorKind::Corrupt).detail(format!(
                        "qcow2 cluster {cluster}: no refcount block, and it is in use"
                    )));
                };
                let mut bytes = vec![0; geometry.cluster_bytes() as usize];
                self.file().read_at(&mut bytes, offset)?;
                held = Some((index, offset, bytes));
            }
            let (_, _, bytes) = held.as_mut().expect("just read");
            let mut block = RefcountBlock::new(&mut bytes[..], geometry);
            let at = (cluster % entries) as usize;
            block.set(at, change(cluster, block.get(at))?);
        }
        if let Some((_, offset, bytes)) = held {
            self.file().write_at(&bytes, offset)?;
        }
        Ok(())
    }

    /// Takes one use from each cluster; not synced.
    fn release_counts(&self, clusters: impl Iterator<Item = u64>) -> Result<()> {
        self.change_counts(clusters, |cluster, count| {
            count.checked_sub(1).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt)
                    .detail(format!("qcow2 cluster {cluster}: in use, and counted as 0"))
                    .advice("see extant image check")
            })
        })
    }
}
