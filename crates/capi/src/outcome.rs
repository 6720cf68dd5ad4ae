//! Outcomes as C has them: a status, and an error that can be asked.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use extant_space::{Error, ErrorKind, Result};

/// Status of a call. 0 is success; new ones may be added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// An argument that can never be right.
    InvalidArgument,
    /// No such file or directory.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// Not a regular file (or block device, where that will do).
    WrongType,
    /// The file system or device is read-only.
    ReadOnly,
    /// The user may not do this, or the file is immutable.
    PermissionDenied,
    /// Another process has the file open, or it is an active swap file.
    InUse,
    /// The file system is full.
    NoSpace,
    /// A quota is used up.
    QuotaExceeded,
    /// Past the largest size of the file system or of the process.
    TooLarge,
    /// The file system does not offer the operation.
    Unsupported,
    /// Copy-on-write: written space would not stay in place.
    CopyOnWrite,
    /// The file system reported success, and the result differs from the request.
    NotKept,
    /// The caller asked to stop.
    Cancelled,
    /// Reading or writing failed, or what is stored contradicts itself.
    Io,
    /// A bug in this library.
    Internal,
}

impl From<ErrorKind> for Status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument | ErrorKind::NameTooLong => Self::InvalidArgument,
            ErrorKind::NotFound | ErrorKind::NotDirectory => Self::NotFound,
            ErrorKind::AlreadyExists => Self::AlreadyExists,
            ErrorKind::WrongType | ErrorKind::IsDirectory | ErrorKind::TooManySymlinks => {
                Self::WrongType
            }
            ErrorKind::ReadOnly => Self::ReadOnly,
            ErrorKind::PermissionDenied | ErrorKind::Immutable | ErrorKind::NotPermitted => {
                Self::PermissionDenied
            }
            ErrorKind::InUse => Self::InUse,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::QuotaExceeded => Self::QuotaExceeded,
            ErrorKind::TooLarge => Self::TooLarge,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::CopyOnWrite => Self::CopyOnWrite,
            ErrorKind::NotKept => Self::NotKept,
            ErrorKind::Cancelled => Self::Cancelled,
            _ => Self::Io,
        }
    }
}

/// Cause of a failed call.
pub struct Failure {
    pub(crate) status: Status,
    pub(crate) errno: i32,
    pub(crate) message: CString,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            status: error.kind().into(),
            errno: error.os_errno().unwrap_or_else(|| error.kind().errno()),
            message: text(&error.to_string()),
        }
    }
}

/// Runs the work of a call.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> std::result::Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(Failure::from),
        // The panic has been reported on stderr.
        Err(_) => Err(Failure {
            status: Status::Internal,
            errno: ErrorKind::Io.errno(),
            message: text("a bug in libextant: see stderr"),
        }),
    }
}

/// As C has text. Messages escape what a terminal would not show, so there is no NUL to be dropped.
fn text(message: &str) -> CString {
    let bytes: Vec<u8> = message.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).expect("NULs are left out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_status_number_and_line() {
        let error = Error::from_errno(28).during("allocate").at("/srv/a");
        let failure = guarded(|| Err(error)).unwrap_err();
        assert_eq!((failure.status, failure.errno), (Status::NoSpace, 28));
        let line = failure.message.to_str().unwrap();
        assert_eq!(line, "/srv/a: allocate: no space left on device");
    }

    #[test]
    fn panic_is_a_failure() {
        let failure = guarded(|| panic!("on purpose")).unwrap_err();
        assert_eq!(failure.status, Status::Internal);
    }
}
