//! Ioctls of a mount of Extant, for operations that the kernel does not forward to FUSE file
//! systems.
//!
//! Numbers and structures are stable, and the same on every architecture; integers are in the
//! machine's byte order, as in every ioctl. A tool sends [`PROBE`] first, and identifies a mount of
//! Extant by [`MAGIC`].
//!
//! `extant-mount` implements them; [`probe`], [`fallocate`], [`extents`], [`statistics`] and
//! [`allocator`] are the client side.
//!
//! Format and rules for callers: docs/formats/ioctl.md.

mod statistics;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState, FallocateMode};
use rustix::ioctl::opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub use statistics::{
    Allocator, AllocatorCounters, CRITERIA, CacheCounters, JournalCounters, Statistics,
    allocator_bits, statistics_flags,
};

/// `_IOC_TYPE` of the numbers.
pub const TYPE: u8 = 0xE4;

/// The value of [`Probe::magic`]: `EXTANT` and two zeros, as bytes in memory.
pub const MAGIC: [u8; 8] = *b"EXTANT\0\0";

/// Version of the ioctls. Higher versions are compatible with lower ones.
pub const VERSION: u32 = 3;

/// `_IOR(0xE4, 0, struct extant_probe)`: identifies a mount of Extant.
pub const PROBE: u32 = opcode::read::<Probe>(TYPE, 0) as u32;

/// `_IOWR(0xE4, 1, struct extant_fallocate)`: every mode of `fallocate`, on a file that is open for
/// writing.
pub const FALLOCATE: u32 = opcode::read_write::<Fallocate>(TYPE, 1) as u32;

/// `_IOWR(0xE4, 2, struct extant_extents)`: a page of the extent map.
pub const EXTENTS: u32 = opcode::read_write::<ExtentsPage>(TYPE, 2) as u32;

/// `_IOR(0xE4, 3, struct extant_statistics)`: counters of the mount. Since version 2.
pub const STATISTICS: u32 = opcode::read::<Statistics>(TYPE, 3) as u32;

/// `_IOWR(0xE4, 4, struct extant_allocator)`: reads and changes how blocks are searched for. Since
/// version 2.
pub const ALLOCATOR: u32 = opcode::read_write::<Allocator>(TYPE, 4) as u32;

/// Maximum number of extents of a page, which makes it 8 KiB long.
pub const EXTENTS_MAX: usize = 255;

/// The output of [`PROBE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Probe {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`] of the mount.
    pub version: u32,
    /// Block size of the file system, in bytes.
    pub block_bytes: u32,
    /// Bits of [`probe_flags`].
    pub flags: u64,
    /// Process id of the server, in its PID namespace. Since version 3, before that 0.
    pub server_pid: u64,
    /// Zeros.
    pub reserved: [u64; 4],
}

/// Bits of [`Probe::flags`].
pub mod probe_flags {
    /// The kernel has a writeback cache, and keeps its own size of a file.
    pub const WRITEBACK: u64 = 1 << 0;
    /// The server takes no changes: it has opened the image read-only, or stopped after an error.
    pub const READ_ONLY: u64 = 1 << 1;
}

/// [`FALLOCATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fallocate {
    /// In: the bits of `fallocate(2)`; [`fallocate_mode`] knows those that are taken.
    pub mode: u32,
    /// Zero.
    pub reserved: u32,
    /// In: first byte.
    pub offset: u64,
    /// In: bytes.
    pub length: u64,
    /// Out: bytes of the file afterwards, to be passed to `ftruncate(2)` if they differ from
    /// `fstat(2)`.
    pub size: u64,
}

/// [`EXTENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtentsPage {
    /// In: first byte. Out: the position to continue from, after `count` extents.
    pub offset: u64,
    /// In: bytes. Out: bytes that are left; 0 at the end of the map.
    pub length: u64,
    /// Out: how many of `extents` are filled.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: bytes of the file.
    pub size: u64,
    /// Out: extents in order, cut to the range. Holes are left out.
    pub extents: [MappedExtent; EXTENTS_MAX],
}

/// An extent, in the fields of `struct fiemap_extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MappedExtent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device below the file system.
    pub physical: u64,
    /// Bytes.
    pub length: u64,
    /// [`UNWRITTEN`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// `FIEMAP_EXTENT_UNWRITTEN`: space that reads as zeros.
pub const UNWRITTEN: u32 = 0x800;

const _: () = {
    assert!(size_of::<Probe>() == 64);
    assert!(size_of::<Fallocate>() == 32);
    assert!(size_of::<MappedExtent>() == 32);
    assert!(size_of::<ExtentsPage>() == 8192);
};

/// Asks whether an open file or directory is on a mount of Extant; `None` where it is not.
///
/// # Errors
/// Those of a mount whose server has ended.
pub fn probe(file: &File) -> io::Result<Option<Probe>> {
    let mut answer = Probe::new_zeroed();
    match call(file, PROBE, &mut answer) {
        Ok(()) => Ok((answer.magic == MAGIC).then_some(answer)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(None),
            _ => Err(error),
        },
    }
}

/// [`FALLOCATE`] on a file of a mount, with all that a caller has to do: the kernel knows the new
/// size afterwards.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn fallocate(file: &File, mode_bits: u32, range: ByteRange) -> io::Result<()> {
    let mut request = Fallocate {
        mode: mode_bits,
        reserved: 0,
        offset: range.start(),
        length: range.len(),
        size: 0,
    };
    call(file, FALLOCATE, &mut request)?;
    if file.metadata()?.len() == request.size {
        Ok(())
    } else {
        file.set_len(request.size)
    }
}

/// [`EXTENTS`]: the next page of the map of a file on a mount.
///
/// # Errors
/// Those of reading the map.
pub fn extents(file: &File, range: ByteRange) -> io::Result<Box<ExtentsPage>> {
    let mut page = Box::new(ExtentsPage::new(range.start(), range.len()));
    call(file, EXTENTS, &mut *page)?;
    Ok(page)
}

/// [`STATISTICS`]: the counters of the mount that an open file or directory is on.
///
/// # Errors
/// `ENOTTY` elsewhere, and on a mount of version 1.
pub fn statistics(file: &File) -> io::Result<Box<Statistics>> {
    let mut answer = Box::new(Statistics::new_zeroed());
    call(file, STATISTICS, &mut *answer)?;
    Ok(answer)
}

/// [`ALLOCATOR`]: changes what [`Allocator::set`] names, and returns what is in force.
///
/// # Errors
/// `EPERM` for a change by another user than root and the one who serves the mount; as
/// [`statistics`].
pub fn allocator(file: &File, mut change: Allocator) -> io::Result<Allocator> {
    call(file, ALLOCATOR, &mut change)?;
    Ok(change)
}

/// A call of ours: its number contains the number of bytes that the kernel copies, which is the
/// size of `T`.
fn call<T: FromBytes + IntoBytes>(file: &File, number: u32, argument: &mut T) -> io::Result<()> {
    assert_eq!(
        number >> 16 & 0x3fff,
        size_of::<T>() as u32,
        "{number:#x}: the number of another structure"
    );
    let argument = std::ptr::from_mut(argument);
    // SAFETY: the kernel reads and writes the number of bytes in the command number, the size of
    // `T`, for which any bytes are valid; they live for the call, as does the descriptor.
    match unsafe { libc::ioctl(file.as_raw_fd(), number as libc::Ioctl, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Fallocate {
    /// The call for a mode. `None` for one that has no bits.
    pub fn new(mode: FallocateMode, offset: u64, length: u64) -> Option<Self> {
        Some(Self {
            mode: fallocate_bits(mode)?,
            reserved: 0,
            offset,
            length,
            size: 0,
        })
    }
}

impl ExtentsPage {
    /// The call for a range.
    pub fn new(offset: u64, length: u64) -> Self {
        Self {
            offset,
            length,
            ..Self::new_zeroed()
        }
    }

    /// The extents of an answer.
    pub fn extents(&self) -> &[MappedExtent] {
        &self.extents[..(self.count as usize).min(EXTENTS_MAX)]
    }
}

impl MappedExtent {
    /// An extent that is no hole.
    pub fn of(extent: &Extent) -> Option<Self> {
        let flags = match extent.state {
            ExtentState::Hole => return None,
            ExtentState::Unwritten => UNWRITTEN,
            ExtentState::Written => 0,
        };
        Some(Self {
            logical: extent.logical.start(),
            physical: extent.physical?,
            length: extent.logical.len(),
            flags,
            reserved: 0,
        })
    }

    /// The extent in the types of `extant-space`. `None` for a range that no file has.
    pub fn to_extent(&self) -> Option<Extent> {
        Some(Extent {
            logical: ByteRange::at(self.logical, self.length)?,
            physical: Some(self.physical),
            state: match self.flags & UNWRITTEN {
                0 => ExtentState::Written,
                _ => ExtentState::Unwritten,
            },
            flags: ExtentFlags::empty(),
        })
    }
}

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const COLLAPSE_RANGE: u32 = 0x08;
const ZERO_RANGE: u32 = 0x10;
const INSERT_RANGE: u32 = 0x20;
const UNSHARE_RANGE: u32 = 0x40;
const WRITE_ZEROES: u32 = 0x80;

/// The mode of `fallocate(2)` flags. `None` for unsupported combinations and unknown flags.
pub fn fallocate_mode(bits: u32) -> Option<FallocateMode> {
    let same = |mode: &FallocateMode| fallocate_bits(*mode) == Some(bits);
    match bits {
        // Keeping the size is no other mode here: nothing is shared.
        _ if bits == UNSHARE_RANGE | KEEP_SIZE => Some(FallocateMode::AllocateKeepSize),
        _ => FallocateMode::ALL.into_iter().find(same),
    }
}

/// The reverse of [`fallocate_mode`].
pub fn fallocate_bits(mode: FallocateMode) -> Option<u32> {
    Some(match mode {
        FallocateMode::Allocate => 0,
        FallocateMode::AllocateKeepSize => KEEP_SIZE,
        FallocateMode::PunchHole => PUNCH_HOLE | KEEP_SIZE,
        FallocateMode::ZeroRange => ZERO_RANGE,
        FallocateMode::ZeroRangeKeepSize => ZERO_RANGE | KEEP_SIZE,
        FallocateMode::CollapseRange => COLLAPSE_RANGE,
        FallocateMode::InsertRange => INSERT_RANGE,
        FallocateMode::UnshareRange => UNSHARE_RANGE,
        FallocateMode::WriteZeroes => WRITE_ZEROES,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_document() {
        assert_eq!(PROBE, 0x8040_E400);
        assert_eq!(FALLOCATE, 0xC020_E401);
        assert_eq!(EXTENTS, 0xE000_E402);
        assert_eq!(STATISTICS, 0x81C0_E403);
        assert_eq!(ALLOCATOR, 0xC010_E404);
    }

    #[test]
    fn bits_of_every_mode_lead_back_to_it() {
        for mode in FallocateMode::ALL {
            let bits = fallocate_bits(mode).unwrap();
            assert_eq!(fallocate_mode(bits), Some(mode));
        }
        assert_eq!(fallocate_mode(PUNCH_HOLE), None);
        assert_eq!(fallocate_mode(WRITE_ZEROES | KEEP_SIZE), None);
        assert_eq!(fallocate_mode(0x04), None);
    }

    #[test]
    fn file_that_is_elsewhere_knows_no_call() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(probe(&file).unwrap(), None);
        assert_eq!(probe(&File::open("/").unwrap()).unwrap(), None);
        assert!(extents(&file, ByteRange::new(0, 1)).is_err());
        assert!(statistics(&file).is_err());
        assert!(allocator(&file, Allocator::new_zeroed()).is_err());
        assert!(fallocate(&file, WRITE_ZEROES, ByteRange::new(0, 1)).is_err());
    }
}
