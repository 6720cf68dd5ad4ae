//! Frees the clusters leaked by an interrupted in-place change: counted clusters without
//! references, and the end of the file beyond the last used cluster.

use std::sync::Arc;

use extant_space::{Control, Result, SyncMode};

use crate::check::repair_leaks;
use crate::image_file::ImageFile;
use crate::offline_edit::OfflineEdit;

/// Frees all leaked clusters of the image; durable on return. Data is preserved.
///
/// # Errors
/// Those of [`repair_leaks`], and of images that cannot be changed here.
pub fn reclaim(file: &ImageFile, control: Control<'_>) -> Result<()> {
    repair_leaks(Arc::clone(file.file()), control)?;
    OfflineEdit::open(file, control)?.truncate_tail()?;
    file.file().sync(SyncMode::All)
}
