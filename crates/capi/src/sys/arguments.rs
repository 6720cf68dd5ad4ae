//! C's arguments as Rust's values.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice;

use extant_hostfs::{HostFile, Pace};
use extant_space::{
    BackgroundShare, CancelToken, Control, Error, ErrorKind, Phase, Progress, Result,
};

use crate::versioned;

/// Room for a path, with its NUL.
pub const PATH_BYTES: usize = 4096;
/// Room for the name of a volume or pool, with its NUL.
pub const NAME_BYTES: usize = 256;
/// Room for a message, with its NUL.
pub const MESSAGE_BYTES: usize = 1032;

/// Phase of a long operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Others go first.
    Wait,
    /// Data is being read, to find zeros or holes.
    Scan,
    /// Space is being reserved.
    Allocate,
    /// Space is being written with zeros.
    Write,
    /// Written data is being made durable.
    Sync,
    /// The result is being verified.
    Verify,
    /// Data is being copied.
    Copy,
}

/// How far an operation is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationProgress {
    /// The current phase: `extant_step`.
    pub step: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that are in the wanted state already.
    pub done_bytes: u64,
    /// Bytes to bring there in this step.
    pub total_bytes: u64,
}

/// Takes the newest state, at least 5 times a second while it moves, on the thread that made the
/// call; it should return at once. Anything but 0 cancels the operation.
pub type ProgressCallback =
    Option<unsafe extern "C" fn(progress: *const OperationProgress, user: *mut c_void) -> c_int>;

/// A request to stop; see `extant_cancel_new`.
#[derive(Debug, Default)]
pub struct Cancel {
    pub(crate) token: CancelToken,
}

/// The lines between a long operation and its caller. All may be null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OperationControl {
    /// Called with the progress.
    pub progress: ProgressCallback,
    /// Given to `progress` as it is.
    pub user: *mut c_void,
    /// Stops it, from any thread or a signal handler.
    pub cancel: *const Cancel,
}

/// How the disk is used.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceKind {
    /// As fast as it goes, or as `rate_bytes` allows.
    Full,
    /// Yields to all other users of the disk, within `rate_bytes`.
    Background,
}

/// How the disk is used: `kind` is an `extant_pace`; a rate of 0 bytes a second is none, and a
/// share of 0 is the default one of the background.
pub(super) fn pace(kind: u32, rate_bytes: u64, background_basis_points: u32) -> Result<Pace> {
    let share = match background_basis_points {
        0 => None,
        basis_points => Some(BackgroundShare::from_basis_points(basis_points)?),
    };
    let kind = choice(kind, &[PaceKind::Full, PaceKind::Background], "pace")?;
    let background = match (kind, share) {
        (PaceKind::Background, share) => Some(share),
        (PaceKind::Full, None) => None,
        (PaceKind::Full, Some(_)) => {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("background_basis_points is for EXTANT_PACE_BACKGROUND"));
        }
    };
    Ok(Pace::new(background, NonZeroU64::new(rate_bytes)))
}

/// A field without a meaning yet.
pub(super) fn check_reserved(field: u32) -> Result<()> {
    match field {
        0 => Ok(()),
        field => {
            Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("reserved is {field}, not 0")))
        }
    }
}

/// One of a list, by its number.
pub(super) fn choice<T: Copy>(number: u32, all: &[T], name: &str) -> Result<T> {
    let found = usize::try_from(number).ok().and_then(|at| all.get(at));
    found.copied().ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument).detail(format!("{name} {number} is not known"))
    })
}

/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Error::new(ErrorKind::InvalidArgument).detail("path is null"));
    }
    // SAFETY: as promised.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// As of [`path`].
pub(super) unsafe fn optional_path<'a>(path: *const c_char) -> Result<Option<&'a Path>> {
    if path.is_null() {
        return Ok(None);
    }
    // SAFETY: as promised.
    unsafe { self::path(path) }.map(Some)
}

/// The text of the argument `name`.
///
/// # Safety
/// `text` is null or a string.
pub(super) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    let invalid = |what| Error::new(ErrorKind::InvalidArgument).detail(format!("{name} is {what}"));
    if text.is_null() {
        return Err(invalid("null"));
    }
    // SAFETY: as promised.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid("not UTF-8"))
}

/// A field that is 0 or 1.
pub(super) fn flag(number: u32, name: &str) -> Result<bool> {
    choice(number, &[false, true], name)
}

/// The room of a caller for a report. Made before the work of a call, so that a wrong size is
/// refused while nothing has happened yet.
pub(super) struct Room<T> {
    given: *mut T,
    length: usize,
}

impl<T: Copy> Room<T> {
    /// The room at `given`, for at least `least` bytes; none for null.
    ///
    /// # Safety
    /// `T` is plain data that begins with its size as a `usize`; `given` is null, or points to as
    /// many bytes as its first field says, which can be written to until the call returns.
    pub(super) unsafe fn of(given: *mut T, least: usize) -> Result<Self> {
        if given.is_null() {
            return Ok(Self { given, length: 0 });
        }
        // SAFETY: as promised.
        let length = unsafe { given.cast::<usize>().read_unaligned() };
        versioned::check_size(length, on_this_machine::<T>(least))?;
        Ok(Self { given, length })
    }

    /// Writes as much of `report` as there is room for.
    pub(super) fn fill(self, report: T) {
        if self.given.is_null() {
            return;
        }
        let bytes = self.length.min(size_of::<T>()) - size_of::<usize>();
        // SAFETY: as promised to `of`; the size of the caller's structure stays.
        unsafe {
            let from = (&raw const report).cast::<u8>().add(size_of::<usize>());
            let to = self.given.cast::<u8>().add(size_of::<usize>());
            to.copy_from_nonoverlapping(from, bytes);
        }
    }
}

/// As much of `text` as has room, whole characters, with a NUL behind.
pub(super) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    let end = text.floor_char_boundary(N - 1);
    for (to, from) in bytes.iter_mut().zip(text[..end].bytes()) {
        *to = from as c_char;
    }
    bytes
}

/// The bytes of `path`, with a NUL behind.
///
/// # Errors
/// `TooLarge` for a path without room: a part of it would name another file.
pub(super) fn path_characters<const N: usize>(path: &Path) -> Result<[c_char; N]> {
    let from = path.as_os_str().as_bytes();
    let mut bytes = [0; N];
    if from.len() >= N {
        return Err(Error::new(ErrorKind::TooLarge).at(path));
    }
    for (to, from) in bytes.iter_mut().zip(from) {
        *to = *from as c_char;
    }
    Ok(bytes)
}

/// Which open file the work is done on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenFile {
    /// Another one of the same file: nothing that is set on the caller's changes.
    Another,
    /// The caller's: another one would be in the way of a lease.
    Same,
}

/// The caller's file, under its path in `/proc` for messages. The descriptor stays the caller's,
/// and as it is.
///
/// # Errors
/// `WrongType` for what is neither a regular file nor a block device. To open a pipe again would
/// wait for another process.
///
/// # Safety
/// `fd` is no descriptor, or one that stays open during the call.
pub(super) unsafe fn with_file<T>(
    fd: c_int,
    wanted: OpenFile,
    work: impl FnOnce(&HostFile) -> Result<T>,
) -> Result<T> {
    if fd < 0 {
        return Err(Error::new(ErrorKind::InvalidArgument).detail(format!("{fd} is no descriptor")));
    }
    let fail = |source| Error::from(source).at(format!("descriptor {fd}"));
    let flags = fcntl(fd, libc::F_GETFL, 0).map_err(fail)?;
    let link = format!("/proc/self/fd/{fd}");
    let path = std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(&link));
    // SAFETY: as promised. Nothing is closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let kind = file.metadata().map_err(fail)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::new(ErrorKind::WrongType).at(&path));
    }
    // To open the file again would break a lease of the caller's own.
    let has_lease = fcntl(fd, libc::F_GETLEASE, 0).is_ok_and(|kind| kind != libc::F_UNLCK);
    if wanted == OpenFile::Another && !has_lease && flags & libc::O_PATH == 0 {
        let access = flags & libc::O_ACCMODE;
        let mut options = File::options();
        options
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY);
        if let Ok(file) = options.custom_flags(libc::O_NOCTTY).open(&link) {
            return work(&HostFile::from_file(file, &path)?);
        }
    }
    let kept = Kept {
        fd,
        flags,
        position: (&*file).stream_position().ok(),
    };
    // They would turn writes at an offset into others, or make them fail.
    let disturbing = libc::O_APPEND | libc::O_DIRECT | libc::O_NONBLOCK;
    if flags & disturbing != 0 {
        fcntl(fd, libc::F_SETFL, flags & !disturbing).map_err(fail)?;
    }
    let file = file.try_clone().map_err(fail)?;
    let done = HostFile::from_file(file, &path).and_then(|file| work(&file));
    drop(kept);
    done
}

/// Restores the state of the caller's open file.
struct Kept {
    fd: c_int,
    flags: c_int,
    position: Option<u64>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fcntl(self.fd, libc::F_SETFL, self.flags);
        if let Some(position) = self.position {
            // SAFETY: the descriptor is open, as promised to `with_file`; it is not closed here.
            let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd) });
            let _ = file.seek(SeekFrom::Start(position));
        }
    }
}

fn fcntl(fd: c_int, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: all commands used here take an integer; a number that is not open makes the call
    // fail.
    match unsafe { libc::fcntl(fd, command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Runs `work` with the lines to the caller.
///
/// # Safety
/// `control` is null, or points to what stays as it is during the call; its `progress` takes its
/// `user`.
pub(super) unsafe fn with_control<T>(
    control: *const OperationControl,
    work: impl FnOnce(Control<'_>) -> Result<T>,
) -> Result<T> {
    // SAFETY: as promised.
    let Some(control) = (unsafe { control.as_ref() }) else {
        let cancel = CancelToken::new();
        return work(Control::new(&cancel, &extant_space::Silent));
    };
    // SAFETY: as promised.
    let given = unsafe { control.cancel.as_ref() };
    // The callback and a cancel of the job stop this operation alone.
    let cancel = given.map_or_else(CancelToken::new, |cancel| cancel.token.child());
    let tell = |progress: Progress| {
        let Some(callback) = control.progress else {
            return;
        };
        let progress = OperationProgress::from(progress);
        // SAFETY: as promised.
        if unsafe { callback(&progress, control.user) } != 0 {
            cancel.cancel();
        }
    };
    work(Control::new(&cancel, &tell))
}

impl From<Progress> for OperationProgress {
    fn from(progress: Progress) -> Self {
        Self {
            step: step(progress.phase) as u32,
            reserved: 0,
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
        }
    }
}

fn step(phase: Phase) -> Step {
    match phase {
        Phase::Scan => Step::Scan,
        Phase::Allocate => Step::Allocate,
        Phase::Write => Step::Write,
        Phase::Sync => Step::Sync,
        Phase::Verify => Step::Verify,
        Phase::Copy => Step::Copy,
        _ => Step::Wait,
    }
}

/// Sets the defaults in a caller's options of `struct_size` bytes, which may be fewer or more than
/// this library knows. Nothing for null.
///
/// # Safety
/// `T` is plain data that begins with its size as a `usize`; `given` is null, or has `struct_size`
/// bytes that can be written to.
pub(super) unsafe fn initialize<T: Copy>(given: *mut T, default: T, struct_size: usize) {
    if given.is_null() || struct_size < size_of::<usize>() {
        return;
    }
    let known = struct_size.min(size_of::<T>());
    // SAFETY: as promised.
    unsafe {
        let to = given.cast::<u8>();
        to.copy_from_nonoverlapping((&raw const default).cast::<u8>(), known);
        to.add(known).write_bytes(0, struct_size - known);
        given.cast::<usize>().write_unaligned(struct_size);
    }
}

/// The same for a program that does not say its size, but was built with a structure of `bytes`.
///
/// # Safety
/// As of [`initialize`], with the bytes of this machine.
pub(super) unsafe fn initialize_first<T: Copy>(given: *mut T, default: T, bytes: usize) {
    // SAFETY: as promised.
    unsafe { initialize(given, default, on_this_machine::<T>(bytes)) };
}

/// `bytes` of a version of `T`, which are those of 64-bit machines: pointers of others are shorter.
fn on_this_machine<T>(bytes: usize) -> usize {
    bytes.min(size_of::<T>())
}

/// Options as the caller gave them, or `default` for null.
///
/// # Safety
/// `T` is plain data that begins with its size as a `usize` and may have any bytes; `given` is
/// null, or points to as many bytes as its first field says.
pub(super) unsafe fn options<T: Copy>(given: *const T, default: T, least: usize) -> Result<T> {
    if given.is_null() {
        return Ok(default);
    }
    // SAFETY: as promised, it begins with its size.
    let length = unsafe { given.cast::<usize>().read_unaligned() };
    let least = on_this_machine::<T>(least);
    // More than a page is no structure, but uninitialised memory.
    if length > 4096 {
        return versioned::check_size(0, least).map(|()| default);
    }
    let mut ours = default;
    // SAFETY: as promised, for both.
    let (given, ours_bytes) = unsafe {
        (
            slice::from_raw_parts(given.cast::<u8>(), length),
            slice::from_raw_parts_mut((&raw mut ours).cast::<u8>(), size_of::<T>()),
        )
    };
    versioned::read(given, ours_bytes, least)?;
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character_and_ends_with_nul() {
        let cut: [c_char; 4] = characters("aböc");
        assert_eq!(cut, [b'a' as c_char, b'b' as c_char, 0, 0]);
        assert!(path_characters::<4>(Path::new("abcd")).is_err());
    }

    #[test]
    fn options_are_initialized_as_far_as_the_caller_knows_them() {
        let default = [24, 1, 2];
        for (size, wanted) in [(7, [9; 5]), (16, [16, 1, 9, 9, 9]), (32, [32, 1, 2, 0, 9])] {
            let mut given = [9_usize; 5];
            // SAFETY: both are numbers, and there are more of them than `size` says.
            unsafe { initialize((&raw mut given).cast::<[usize; 3]>(), default, size) };
            assert_eq!(given, wanted);
        }
    }

    #[test]
    fn report_fills_the_callers_structure_and_no_more() {
        let mut given = [16, 7, 7];
        let report = [24, 1, 2];
        // SAFETY: both are three numbers, of which the first is a size within them.
        unsafe { Room::of(&raw mut given, 16) }
            .unwrap()
            .fill(report);
        assert_eq!(given, [16, 1, 7_usize]);
        given[0] = 8;
        // SAFETY: likewise.
        assert!(unsafe { Room::of(&raw mut given, 16) }.is_err());
        assert_eq!(given, [8, 1, 7]);
    }
}
