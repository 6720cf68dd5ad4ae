//! Ranges that read as zeros and are written.

use std::ffi::{c_char, c_int};

use extant_hostfs::{Access, Fallback, HostFile, Pace, write_zeroes};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::arguments::{OpenFile, OperationControl, path, with_control, with_file};
use super::error::call;
use crate::outcome::{Failure, Status};

/// Zeroes `length` bytes from `offset` of the file `path` and leaves them written, by
/// `FALLOC_FL_WRITE_ZEROES` if the kernel and the disk support it, else by writing. The file grows
/// to the end of the range. A cancel leaves a part of it zeroed.
///
/// `control` and `error` may be null.
///
/// # Safety
/// Every non-null pointer is valid for its type. `error` gets null, or what `extant_error_free`
/// frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_write_zeroes(
    path: *const c_char,
    offset: u64,
    length: u64,
    control: *const OperationControl,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let file = HostFile::open(unsafe { self::path(path) }?, Access::ReadWrite)?;
        // SAFETY: likewise.
        unsafe { zero(&file, offset, length, control) }
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// The same for a file that is open for reading and writing.
///
/// # Safety
/// As of `extant_write_zeroes`; the descriptor stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_write_zeroes_fd(
    fd: c_int,
    offset: u64,
    length: u64,
    control: *const OperationControl,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    let work = || unsafe {
        with_file(fd, OpenFile::Another, |file| {
            zero(file, offset, length, control)
        })
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// # Safety
/// As of `extant_write_zeroes`.
unsafe fn zero(
    file: &HostFile,
    offset: u64,
    length: u64,
    control: *const OperationControl,
) -> Result<()> {
    let end = offset.checked_add(length).filter(|_| length > 0);
    let end = end.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument)
            .at(file.path())
            .detail(format!("{length} bytes from {offset} are no range"))
    })?;
    let range = ByteRange::new(offset, end);
    // SAFETY: as promised.
    let done = unsafe {
        with_control(control, |control| {
            write_zeroes(file, range, Fallback::Write, &Pace::Full, control)
        })
    };
    done.map(drop).map_err(|error| error.at(file.path()))
}
