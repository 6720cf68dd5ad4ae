//! The one shape of errors in the project: kind, context, source.
//!
//! The kind is what programs decide on, the context (operation, path, range,
//! detail, advice) is what people read, on one line. A [`Remedy`] is what the caller
//! could ask for instead: the line leaves it out, as only the caller's interface has words for it. Errors of the operating
//! system come in through [`Error::from`], and leave again through
//! [`ErrorKind::errno`]; both are single matches.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{ByteRange, Remedy};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a program needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// A directory, fifo, socket or device where a file is expected, or the reverse.
    WrongType,
    /// Something else where a directory is expected.
    NotDirectory,
    /// A directory where something else is expected.
    IsDirectory,
    /// A directory that has names in it.
    NotEmpty,
    /// More names than an inode can have.
    TooManyLinks,
    /// Symbolic links that lead to each other, or too many of them.
    TooManySymlinks,
    /// A name or target longer than the file system can store.
    NameTooLong,
    /// The file has no such extended attribute.
    NoAttribute,
    /// The file system or device is read-only.
    ReadOnly,
    /// The user may not do this.
    PermissionDenied,
    /// The file is immutable or append-only.
    Immutable,
    /// The operating system forbids it, whatever the permissions of the file say (`EPERM`).
    NotPermitted,
    /// Somebody else has the file open, or it is an active swap file.
    InUse,
    /// The file system or device is full.
    NoSpace,
    /// The user's, group's or project's quota is used up.
    QuotaExceeded,
    /// Past the largest size of the file system or the process (`RLIMIT_FSIZE`).
    TooLarge,
    /// An argument that can never be right.
    InvalidArgument,
    /// The file system or device does not offer the operation.
    Unsupported,
    /// Copy-on-write: written space would not stay in place.
    CopyOnWrite,
    /// The operation reported success and the result is not what was asked for.
    NotKept,
    /// The caller's token asked to stop.
    Cancelled,
    /// What is stored contradicts itself or its checksum.
    Corrupt,
    /// Reading or writing the device failed.
    Io,
}

impl ErrorKind {
    /// What the kind means, in the words of the operating system where it has some.
    pub fn description(self) -> &'static str {
        match self {
            Self::NotFound => "no such file or directory",
            Self::AlreadyExists => "file exists",
            Self::WrongType => "not a regular file",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::TooManyLinks => "too many links",
            Self::TooManySymlinks => "too many levels of symbolic links",
            Self::NameTooLong => "file name too long",
            Self::NoAttribute => "no such attribute",
            Self::ReadOnly => "read-only file system",
            Self::PermissionDenied => "permission denied",
            Self::Immutable => "file is immutable or append-only",
            Self::NotPermitted => "operation not permitted",
            Self::InUse => "file is in use",
            Self::NoSpace => "no space left on device",
            Self::QuotaExceeded => "disk quota exceeded",
            Self::TooLarge => "file too large",
            Self::InvalidArgument => "invalid argument",
            Self::Unsupported => "operation not supported",
            Self::CopyOnWrite => "copy-on-write: written space would not stay in place",
            Self::NotKept => "reported as done, but it is not",
            Self::Cancelled => "cancelled",
            Self::Corrupt => "structure needs cleaning",
            Self::Io => "input/output error",
        }
    }

    /// The error number that stands for the kind at a system-call-like edge.
    pub fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::AlreadyExists => libc::EEXIST,
            Self::WrongType => libc::EINVAL,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::TooManyLinks => libc::EMLINK,
            Self::TooManySymlinks => libc::ELOOP,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::NoAttribute => libc::ENODATA,
            Self::ReadOnly => libc::EROFS,
            Self::PermissionDenied => libc::EACCES,
            Self::Immutable | Self::NotPermitted => libc::EPERM,
            Self::InUse => libc::EBUSY,
            Self::NoSpace => libc::ENOSPC,
            Self::QuotaExceeded => libc::EDQUOT,
            Self::TooLarge => libc::EFBIG,
            Self::InvalidArgument => libc::EINVAL,
            Self::Unsupported | Self::CopyOnWrite => libc::EOPNOTSUPP,
            Self::NotKept | Self::Io => libc::EIO,
            Self::Cancelled => libc::EINTR,
            Self::Corrupt => libc::EUCLEAN,
        }
    }

    fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOENT | libc::ENOTDIR => Self::NotFound,
            libc::EEXIST => Self::AlreadyExists,
            libc::EISDIR | libc::ENODEV | libc::ESPIPE | libc::ENXIO | libc::ELOOP => {
                Self::WrongType
            }
            libc::ENOTEMPTY => Self::NotEmpty,
            libc::EMLINK => Self::TooManyLinks,
            libc::ENODATA => Self::NoAttribute,
            libc::EROFS => Self::ReadOnly,
            libc::EACCES => Self::PermissionDenied,
            libc::EPERM => Self::NotPermitted,
            libc::ETXTBSY | libc::EBUSY | libc::EAGAIN | libc::EADDRINUSE => Self::InUse,
            libc::ENOSPC => Self::NoSpace,
            libc::EDQUOT => Self::QuotaExceeded,
            libc::EFBIG | libc::EOVERFLOW => Self::TooLarge,
            libc::EINVAL | libc::ENAMETOOLONG => Self::InvalidArgument,
            libc::EUCLEAN => Self::Corrupt,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            _ => Self::Io,
        }
    }
}

/// An error with its place.
///
/// Boxed, so that a `Result` stays small on the paths where nothing fails.
#[derive(Debug)]
pub struct Error(Box<Context>);

#[derive(Debug)]
struct Context {
    kind: ErrorKind,
    operation: Option<&'static str>,
    path: Option<PathBuf>,
    range: Option<ByteRange>,
    detail: Option<String>,
    advice: Option<String>,
    remedies: Vec<Remedy>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind` without context.
    pub fn new(kind: ErrorKind) -> Self {
        Self(Box::new(Context {
            kind,
            operation: None,
            path: None,
            range: None,
            detail: None,
            advice: None,
            remedies: Vec::new(),
            source: None,
        }))
    }

    /// An error of the operating system, by its number.
    pub fn from_errno(errno: i32) -> Self {
        io::Error::from_raw_os_error(errno).into()
    }

    /// What was being done, as a verb: `allocate`, `write`.
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// The file or directory. The innermost path stays.
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.0
            .path
            .get_or_insert_with(|| path.as_ref().to_path_buf());
        self
    }

    /// Names another file or directory in place of the one known: for who worked on a file under a
    /// name that means nothing to the user.
    pub fn about(mut self, path: impl AsRef<Path>) -> Self {
        self.0.path = Some(path.as_ref().to_path_buf());
        self
    }

    /// The bytes of the file.
    pub fn in_range(mut self, range: ByteRange) -> Self {
        self.0.range.get_or_insert(range);
        self
    }

    /// The same error as one of a range of what lies above the place where it happened: an image in a file, a file in a file
    /// system. That place is told in words, and has its own bytes no longer.
    pub fn in_range_above(mut self, range: ByteRange) -> Self {
        let advice = self.0.advice.take();
        let below = self.to_string();
        Self(Box::new(Context {
            operation: None,
            path: None,
            range: Some(range),
            detail: Some(below),
            advice,
            ..*self.0
        }))
    }

    /// Replaces the kind's description by something more exact.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// What the user can do about it.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// What the caller could ask for instead. Whoever shows the error knows the words for it.
    pub fn remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedies.push(remedy);
        self
    }

    /// The same error under a more exact kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file or directory it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The bytes it is about.
    pub fn range(&self) -> Option<ByteRange> {
        self.0.range
    }

    /// What the caller could ask for instead, the best first.
    pub fn remedies(&self) -> &[Remedy] {
        &self.0.remedies
    }

    /// The error number of the operating system, when one started it.
    pub fn os_errno(&self) -> Option<i32> {
        self.0.source.as_ref()?.raw_os_error()
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(errno) => ErrorKind::from_errno(errno),
            None => ErrorKind::Io,
        };
        let mut error = Self::new(kind);
        error.0.source = Some(source);
        error
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

impl fmt::Display for Error {
    /// `path: operation bytes a to b: what; advice`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(path) = &inner.path {
            // Quoted only when a terminal or a log line would be garbled.
            let shown = path.to_string_lossy();
            if shown.chars().any(char::is_control) {
                write!(f, "{shown:?}: ")?;
            } else {
                write!(f, "{shown}: ")?;
            }
        }
        match (inner.operation, inner.range) {
            (Some(operation), Some(range)) => write!(f, "{operation} {range}: ")?,
            (Some(operation), None) => write!(f, "{operation}: ")?,
            (None, Some(range)) => write!(f, "{range}: ")?,
            (None, None) => {}
        }
        match (&inner.detail, &inner.source) {
            (Some(detail), _) => f.write_str(detail)?,
            (None, Some(source)) if inner.kind == ErrorKind::Io => write!(f, "{source}")?,
            (None, _) => f.write_str(inner.kind.description())?,
        }
        if let Some(advice) = &inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_names_place_cause_and_advice() {
        let error = Error::from_errno(libc::ENOSPC)
            .during("allocate")
            .in_range(ByteRange::new(0, 4096))
            .at("/srv/a.raw")
            .advice("free some space");
        assert_eq!(
            error.to_string(),
            "/srv/a.raw: allocate bytes 0 to 4096: no space left on device; free some space"
        );
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.os_errno(), Some(libc::ENOSPC));
    }

    #[test]
    fn error_of_a_range_above_tells_the_one_below_in_words() {
        let error = Error::from_errno(libc::ENOSPC)
            .during("write")
            .in_range(ByteRange::new(65536, 69632))
            .at("/srv/a.qcow2")
            .advice("free some space")
            .in_range_above(ByteRange::new(0, 4096));
        assert_eq!(error.range(), Some(ByteRange::new(0, 4096)));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.os_errno(), Some(libc::ENOSPC));
        assert_eq!(
            error.to_string(),
            "bytes 0 to 4096: /srv/a.qcow2: write bytes 65536 to 69632: no space left on device; free some space"
        );
    }

    #[test]
    fn forbidden_call_is_not_taken_for_an_immutable_file() {
        let error = Error::from_errno(libc::EPERM).at("/dev/fuse");
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert_eq!(error.to_string(), "/dev/fuse: operation not permitted");
    }

    #[test]
    fn innermost_context_stays() {
        let error = Error::new(ErrorKind::Io)
            .at("inner")
            .during("write")
            .at("outer")
            .during("create");
        assert_eq!(error.to_string(), "inner: write: input/output error");
    }

    #[test]
    fn control_characters_in_a_path_are_escaped() {
        let error = Error::new(ErrorKind::NotFound).at("a\nb");
        assert_eq!(error.to_string(), "\"a\\nb\": no such file or directory");
    }

    #[test]
    fn errno_of_every_kind_maps_back_to_a_kind_with_the_same_errno() {
        use ErrorKind::*;
        for kind in [
            NotFound,
            AlreadyExists,
            WrongType,
            ReadOnly,
            PermissionDenied,
            Immutable,
            NotPermitted,
            InUse,
            NoSpace,
            QuotaExceeded,
            TooLarge,
            InvalidArgument,
            Unsupported,
            CopyOnWrite,
            NotKept,
            Cancelled,
            Corrupt,
            Io,
        ] {
            let back = Error::from_errno(kind.errno()).kind();
            if kind != Cancelled {
                assert_eq!(back.errno(), kind.errno(), "{kind:?}");
            }
        }
    }
}
