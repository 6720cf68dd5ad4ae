//! In-place changes of a qcow2 image that are safe against crashes: a crash leaks clusters at
//! worst.
//!
//! Order of every change:
//! 1. allocate space;
//! 2. write refcounts for it, and sync;
//! 3. write tables that refer to it, and sync;
//! 4. free the clusters that the tables referred to before.
//!
//! The header fields for table offsets and size are in one sector and are written together.
//!
//! Snapshots share clusters and L2 tables with the disk; shared ones are copied before they change.
//! Bitmaps are kept valid, or are marked as inconsistent until they are (`bitmaps.rs`). The guest's
//! data may be in an external data file, at guest offsets and without refcounts.
//!
//! On a block device, which cannot grow, new clusters are allocated after the last counted one.
//! Their contents are undefined, so they are zeroed or written as a whole before a table refers to
//! them.
//!
//! Unknown features are refused by name before anything is changed.

mod append;
mod bitmaps;
mod full;
mod grow;
mod hide;
mod map;
mod release;

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use extant_space::{Control, Error, ErrorKind, Remedy, Result, SpaceFile, SyncMode};

use crate::check::rebuild_refcounts;
use crate::format::{
    Autoclear, EntryRules, Extensions, Geometry, Incompatible, RawHeader, RefcountBlock,
    RefcountTableEntry, Version, read_snapshots,
};
use crate::image_file::ImageFile;
use crate::qcow2::{Qcow2, read_table};
use append::check_counts;

/// Offset of the autoclear features.
const AUTOCLEAR_FEATURES: u64 = 0x58;

/// An image under exclusive access, open for changes.
pub(crate) struct OfflineEdit<'a> {
    file: &'a ImageFile,
    image: Qcow2,
    /// The size that the header has in the file while a growth is prepared, where `image` has the
    /// new one already.
    shown_bytes: Option<u64>,
    /// Contents of an unallocated cluster, by its number, if they are not zeros.
    below: Option<(u64, Vec<u8>)>,
}

impl<'a> OfflineEdit<'a> {
    /// # Errors
    /// `Unsupported` for images that offline edits do not change, `Corrupt` for an image that has
    /// to be repaired first.
    pub(crate) fn open(file: &'a ImageFile, control: Control<'_>) -> Result<Self> {
        let mut image = Qcow2::open(Arc::clone(file.file()))?;
        if image.header.incompatible.contains(Incompatible::CORRUPT) {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail("the image is marked as corrupt")
                .remedy(Remedy::RepairImage));
        }
        if image.header.incompatible.contains(Incompatible::DIRTY) {
            // The last user was killed, and the refcounts are outdated.
            rebuild_refcounts(Arc::clone(file.file()), control)?;
            image = Qcow2::open(Arc::clone(file.file()))?;
        }
        let header = &image.header;
        if file.is_disk() {
            check_counts(file, control)?;
        }
        if header.has_data_file() {
            file.layer(crate::image_format::Format::Qcow2)?
                .check_data_file()?;
            if header.snapshots.count > 0 {
                return Err(ImageFile::refuse(
                    "the image has a data file and internal snapshots, which cannot preserve their data",
                ));
            }
        }
        let edit = Self::of(file, image);
        let known = Autoclear::BITMAPS | Autoclear::RAW_DATA_FILE;
        let features = edit.image.header.autoclear;
        if !known.contains(features) {
            // A program that changes an image clears the autoclear features that it does not know.
            edit.write_autoclear(features & known)?;
        }
        Ok(edit)
    }

    fn of(file: &'a ImageFile, image: Qcow2) -> Self {
        Self {
            file,
            image,
            shown_bytes: None,
            below: None,
        }
    }

    fn write_autoclear(&self, features: Autoclear) -> Result<()> {
        self.file()
            .write_at(&features.bits().to_be_bytes(), AUTOCLEAR_FEATURES)?;
        self.sync()
    }

    /// Refuses images that would be invalid with another size.
    pub(crate) fn check_resizable(&self, new_bytes: u64) -> Result<()> {
        let header = &self.image.header;
        let count = header.snapshots.count;
        let unknown = |what: &str| {
            ImageFile::refuse(format!("the image has {count} internal snapshots, {what}"))
                .advice("convert it to version 3 (qemu-img amend -o compat=1.1), or remove them")
        };
        if count > 0 && header.version == Version::V2 {
            return Err(unknown(
                "which need not have the size of the disk in version 2: it is not resized",
            ));
        }
        read_snapshots(
            self.file(),
            header,
            &mut |snapshot| match snapshot.virtual_bytes {
                Some(_) => Ok(()),
                None => Err(unknown("one of which does not have the size of its disk")),
            },
        )?;
        let has_bitmaps = header.extensions.find(Extensions::BITMAPS).is_some();
        if has_bitmaps && new_bytes < header.virtual_bytes {
            return Err(ImageFile::refuse(
                "the image has persistent bitmaps, which are not made smaller; remove them first (qemu-img bitmap --remove)",
            ));
        }
        Ok(())
    }

    /// Refuses an image with corruptions, for changes that release or copy clusters.
    ///
    /// # Errors
    /// `Corrupt`, and those of [`check`](crate::check()).
    pub(crate) fn check_counts(&self, control: Control<'_>) -> Result<()> {
        if self.file.is_disk() {
            // It was done when it was opened.
            Ok(())
        } else {
            check_counts(self.file, control)
        }
    }

    pub(crate) fn image(&self) -> &Qcow2 {
        &self.image
    }

    fn file(&self) -> &dyn SpaceFile {
        &**self.file.file()
    }

    /// The file of the guest's data.
    fn data(&self) -> &dyn SpaceFile {
        match self.file.data_file() {
            Some(data) => &**data.file(),
            None => self.file(),
        }
    }

    fn has_data_file(&self) -> bool {
        self.image.header.has_data_file()
    }

    fn entry_rules(&self) -> EntryRules {
        self.image.header.entry_rules()
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
        let size = self.shown_bytes.unwrap_or(header.virtual_bytes);
        bytes.extend(size.to_be_bytes());
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
        mut change: impl FnMut(u64, u64) -> Result<u64>,
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

    /// Takes one use from each cluster, and returns those without any that are left; not synced.
    fn release_counts(&self, clusters: impl Iterator<Item = u64>) -> Result<Vec<Range<u64>>> {
        let mut free: Vec<Range<u64>> = Vec::new();
        self.change_counts(clusters, |cluster, count| {
            let left = count.checked_sub(1).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt)
                    .detail(format!("qcow2 cluster {cluster}: in use, and counted as 0"))
                    .remedy(Remedy::CheckImage)
            })?;
            if left == 0 {
                match free.last_mut() {
                    Some(last) if last.end == cluster => last.end += 1,
                    _ => free.push(cluster..cluster + 1),
                }
            }
            Ok(left)
        })?;
        Ok(free)
    }
}
