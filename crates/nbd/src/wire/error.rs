//! Error numbers of the protocol, and the mapping of device errors to them and back.

use extant_space::{Error, ErrorKind};

/// An error number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    Permission = 1,
    Io = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    Unsupported = 95,
    Shutdown = 108,
}

impl NbdError {
    /// The number for `error`; `NBD_EIO` for kinds without one.
    pub fn of(error: &Error) -> Self {
        if error.os_errno() == Some(ENOMEM) {
            return Self::NoMemory;
        }
        match error.kind() {
            ErrorKind::ReadOnly
            | ErrorKind::PermissionDenied
            | ErrorKind::Immutable
            | ErrorKind::NotPermitted => Self::Permission,
            ErrorKind::NoSpace | ErrorKind::QuotaExceeded | ErrorKind::TooLarge => Self::NoSpace,
            ErrorKind::InvalidArgument => Self::Invalid,
            ErrorKind::Unsupported | ErrorKind::CopyOnWrite => Self::Unsupported,
            ErrorKind::Cancelled => Self::Shutdown,
            _ => Self::Io,
        }
    }

    /// The error of a device for a number that a server sent; `Io` for numbers without a meaning.
    pub fn to_error(number: u32) -> Error {
        Error::new(match number {
            n if n == Self::Permission as u32 => ErrorKind::NotPermitted,
            n if n == Self::Invalid as u32 => ErrorKind::InvalidArgument,
            n if n == Self::NoSpace as u32 => ErrorKind::NoSpace,
            n if n == Self::Overflow as u32 => ErrorKind::TooLarge,
            n if n == Self::Unsupported as u32 => ErrorKind::Unsupported,
            n if n == Self::NoMemory as u32 => return Error::from_errno(ENOMEM),
            _ => ErrorKind::Io,
        })
    }
}

const ENOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_devices_keep_their_meaning() {
        let expected = [
            (ErrorKind::NoSpace, NbdError::NoSpace),
            (ErrorKind::QuotaExceeded, NbdError::NoSpace),
            (ErrorKind::ReadOnly, NbdError::Permission),
            (ErrorKind::InvalidArgument, NbdError::Invalid),
            (ErrorKind::Unsupported, NbdError::Unsupported),
            (ErrorKind::Corrupt, NbdError::Io),
            (ErrorKind::Io, NbdError::Io),
        ];
        for (kind, error) in expected {
            assert_eq!(NbdError::of(&Error::new(kind)), error, "{kind:?}");
            assert_eq!(NbdError::of(&NbdError::to_error(error as u32)), error);
        }
        assert_eq!(NbdError::of(&Error::from_errno(ENOMEM)), NbdError::NoMemory);
    }
}
