//! The border to C: every function of the header, and the structures they take.
//!
//! Rules of every function: pointers that may be null say so; text is UTF-8 or whatever bytes name
//! a file; nothing is kept after the return but what a function gives out, which has a function
//! that frees it. Functions may be called from several threads at a time.

mod arguments;
mod cancel;
mod create;
mod error;
mod image;
mod image_convert;
mod image_info;
mod image_materialize;
mod job;
mod map;
mod materialize;
mod pool;
mod probe;
mod volume;
mod volume_job;
mod write_zeroes;

use std::ffi::{CStr, c_char};

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn extant_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}
