//! The mark of a partial file: an extended attribute that only its owner can set.
//!
//! A run resumes a partial file because its written part is all zeros. The name proves nothing: in
//! a shared directory another user may rename any file of this user to that name. The mark is set
//! on a new file, and removed before the first byte of contents and before the final rename, so
//! that a marked file holds only zeros, wherever it is moved.
//!
//! On a file system without such attributes a file has no mark, and is read first.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

const NAME: &str = "user.extant.partial";

/// Marks a file that is empty. A file that cannot be marked is read by the run that finds it.
pub(crate) fn set(file: &impl AsFd) {
    let _ = rustix::fs::fsetxattr(file, NAME, b"1", XattrFlags::empty());
}

pub(crate) fn is_set(file: &impl AsFd) -> bool {
    let mut value = [0; 8];
    rustix::fs::fgetxattr(file, NAME, &mut value).is_ok()
}

/// Takes the mark away.
///
/// # Errors
/// If the file remains marked.
pub(crate) fn clear(file: &impl AsFd) -> io::Result<()> {
    match rustix::fs::fremovexattr(file, NAME) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(_) if !is_set(file) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
