//! Persistent bitmaps: space of the image that no table of the guest's names.

use extant_space::{ByteRange, Result};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Check;
use crate::format::{Autoclear, Extensions, RawBitmap, RawBitmaps};
use crate::qcow2::read_table;

/// Read at once.
const PIECE_ENTRIES: u64 = 64 << 10;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

impl Check<'_> {
    /// The directory, the tables that it names, and the clusters that these name.
    pub(super) fn count_bitmaps(&mut self) -> Result<()> {
        let image = self.image;
        // QEMU refuses an invalid extension, also if another one follows, and uses the last one.
        let mut valid = None;
        for data in image.header.extensions.all(Extensions::BITMAPS) {
            valid = self.bitmap_directory(data);
        }
        let Some((count, directory)) = valid else {
            return Ok(());
        };
        self.add(directory, || "bitmap directory".into());
        let mut at = directory.start();
        for index in 0..count {
            self.control.cancel.check()?;
            let mut entry = RawBitmap::new_zeroed();
            if at + size_of::<RawBitmap>() as u64 > directory.end() {
                self.report.corrupt(format_args!(
                    "bitmap {index}: past the end of the directory"
                ));
                return Ok(());
            }
            image.file.read_at(entry.as_mut_bytes(), at)?;
            at += entry.entry_bytes();
            self.count_bitmap(index, &entry)?;
        }
        Ok(())
    }

    /// The number of bitmaps and their directory in the extension `data`; `None` if it is invalid.
    fn bitmap_directory(&mut self, data: &[u8]) -> Option<(u32, ByteRange)> {
        let Ok(raw) = RawBitmaps::read_from_bytes(data) else {
            self.report.corrupt(format_args!(
                "bitmaps extension: {} bytes instead of {}",
                data.len(),
                size_of::<RawBitmaps>()
            ));
            return None;
        };
        if !self.image.header.autoclear.contains(Autoclear::BITMAPS) {
            return None;
        }
        if raw.reserved.get() != 0 {
            self.report.corrupt(format_args!(
                "bitmaps extension: reserved field {:#x}",
                raw.reserved.get()
            ));
        }
        if raw.nb_bitmaps.get() == 0 {
            self.report.corrupt("bitmaps extension: no bitmaps");
        }
        let (offset, bytes) = (
            raw.bitmap_directory_offset.get(),
            raw.bitmap_directory_size.get(),
        );
        let directory = ByteRange::at(offset, bytes).filter(|range| {
            range.end() <= self.file_bytes
                && range.len() <= RawBitmaps::DIRECTORY_BYTES_MAX
                && self.geometry.is_aligned(range.start())
        });
        if directory.is_none() {
            self.report.corrupt(format_args!(
                "bitmaps extension: a directory of {bytes} bytes at {offset:#x}"
            ));
        }
        Some((raw.nb_bitmaps.get(), directory?))
    }

    fn count_bitmap(&mut self, index: u32, entry: &RawBitmap) -> Result<()> {
        let (offset, entries) = (
            entry.bitmap_table_offset.get(),
            entry.bitmap_table_size.get(),
        );
        let range = ByteRange::at(offset, u64::from(entries) * 8).filter(|range| {
            range.end() <= self.file_bytes && entries <= RawBitmap::TABLE_ENTRIES_MAX
        });
        let Some(range) = range.filter(|range| self.geometry.is_aligned(range.start())) else {
            self.report.corrupt(format_args!(
                "bitmap {index}: a table of {entries} entries at {offset:#x}"
            ));
            return Ok(());
        };
        self.add(range, || format!("table of bitmap {index}"));
        let needed = entry.table_entries(self.geometry, self.image.header.virtual_bytes);
        let is_used = entry.flags.get() & RawBitmap::IN_USE != 0;
        // The program that uses it sets the size when it saves the bitmap.
        if !is_used && needed != Some(entries.into()) {
            let virtual_bytes = self.image.header.virtual_bytes;
            self.report.corrupt(format_args!(
                "bitmap {index}: a table of {entries} entries does not fit a disk of {virtual_bytes} bytes"
            ));
        }
        let mut first = 0;
        while first < u64::from(entries) {
            let count = PIECE_ENTRIES.min(u64::from(entries) - first);
            for raw in read_table(&*self.image.file, offset + first * 8, count)? {
                let place = raw & OFFSET;
                if place != 0 {
                    let range = ByteRange::new(place, place + self.geometry.cluster_bytes());
                    self.add(range, || format!("bitmap {index}"));
                }
            }
            first += count;
        }
        Ok(())
    }
}
