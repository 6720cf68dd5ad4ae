//! The target of an operation: a range of a file with its pace, its control and its lease.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, Extent, Result, SpaceFile};

use crate::exclusion::check_lease;
use crate::file::HostFile;
use crate::filesystem::FileSystem;
use crate::pace::Pace;
use crate::sys::lease::WriteLease;

/// Extents of a map walk between two checks for a cancel.
const CHECK_INTERVAL_EXTENTS: u64 = 1024;

/// A range of a file, and how an operation may work on it.
#[derive(Clone, Copy)]
pub(crate) struct RangeTarget<'a> {
    pub(crate) file: &'a HostFile,
    pub(crate) filesystem: &'a FileSystem,
    pub(crate) range: ByteRange,
    pub(crate) pace: &'a Pace,
    pub(crate) control: Control<'a>,
    /// Excludes other writers; `None` when no other process can know the file, or the caller
    /// excludes them itself.
    pub(crate) lease: Option<&'a WriteLease<'a>>,
}

impl RangeTarget<'_> {
    /// Fails when the operation was cancelled, or when another process waits to open the file.
    pub(crate) fn check_stop(&self) -> Result<()> {
        self.control.cancel.check()?;
        check_lease(self.file, self.lease)
    }

    /// Visits the extents of the range in order, with holes, until `visit` breaks or the operation
    /// is stopped.
    pub(crate) fn for_each_extent(
        &self,
        visit: &mut dyn FnMut(Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.check_stop()?;
        let mut outcome = Ok(());
        let mut seen = 0;
        self.file.for_each_extent(self.range, &mut |extent| {
            seen += 1;
            let checked = match seen % CHECK_INTERVAL_EXTENTS {
                0 => self.check_stop(),
                _ => Ok(()),
            };
            match checked.and_then(|()| visit(extent)) {
                Ok(flow) => flow,
                Err(error) => {
                    outcome = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        outcome
    }
}
