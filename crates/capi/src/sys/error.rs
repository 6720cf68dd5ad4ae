//! Errors that can be asked.

use std::ffi::{c_char, c_int};
use std::ptr;

use extant_space::Result;

use crate::outcome::{Failure, Status, guarded};

/// Runs the work of a call. With `error`, what went wrong goes there, or null.
///
/// # Safety
/// `error` is null or can be written to.
pub(super) unsafe fn call(error: *mut *mut Failure, work: impl FnOnce() -> Result<()>) -> Status {
    let (status, failure) = match guarded(work) {
        Ok(()) => (Status::Ok, ptr::null_mut()),
        Err(failure) if error.is_null() => (failure.status, ptr::null_mut()),
        Err(failure) => (failure.status, Box::into_raw(Box::new(failure))),
    };
    if !error.is_null() {
        // SAFETY: as promised.
        unsafe { error.write(failure) };
    }
    status
}

/// The line for people: path, what was being done, what went wrong, what can be done about it.
/// Lives as long as the error. Empty for null.
///
/// # Safety
/// `error` is null or from a call of this library, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_error_message(error: *const Failure) -> *const c_char {
    // SAFETY: as promised.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// The `errno` that fits best: the operating system's own, where it was the one that refused. 0 for
/// null.
///
/// # Safety
/// `error` is null or from a call of this library, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_error_errno(error: *const Failure) -> c_int {
    // SAFETY: as promised.
    unsafe { error.as_ref() }.map_or(0, |error| error.errno)
}

/// # Safety
/// `error` is null or from a call of this library, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_error_free(error: *mut Failure) {
    if !error.is_null() {
        // SAFETY: as promised.
        drop(unsafe { Box::from_raw(error) });
    }
}
