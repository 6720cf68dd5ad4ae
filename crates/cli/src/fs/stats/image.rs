//! Statistics that an image itself stores, or that are computed from its bitmaps and its journal.

use std::path::Path;

use extant_ondisk::ext4::Superblock;
use extant_space::{ErrorKind, Result};
use serde::Serialize;

use crate::fs::dump::journal;
use crate::fs::dump::line;
use crate::fs::dump::superblock::{Noted, noted_lines};
use crate::fs::freefrag::{self, FreeSpace};
use crate::fs_image::Image;

#[derive(Debug, Serialize)]
pub(super) struct Stored {
    image: String,
    written_kib: u64,
    mounts: u16,
    errors: u32,
    first_error: Option<Noted>,
    last_error: Option<Noted>,
    groups: u32,
    inodes: u32,
    free_inodes: u32,
    journal: Option<journal::Fields>,
    free_space: FreeSpace,
}

impl Stored {
    pub(super) fn of(path: &Path) -> Result<Self> {
        let image = Image::look(path)?;
        let superblock = image.filesystem().superblock();
        let journal = match journal::Fields::of(image.filesystem()) {
            Ok(fields) => Some(fields),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.at(path)),
        };
        let free_space = freefrag::measure(&image, None)?;
        Ok(Self::from_parts(path, &superblock, journal, free_space))
    }

    fn from_parts(
        path: &Path,
        superblock: &Superblock,
        journal: Option<journal::Fields>,
        free_space: FreeSpace,
    ) -> Self {
        let (raw, layout) = (superblock.raw(), superblock.layout());
        let (first_error, last_error) = superblock.recorded_errors();
        Self {
            image: path.to_string_lossy().into_owned(),
            written_kib: raw.s_kbytes_written.get(),
            mounts: raw.s_mnt_count.get(),
            errors: raw.s_error_count.get(),
            first_error: first_error.map(Noted::from),
            last_error: last_error.map(Noted::from),
            groups: layout.groups(),
            inodes: layout.inodes(),
            free_inodes: superblock.free_inodes(),
            journal,
            free_space,
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut lines = vec![
            line("Lifetime writes", format!("{} KiB", self.written_kib)),
            line("Mounts since check", self.mounts),
            line("Errors recorded", self.errors),
        ];
        lines.extend(noted_lines(&self.first_error, &self.last_error));
        lines.push(line("Groups", self.groups));
        lines.push(line(
            "Inodes",
            format!("{}, {} free", self.inodes, self.free_inodes),
        ));
        lines.extend(self.journal.as_ref().map(journal::Fields::describe));
        format!(
            "As stored; counters of the allocator, the journal and the cache exist while it is mounted\n{}\n\n{}",
            lines.join("\n"),
            self.free_space.describe()
        )
    }
}
