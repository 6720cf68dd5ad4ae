//! Progress of a call that takes long, from the thread that runs it.

use std::ffi::{c_int, c_void};

/// Receives the steps that are done, and all steps.
pub(crate) type ProgressFn<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// The callback for C, whose last argument is a pointer to a `&ProgressFn`.
pub(super) unsafe extern "C" fn forward(done: u64, total: u64, progress: *mut c_void) -> c_int {
    // SAFETY: `argument` made it of a reference that lives until the call has returned.
    let progress = unsafe { *progress.cast::<&ProgressFn<'_>>() };
    progress(done, total);
    0
}

/// The last argument of [`forward`], valid as long as `progress` is borrowed.
pub(super) fn argument(progress: &mut &ProgressFn<'_>) -> *mut c_void {
    std::ptr::from_mut(progress).cast()
}
