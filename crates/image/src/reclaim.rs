//! Gives back what a change in place has left that was cut off: clusters that are counted and that nothing uses, and the end of
//! the file that none of them is in.

use std::sync::Arc;

use extant_space::{Control, Result, SyncMode};

use crate::check::repair_leaks;
use crate::editor::Editor;
use crate::target::Target;

/// Gives back all that is lost in the image; durable on return. Data stays.
///
/// # Errors
/// Those of [`repair_leaks`], and of images that are not changed here.
pub fn reclaim(target: &Target, control: Control<'_>) -> Result<()> {
    repair_leaks(Arc::clone(target.file()), control)?;
    Editor::open(target, control)?.cut_end()?;
    target.file().sync(SyncMode::All)
}
