//! `FITRIM`: the ioctl of `fstrim`.
//!
//! The kernel checks no permission for it on FUSE, so it is checked here: root may, and the user
//! who serves the mount, whose image it is.

use extant_space::ByteRange;
use rustix::io::Errno;
use rustix::ioctl::opcode;
use rustix::process::geteuid;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Volume;
use super::caller::is_privileged;
use extant_fuse::operations::{Request, Result};

pub(super) const FITRIM: u32 = opcode::read_write::<TrimRange>(b'X', 121) as u32;

/// `struct fstrim_range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct TrimRange {
    start: u64,
    /// Of the range; then of the discarded space.
    length: u64,
    run_length_min: u64,
}

impl Volume {
    pub(super) fn trim(&self, request: &Request<'_>, range: &mut TrimRange) -> Result<()> {
        if !is_privileged(request.caller) && request.caller.uid != geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        let wanted = ByteRange::new(range.start, range.start.saturating_add(range.length));
        let least = range.run_length_min;
        range.length = self.reply_errno(self.filesystem.trim(wanted, least, request.cancel))?;
        Ok(())
    }
}
