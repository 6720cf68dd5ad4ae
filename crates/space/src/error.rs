//! The error type of all crates: kind, context, source.
//!
//! - The kind is for programs.
//! - The context (operation, path, range, detail, advice) is for users, on one line.
//! - The source is the lower error: one of the operating system, or another [`Error`].
//! - A [`Remedy`] is an alternative request. The line leaves it out: each interface has its own
//!   name for it.
//!
//! An error is a value: a clone shares its context, so that every request of a failed batch can
//! have it. [`Error::from`] converts system errors, [`ErrorKind::errno`] converts back; both are
//! single matches.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ByteRange, Corruption, Remedy};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// The name exists.
    AlreadyExists,
    /// A directory, fifo, socket or device where a file is expected, or the reverse.
    WrongType,
    /// Another file type where a directory is expected.
    NotDirectory,
    /// A directory where another file type is expected.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The inode has the maximal link count.
    TooManyLinks,
    /// A loop of symbolic links, or too many of them.
    TooManySymlinks,
    /// A name or target longer than the file system can store.
    NameTooLong,
    /// The file has no such extended attribute.
    NoAttribute,
    /// The file system or device is read-only.
    ReadOnly,
    /// File permissions forbid it (`EACCES`).
    PermissionDenied,
    /// The file is immutable or append-only.
    Immutable,
    /// The operating system forbids it independently of file permissions (`EPERM`).
    NotPermitted,
    /// Another process has the file open, or it is an active swap file.
    InUse,
    /// The file system or device is full.
    NoSpace,
    /// The quota of the user, group or project is exceeded.
    QuotaExceeded,
    /// Past the largest size of the file system or the process (`RLIMIT_FSIZE`).
    TooLarge,
    /// The argument is invalid in every state of the file.
    InvalidArgument,
    /// The file system or device does not offer the operation.
    Unsupported,
    /// Copy-on-write: written space would not stay in place.
    CopyOnWrite,
    /// The operation reported success, but verification found another result.
    NotKept,
    /// The caller's token was cancelled.
    Cancelled,
    /// Stored data is inconsistent or has a wrong checksum.
    Corrupt,
    /// Reading or writing the device failed.
    Io,
}

impl ErrorKind {
    /// A description, the text of `strerror` where there is one.
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

    /// The error number for the kind at a system-call interface.
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
            libc::ENOENT => Self::NotFound,
            libc::EEXIST => Self::AlreadyExists,
            libc::ENODEV | libc::ESPIPE | libc::ENXIO => Self::WrongType,
            libc::ENOTDIR => Self::NotDirectory,
            libc::EISDIR => Self::IsDirectory,
            libc::ENOTEMPTY => Self::NotEmpty,
            libc::EMLINK => Self::TooManyLinks,
            libc::ELOOP => Self::TooManySymlinks,
            libc::ENAMETOOLONG => Self::NameTooLong,
            libc::ENODATA => Self::NoAttribute,
            libc::EROFS => Self::ReadOnly,
            libc::EACCES => Self::PermissionDenied,
            libc::EPERM => Self::NotPermitted,
            libc::ETXTBSY | libc::EBUSY | libc::EAGAIN | libc::EADDRINUSE => Self::InUse,
            libc::ENOSPC => Self::NoSpace,
            libc::EDQUOT => Self::QuotaExceeded,
            libc::EFBIG | libc::EOVERFLOW => Self::TooLarge,
            libc::EINVAL => Self::InvalidArgument,
            libc::EUCLEAN => Self::Corrupt,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            // EINTR too: a signal interrupted the call, the caller did not cancel it.
            _ => Self::Io,
        }
    }
}

/// An error with its context.
///
/// One pointer, so that a `Result` stays small where nothing fails. Clones share the context.
#[derive(Clone, Debug)]
pub struct Error(Arc<Context>);

#[derive(Clone, Debug)]
struct Context {
    kind: ErrorKind,
    operation: Option<&'static str>,
    path: Option<PathBuf>,
    range: Option<ByteRange>,
    detail: Option<String>,
    advice: Option<String>,
    remedies: Vec<Remedy>,
    corruption: Option<Corruption>,
    source: Option<Source>,
}

#[derive(Clone, Debug)]
enum Source {
    System(Arc<io::Error>),
    /// Its line is the description, unless there is a detail.
    Lower(Error),
}

impl Error {
    /// An error of `kind` without context.
    pub fn new(kind: ErrorKind) -> Self {
        Self::with_source(kind, None)
    }

    /// An error of the same kind with `cause` as its source. It has the same line, but no path or
    /// range of its own: for another request that fails for the same reason.
    pub fn caused_by(cause: Self) -> Self {
        Self::with_source(cause.kind(), Some(Source::Lower(cause)))
    }

    fn with_source(kind: ErrorKind, source: Option<Source>) -> Self {
        Self(Arc::new(Context {
            kind,
            operation: None,
            path: None,
            range: None,
            detail: None,
            advice: None,
            remedies: Vec::new(),
            corruption: None,
            source,
        }))
    }

    /// The context, copied if clones share it.
    fn context(&mut self) -> &mut Context {
        Arc::make_mut(&mut self.0)
    }

    /// Stored data that breaks a rule of its format; `detail` is the line for users.
    #[cold]
    pub fn corrupt(corruption: Corruption, detail: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Corrupt).detail(detail);
        error.context().corruption = Some(corruption);
        error
    }

    /// An error of the operating system, by its number.
    pub fn from_errno(errno: i32) -> Self {
        io::Error::from_raw_os_error(errno).into()
    }

    /// Operation in progress, as a verb: `allocate`, `write`.
    pub fn during(mut self, operation: &'static str) -> Self {
        self.context().operation.get_or_insert(operation);
        self
    }

    /// The file or directory. The innermost path stays.
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.context()
            .path
            .get_or_insert_with(|| path.as_ref().to_path_buf());
        self
    }

    /// Replaces the path: for an operation on a temporary file whose name means nothing to the
    /// user.
    pub fn about(mut self, path: impl AsRef<Path>) -> Self {
        self.context().path = Some(path.as_ref().to_path_buf());
        self
    }

    /// The bytes of the file.
    pub fn in_range(mut self, range: ByteRange) -> Self {
        self.context().range.get_or_insert(range);
        self
    }

    /// The error of a range in the layer above: of an image in a file, or of a file in a file
    /// system. The lower error becomes its source; advice and remedies move up.
    pub fn in_range_above(mut self, range: ByteRange) -> Self {
        let context = self.context();
        let advice = context.advice.take();
        let remedies = mem::take(&mut context.remedies);
        let mut above = Self::caused_by(self).in_range(range);
        let context = above.context();
        context.advice = advice;
        context.remedies = remedies;
        above
    }

    /// Replaces the description of the kind or source by a more exact one.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.context().detail = Some(detail.into());
        self
    }

    /// Adds a remark to the description: `description (remark)`.
    pub fn remark(self, remark: impl fmt::Display) -> Self {
        let detail = format!("{} ({remark})", self.0.description());
        self.detail(detail)
    }

    /// Remedy for the user.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.context().advice = Some(advice.into());
        self
    }

    /// Adds an alternative request, which the interface that shows the error translates.
    pub fn remedy(mut self, remedy: Remedy) -> Self {
        self.context().remedies.push(remedy);
        self
    }

    /// The same error under a more exact kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.context().kind = kind;
        self
    }

    /// The class of the error.
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

    /// Alternative requests, the best first.
    pub fn remedies(&self) -> &[Remedy] {
        &self.0.remedies
    }

    /// The rule that stored data breaks, of this error or the one that caused it.
    pub fn corruption(&self) -> Option<&Corruption> {
        match (&self.0.corruption, &self.0.source) {
            (None, Some(Source::Lower(error))) => error.corruption(),
            (corruption, _) => corruption.as_ref(),
        }
    }

    /// The error number of the system error that caused it, if any.
    pub fn os_errno(&self) -> Option<i32> {
        match self.0.source.as_ref()? {
            Source::System(error) => error.raw_os_error(),
            Source::Lower(error) => error.os_errno(),
        }
    }
}

impl Context {
    /// The cause, without its place.
    fn description(&self) -> Cow<'_, str> {
        match (&self.detail, &self.source) {
            (Some(detail), _) => detail.into(),
            (None, Some(Source::Lower(error))) => error.to_string().into(),
            // Without a number it has a text of its own.
            (None, Some(Source::System(error)))
                if self.kind == ErrorKind::Io || error.raw_os_error().is_none() =>
            {
                error.to_string().into()
            }
            (None, _) => self.kind.description().into(),
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(errno) => ErrorKind::from_errno(errno),
            // Of `extant_sys::socket_file`, which names the process that listens.
            None if source.kind() == io::ErrorKind::AddrInUse => ErrorKind::InUse,
            None => ErrorKind::Io,
        };
        Self::with_source(kind, Some(Source::System(Arc::new(source))))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.source.as_ref()? {
            Source::System(error) => Some(&**error),
            Source::Lower(error) => Some(error),
        }
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
        f.write_str(&inner.description())?;
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
    fn corruption_is_compared_without_the_numbers_and_seen_through_layers() {
        let error = |line: &str| Error::corrupt(Corruption::range("inode 5", "i_size"), line);
        let lower = error("inode 5: i_size is 7, outside 0 to 4");
        assert_eq!(lower.kind(), ErrorKind::Corrupt);
        let above = lower.in_range_above(ByteRange::new(0, 4096));
        let other = error("inode 5: i_size is 9, outside 0 to 4");
        assert_eq!(above.corruption(), other.corruption());
        assert_ne!(above.corruption(), Some(&Corruption::checksum("inode 5")));
        assert_eq!(Error::new(ErrorKind::Corrupt).corruption(), None);
    }

    #[test]
    fn error_of_a_range_above_keeps_the_lower_one_as_source() {
        let lower = Error::from_errno(libc::ENOSPC)
            .during("write")
            .in_range(ByteRange::new(65536, 69632))
            .at("/srv/a.qcow2");
        let line = lower.to_string();
        let error = lower
            .advice("free some space")
            .in_range_above(ByteRange::new(0, 4096));
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), line);
        let source: &Error = source.downcast_ref().unwrap();
        assert_eq!(source.range(), Some(ByteRange::new(65536, 69632)));
        assert_eq!(error.range(), Some(ByteRange::new(0, 4096)));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.os_errno(), Some(libc::ENOSPC));
        assert_eq!(
            error.to_string(),
            "bytes 0 to 4096: /srv/a.qcow2: write bytes 65536 to 69632: no space left on device; free some space"
        );
    }

    #[test]
    fn error_caused_by_another_has_its_line_and_errno_but_not_its_range() {
        let cause = Error::from_errno(libc::EDQUOT)
            .during("sync")
            .in_range(ByteRange::new(0, 512))
            .at("/srv/a");
        let error = Error::caused_by(cause.clone());
        assert_eq!(error.to_string(), cause.to_string());
        assert_eq!((error.path(), error.range()), (None, None));
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        assert_eq!(error.os_errno(), Some(libc::EDQUOT));
    }

    #[test]
    fn change_of_a_clone_leaves_the_original() {
        let error = Error::new(ErrorKind::Io).at("a");
        let other = error.clone().during("read").with_kind(ErrorKind::NoSpace);
        assert_eq!(error.to_string(), "a: input/output error");
        assert_eq!(other.to_string(), "a: read: no space left on device");
    }

    #[test]
    fn result_is_one_pointer() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn forbidden_call_is_not_taken_for_an_immutable_file() {
        let error = Error::from_errno(libc::EPERM).at("/dev/fuse");
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert_eq!(error.to_string(), "/dev/fuse: operation not permitted");
    }

    #[test]
    fn address_in_use_keeps_the_text_that_names_its_user() {
        let source = io::Error::new(io::ErrorKind::AddrInUse, "qemu-nbd (pid 7) listens there");
        let error = Error::from(source).at("/run/disk");
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert_eq!(
            error.to_string(),
            "/run/disk: qemu-nbd (pid 7) listens there"
        );
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
    fn errno_of_every_kind_maps_back_to_the_kind_or_the_general_one() {
        use ErrorKind::*;
        // Exhaustive, so that a new kind needs a row here and in `ALL`.
        let general = |kind| match kind {
            NotFound | AlreadyExists | NotDirectory | IsDirectory | NotEmpty | TooManyLinks
            | TooManySymlinks | NameTooLong | NoAttribute | ReadOnly | PermissionDenied
            | NotPermitted | InUse | NoSpace | QuotaExceeded | TooLarge | InvalidArgument
            | Unsupported | Corrupt | Io => kind,
            WrongType => InvalidArgument,
            Immutable => NotPermitted,
            CopyOnWrite => Unsupported,
            NotKept | Cancelled => Io,
        };
        const ALL: [ErrorKind; 25] = [
            NotFound,
            AlreadyExists,
            WrongType,
            NotDirectory,
            IsDirectory,
            NotEmpty,
            TooManyLinks,
            TooManySymlinks,
            NameTooLong,
            NoAttribute,
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
        ];
        for (at, kind) in ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "{kind:?} is missing or out of order");
            let back = Error::from_errno(kind.errno()).kind();
            assert_eq!(back, general(kind), "{kind:?}");
        }
        assert_eq!(ALL.len(), Io as usize + 1);
    }
}
