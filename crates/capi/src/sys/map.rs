//! Extent maps.

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;

use extant_hostfs::HostFile;
use extant_space::{ByteRange, Error, ErrorKind, ExtentFlags, ExtentState, Result, SpaceFile};

use super::arguments::{OpenFile, path, with_file};
use super::error::call;
use crate::outcome::{Failure, Status};

/// State of a range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is allocated; reads return zeros.
    Hole,
    /// Allocated, never written; reads return zeros, and the first write changes metadata.
    Unwritten,
    /// Allocated, holding data, which may be zeros.
    Written,
}

/// The next overwrite allocates: other files use the same space.
pub const EXTENT_SHARED: u32 = 1;
/// Compressed, inline, tail-packed or encrypted: not plain blocks.
pub const EXTENT_ENCODED: u32 = 2;
/// Data in memory that has no place yet.
pub const EXTENT_DELAYED: u32 = 4;

/// `physical` of an extent without a location, or of a map without locations.
pub const NO_PLACE: u64 = u64::MAX;

/// A range of a file in one state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapExtent {
    /// First byte in the file.
    pub logical: u64,
    /// Bytes.
    pub length: u64,
    /// First byte on the device, or `EXTANT_NO_PLACE`.
    pub physical: u64,
    /// `extant_state`.
    pub state: u32,
    /// `EXTANT_EXTENT_SHARED` and others.
    pub flags: u32,
}

/// Takes one extent after the other, holes included; anything but 0 ends the visit, which is no
/// error.
pub type ExtentCallback =
    Option<unsafe extern "C" fn(extent: *const MapExtent, user: *mut c_void) -> c_int>;

/// Visits the extents of `length` bytes from `offset` of the file `path`, cut at its end;
/// `UINT64_MAX` are all.
///
/// `error` may be null.
///
/// # Safety
/// `visit` takes `user`; what is not null is what its type says. `error` gets null, or what
/// `extant_error_free` frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_map(
    path: *const c_char,
    offset: u64,
    length: u64,
    visit: ExtentCallback,
    user: *mut c_void,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let file = HostFile::open_read(unsafe { self::path(path) }?)?;
        // SAFETY: likewise.
        unsafe { map(&file, offset, length, visit, user) }
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// The same for an open file.
///
/// # Safety
/// As of `extant_map`; the descriptor stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_map_fd(
    fd: c_int,
    offset: u64,
    length: u64,
    visit: ExtentCallback,
    user: *mut c_void,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    let work = || unsafe {
        with_file(fd, OpenFile::Another, |file| {
            map(file, offset, length, visit, user)
        })
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// # Safety
/// As of `extant_map`.
unsafe fn map(
    file: &HostFile,
    offset: u64,
    length: u64,
    visit: ExtentCallback,
    user: *mut c_void,
) -> Result<()> {
    let Some(visit) = visit else {
        return Err(Error::new(ErrorKind::InvalidArgument).detail("visit is null"));
    };
    let size = file.size()?;
    let end = offset.saturating_add(length).min(size);
    let range = ByteRange::new(offset.min(end), end);
    if range.is_empty() {
        return Ok(());
    }
    let done = file.for_each_extent(range, &mut |extent| {
        let Some(extent) = extent.clip(range) else {
            return ControlFlow::Continue(());
        };
        let flags = [
            (ExtentFlags::SHARED, EXTENT_SHARED),
            (ExtentFlags::ENCODED, EXTENT_ENCODED),
            (ExtentFlags::DELAYED, EXTENT_DELAYED),
        ];
        let set = flags
            .iter()
            .filter(|(flag, _)| extent.flags.contains(*flag));
        let told = MapExtent {
            logical: extent.logical.start(),
            length: extent.logical.len(),
            physical: extent.physical.unwrap_or(NO_PLACE),
            state: match extent.state {
                ExtentState::Hole => State::Hole,
                ExtentState::Unwritten => State::Unwritten,
                ExtentState::Written => State::Written,
            } as u32,
            flags: set.map(|(_, bit)| bit).sum(),
        };
        // SAFETY: as promised.
        match unsafe { visit(&told, user) } {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    done.map_err(|error| error.at(file.path()))
}
