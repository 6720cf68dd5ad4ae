//! Strings to and from C, and results of calls.

use std::ffi::{CStr, CString, c_char, c_int};

use extant_space::{Error, ErrorKind, Result};

/// The result of a call: an error is a negative number.
pub(super) fn check(code: c_int) -> Result<c_int> {
    if code < 0 {
        return Err(Error::from_errno(-code));
    }
    Ok(code)
}

/// # Errors
/// `InvalidArgument` for a text with a zero byte.
pub(super) fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument).detail(format!("{text:?} contains a zero byte"))
    })
}

/// A copy of `text`, empty for a null pointer.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero byte.
pub(super) unsafe fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of the function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The text in `bytes`, up to the first zero byte.
pub(super) fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
