//! Persistent bitmaps of a disk that grows: the new part is not dirty, and the tables must have the
//! length that the disk needs.
//!
//! The size of the disk and those of the tables cannot change atomically. So where a table changes,
//! the bitmaps are marked as inconsistent before and as consistent afterwards: an open in the
//! meantime ignores them.

use std::mem::offset_of;
use std::ops::Range;

use extant_space::{ByteRange, Error, ErrorKind, Remedy, Result};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::OfflineEdit;
use super::map::encode;
use crate::format::{Autoclear, Extensions, RawBitmap, RawBitmaps};
use crate::image_file::ImageFile;
use crate::qcow2::read_table;

/// A bitmap whose table becomes longer.
pub(crate) struct LongerBitmap {
    /// Its entry in the directory.
    entry: u64,
    table: u64,
    entries: u32,
    /// The table that it had, if it has another one now.
    left: Option<Range<u64>>,
}

impl OfflineEdit<'_> {
    /// Makes room for the tables of all bitmaps that a disk of `virtual_bytes` needs longer ones
    /// for. Nothing refers to it yet.
    ///
    /// # Errors
    /// `Unsupported` for bitmaps that are in use or not known.
    pub(crate) fn longer_bitmaps(&mut self, virtual_bytes: u64) -> Result<Vec<LongerBitmap>> {
        let mut longer = Vec::new();
        let is_valid = self.image.header.autoclear.contains(Autoclear::BITMAPS);
        if !is_valid {
            return Ok(longer);
        }
        for (entry, raw) in self.bitmaps()? {
            let geometry = self.geometry();
            let needed = raw.table_entries(geometry, virtual_bytes);
            let entries = needed
                .and_then(|entries| u32::try_from(entries).ok())
                .filter(|&entries| entries <= RawBitmap::TABLE_ENTRIES_MAX)
                .ok_or_else(|| {
                    Error::new(ErrorKind::TooLarge)
                        .detail("a persistent bitmap of the image cannot hold the larger disk")
                })?;
            let old_entries = raw.bitmap_table_size.get();
            if entries <= old_entries {
                continue;
            }
            let old = raw.bitmap_table_offset.get();
            let table = read_table(self.file(), old, old_entries.into())?;
            let (before, after) = (
                geometry.clusters(u64::from(old_entries) * 8),
                geometry.clusters(u64::from(entries) * 8),
            );
            let mut bitmap = LongerBitmap {
                entry,
                table: old,
                entries,
                left: None,
            };
            if after > before {
                let plan = self.plan(after, 0)?;
                self.lengthen(&plan)?;
                self.count(&plan)?;
                bitmap.table = plan.tables << geometry.cluster_bits();
                let first = old >> geometry.cluster_bits();
                bitmap.left = Some(first..first + before);
            }
            let mut table = table;
            table.resize((after << geometry.cluster_bits()) as usize / 8, 0);
            self.file().write_at(&encode(&table), bitmap.table)?;
            longer.push(bitmap);
        }
        self.sync()?;
        Ok(longer)
    }

    /// Says whether the bitmaps can be believed; durable on return.
    pub(crate) fn believe_bitmaps(&self, is_right: bool) -> Result<()> {
        let others = self.image.header.autoclear & Autoclear::RAW_DATA_FILE;
        if is_right {
            self.write_autoclear(others | Autoclear::BITMAPS)
        } else {
            self.write_autoclear(others)
        }
    }

    /// Gives the bitmaps their tables, and frees those that they had. They are believed again on
    /// return.
    pub(crate) fn lengthen_bitmaps(&self, longer: Vec<LongerBitmap>) -> Result<()> {
        let at = |field: usize, bitmap: &LongerBitmap| bitmap.entry + field as u64;
        for bitmap in &longer {
            let table = at(offset_of!(RawBitmap, bitmap_table_offset), bitmap);
            let size = at(offset_of!(RawBitmap, bitmap_table_size), bitmap);
            self.file().write_at(&bitmap.table.to_be_bytes(), table)?;
            self.file().write_at(&bitmap.entries.to_be_bytes(), size)?;
        }
        self.sync()?;
        self.believe_bitmaps(true)?;
        let left = longer.into_iter().filter_map(|bitmap| bitmap.left);
        self.release_counts(left.flatten())?;
        self.sync()
    }

    /// Frees the tables that were made in vain; the bitmaps are believed again.
    pub(crate) fn forget_bitmaps(&self, longer: Vec<LongerBitmap>) -> Result<()> {
        self.believe_bitmaps(true)?;
        let bits = self.geometry().cluster_bits();
        let made = longer
            .into_iter()
            .filter(|bitmap| bitmap.left.is_some())
            .flat_map(|bitmap| {
                let clusters = self.geometry().clusters(u64::from(bitmap.entries) * 8);
                let first = bitmap.table >> bits;
                first..first + clusters
            });
        self.release_counts(made)?;
        self.sync()
    }

    /// The entries of the directory with their places.
    fn bitmaps(&self) -> Result<Vec<(u64, RawBitmap)>> {
        let corrupt = |detail: &str| {
            Error::new(ErrorKind::Corrupt)
                .detail(format!("qcow2 bitmaps {detail}"))
                .remedy(Remedy::CheckImage)
        };
        let Some(data) = self.image.header.extensions.find(Extensions::BITMAPS) else {
            return Ok(Vec::new());
        };
        let (raw, _) = RawBitmaps::read_from_prefix(data).map_err(|_| corrupt("extension"))?;
        let (offset, bytes) = (
            raw.bitmap_directory_offset.get(),
            raw.bitmap_directory_size.get(),
        );
        let file_bytes = self.file().size()?;
        let directory = ByteRange::at(offset, bytes)
            .filter(|range| range.end() <= file_bytes && bytes <= RawBitmaps::DIRECTORY_BYTES_MAX)
            .ok_or_else(|| corrupt("directory is not inside the file"))?;
        let mut found = Vec::new();
        let mut at = directory.start();
        for _ in 0..raw.nb_bitmaps.get() {
            let mut entry = RawBitmap::new_zeroed();
            if at + size_of::<RawBitmap>() as u64 > directory.end() {
                return Err(corrupt("directory ends before its entries"));
            }
            self.file().read_at(entry.as_mut_bytes(), at)?;
            self.check_bitmap(&entry, file_bytes)?;
            found.push((at, entry));
            at += entry.entry_bytes();
        }
        Ok(found)
    }

    fn check_bitmap(&self, entry: &RawBitmap, file_bytes: u64) -> Result<()> {
        let table = entry.bitmap_table_offset.get();
        let bytes = u64::from(entry.bitmap_table_size.get()) * 8;
        let is_inside = ByteRange::at(table, bytes).is_some_and(|range| range.end() <= file_bytes);
        let is_table = self.geometry().is_aligned(table)
            && entry.bitmap_table_size.get() <= RawBitmap::TABLE_ENTRIES_MAX;
        if !is_inside || !is_table {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail("qcow2 bitmaps: a table that is not inside the file")
                .remedy(Remedy::CheckImage));
        }
        let flags = entry.flags.get();
        let known = RawBitmap::IN_USE | RawBitmap::AUTO | RawBitmap::EXTRA_DATA_COMPATIBLE;
        let has_unknown_data =
            entry.extra_data_size.get() > 0 && flags & RawBitmap::EXTRA_DATA_COMPATIBLE == 0;
        let what = if flags & RawBitmap::IN_USE != 0 {
            "marked as in use"
        } else if flags & !known != 0 || entry.kind != RawBitmap::DIRTY_TRACKING || has_unknown_data
        {
            "of an unknown kind"
        } else {
            return Ok(());
        };
        Err(ImageFile::refuse(format!(
            "the image has a persistent bitmap {what}; remove it first (qemu-img bitmap --remove)"
        )))
    }
}
