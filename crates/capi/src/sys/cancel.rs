//! Requests to stop.

use super::arguments::Cancel;

/// A new request to stop. Several operations may share it. Free it with `extant_cancel_free`.
#[unsafe(no_mangle)]
pub extern "C" fn extant_cancel_new() -> *mut Cancel {
    Box::into_raw(Box::default())
}

/// Stops every operation that was given `cancel`, now and later: each returns
/// `EXTANT_STATUS_CANCELLED` within 100 ms. May be called from any thread and from a signal
/// handler.
///
/// # Safety
/// `cancel` is null or from `extant_cancel_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_cancel_now(cancel: *const Cancel) {
    // SAFETY: as promised.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.token.cancel();
    }
}

/// Frees what no operation uses any more.
///
/// # Safety
/// `cancel` is null or from `extant_cancel_new`, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_cancel_free(cancel: *mut Cancel) {
    if !cancel.is_null() {
        // SAFETY: as promised.
        drop(unsafe { Box::from_raw(cancel) });
    }
}
