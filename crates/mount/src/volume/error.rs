//! The errno of each of the engine's errors.

use extant_space::{Error, ErrorKind};
use rustix::io::Errno;

use super::Volume;
use extant_fuse::operations::Result;

/// The errno of an error.
pub fn errno(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.kind().errno())
}

impl Volume {
    /// Converts the engine's error to an errno. Errors of the device and of the on-disk structures
    /// are logged, because an errno has no location.
    pub(super) fn reply_errno<T>(&self, result: extant_space::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if matches!(kind, ErrorKind::ReadOnly | ErrorKind::Io) && self.filesystem.is_shut_down()
            {
                // As ext4 does; it is no news.
                return Errno::IO;
            }
            if matches!(
                kind,
                ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::NotKept
            ) {
                (self.report)(&error);
            }
            errno(&error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_of_every_kind_is_that_of_ext4() {
        use ErrorKind::*;
        for (kind, expected) in [
            (NotFound, Errno::NOENT),
            (AlreadyExists, Errno::EXIST),
            (WrongType, Errno::INVAL),
            (NotDirectory, Errno::NOTDIR),
            (IsDirectory, Errno::ISDIR),
            (NotEmpty, Errno::NOTEMPTY),
            (TooManyLinks, Errno::MLINK),
            (TooManySymlinks, Errno::LOOP),
            (NameTooLong, Errno::NAMETOOLONG),
            (NoAttribute, Errno::NODATA),
            (ReadOnly, Errno::ROFS),
            (PermissionDenied, Errno::ACCESS),
            (Immutable, Errno::PERM),
            (NotPermitted, Errno::PERM),
            (InUse, Errno::BUSY),
            (NoSpace, Errno::NOSPC),
            (QuotaExceeded, Errno::DQUOT),
            (TooLarge, Errno::FBIG),
            (InvalidArgument, Errno::INVAL),
            (Unsupported, Errno::OPNOTSUPP),
            (CopyOnWrite, Errno::OPNOTSUPP),
            (NotKept, Errno::IO),
            (Cancelled, Errno::INTR),
            (Corrupt, Errno::UCLEAN),
            (Io, Errno::IO),
        ] {
            assert_eq!(errno(&Error::new(kind)), expected, "{kind:?}");
        }
    }
}
