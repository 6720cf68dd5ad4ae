//! Capabilities of a path.

use std::ffi::c_char;

use extant_hostfs::{Strategy, probe};

use super::arguments::{characters, path};
use super::error::call;
use crate::outcome::{Failure, Status};

/// How space would become written.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all: `reason` says why.
    None,
    /// By the kernel's `FALLOC_FL_WRITE_ZEROES`.
    WriteZeroes,
    /// Allocated, then overwritten with zeros.
    Overwrite,
    /// Zeros are written in order, as there is no fallocate.
    WriteInOrder,
}

/// Capabilities of a path.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlaceReport {
    /// Strategy that `extant_create` would use: `extant_way`.
    pub way: u32,
    /// 1: files can share space (reflinks).
    pub has_reflink: u32,
    /// Bytes of a block of the file system.
    pub block_bytes: u64,
    /// Bytes free for this user.
    pub available_bytes: u64,
    /// Name of the file system, as mount(8) has it; ends with NUL.
    pub filesystem: [c_char; 32],
    /// Why that way, or why none; ends with NUL, and is cut where it is longer.
    pub reason: [c_char; 200],
}

/// Tries what the file system at `path` can do, on scratch files of which nothing stays. `path` is
/// a directory, or a file in the one that is tried.
///
/// `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_probe(
    path: *const c_char,
    report: *mut PlaceReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let found = probe(unsafe { self::path(path) }?)?;
        let reason = match (&found.plan, &found.refusal) {
            (Some(plan), _) => plan.reason.as_str(),
            (None, Some(refusal)) => refusal.as_str(),
            (None, None) => "",
        };
        let way = match found.plan.as_ref().map(|plan| plan.strategy) {
            None => Way::None,
            Some(Strategy::WriteZeroes) => Way::WriteZeroes,
            Some(Strategy::Overwrite) => Way::Overwrite,
            Some(Strategy::WriteInOrder) => Way::WriteInOrder,
        };
        let told = PlaceReport {
            way: way as u32,
            has_reflink: found.has_reflink.into(),
            block_bytes: found.filesystem.block_bytes,
            available_bytes: found.filesystem.available_bytes,
            filesystem: characters(&found.filesystem.name),
            reason: characters(reason),
        };
        if !report.is_null() {
            // SAFETY: likewise.
            unsafe { report.write(told) };
        }
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}
