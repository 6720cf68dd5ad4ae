//! `FS_IOC_FIEMAP`: the extent map of a file, a batch at a time.
//!
//! Format: Documentation/filesystems/fiemap.rst of the kernel.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState};

// _IOWR('f', 11, struct fiemap), whose fixed part has 32 bytes.
// musl has the number signed.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as _;
const FIEMAP_FLAG_SYNC: u32 = 0x1;

const FIEMAP_EXTENT_LAST: u32 = 0x1;
const FIEMAP_EXTENT_UNKNOWN: u32 = 0x2;
const FIEMAP_EXTENT_DELALLOC: u32 = 0x4;
const FIEMAP_EXTENT_ENCODED: u32 = 0x8;
const FIEMAP_EXTENT_DATA_ENCRYPTED: u32 = 0x80;
const FIEMAP_EXTENT_DATA_INLINE: u32 = 0x200;
const FIEMAP_EXTENT_DATA_TAIL: u32 = 0x400;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

const BATCH: usize = 256;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    fe_logical: u64,
    fe_physical: u64,
    fe_length: u64,
    fe_reserved64: [u64; 2],
    fe_flags: u32,
    fe_reserved: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    fm_start: u64,
    fm_length: u64,
    fm_flags: u32,
    fm_mapped_extents: u32,
    fm_extent_count: u32,
    fm_reserved: u32,
    fm_extents: [FiemapExtent; BATCH],
}

const _: () = assert!(size_of::<FiemapExtent>() == 56);
const _: () = assert!(size_of::<Fiemap>() == 32 + 56 * BATCH);

/// Whether data still in memory is given its place before the map is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// It is.
    First,
    /// It is not; an extent without a place yet is [`ExtentFlags::DELAYED`].
    No,
}

/// Some extents of a file, in order, without the holes between them.
pub struct Batch {
    /// Not clipped to the range that was asked for.
    pub extents: Vec<Extent>,
    /// The file has no extent after these.
    pub is_last: bool,
}

/// The next extents that touch `range`, at most 256 of them.
pub fn next_batch(file: &File, range: ByteRange, flush: Flush) -> io::Result<Batch> {
    let mut request = Box::new(Fiemap {
        fm_start: range.start(),
        fm_length: range.len(),
        fm_flags: match flush {
            Flush::First => FIEMAP_FLAG_SYNC,
            Flush::No => 0,
        },
        fm_mapped_extents: 0,
        fm_extent_count: BATCH as u32,
        fm_reserved: 0,
        fm_extents: [FiemapExtent::default(); BATCH],
    });
    // SAFETY: the kernel writes at most `fm_extent_count` extents into the array behind the
    // header, which has room for that many and lives for the duration of the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut *request) };
    if result < 0 {
        return match io::Error::last_os_error() {
            // The longest file of this file system ends before the range.
            error if error.raw_os_error() == Some(libc::EFBIG) => Ok(Batch {
                extents: Vec::new(),
                is_last: true,
            }),
            error => Err(error),
        };
    }
    let count = (request.fm_mapped_extents as usize).min(BATCH);
    let found = &request.fm_extents[..count];
    let mut extents = Vec::with_capacity(count);
    for raw in found {
        extents.push(decode(raw)?);
    }
    Ok(Batch {
        is_last: found
            .last()
            .is_none_or(|raw| raw.fe_flags & FIEMAP_EXTENT_LAST != 0),
        extents,
    })
}

fn decode(raw: &FiemapExtent) -> io::Result<Extent> {
    let logical = ByteRange::at(raw.fe_logical, raw.fe_length)
        .filter(|range| !range.is_empty())
        .ok_or_else(|| io::Error::other("the file system reported an impossible extent"))?;
    let has = |flag: u32| raw.fe_flags & flag != 0;
    let mut flags = ExtentFlags::empty();
    flags.set(ExtentFlags::SHARED, has(FIEMAP_EXTENT_SHARED));
    flags.set(ExtentFlags::DELAYED, has(FIEMAP_EXTENT_DELALLOC));
    flags.set(
        ExtentFlags::ENCODED,
        has(FIEMAP_EXTENT_ENCODED
            | FIEMAP_EXTENT_DATA_ENCRYPTED
            | FIEMAP_EXTENT_DATA_INLINE
            | FIEMAP_EXTENT_DATA_TAIL),
    );
    Ok(Extent {
        logical,
        physical: (!has(FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC)).then_some(raw.fe_physical),
        state: if has(FIEMAP_EXTENT_UNWRITTEN) {
            ExtentState::Unwritten
        } else {
            ExtentState::Written
        },
        flags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_past_the_largest_file_of_the_file_system_has_no_extents() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        match next_batch(&file, ByteRange::new(1 << 55, 1 << 56), Flush::First) {
            Ok(batch) => assert!(batch.extents.is_empty() && batch.is_last),
            // tmpfs has no such map.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}"),
        }
    }

    #[test]
    fn decode_distinguishes_states_and_flags() {
        let raw = |fe_flags| FiemapExtent {
            fe_logical: 4096,
            fe_physical: 1 << 30,
            fe_length: 8192,
            fe_flags,
            ..FiemapExtent::default()
        };
        let unwritten = decode(&raw(FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_LAST)).unwrap();
        assert_eq!(unwritten.state, ExtentState::Unwritten);
        assert_eq!(unwritten.physical, Some(1 << 30));
        let delayed = decode(&raw(FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_UNKNOWN)).unwrap();
        assert_eq!(delayed.flags, ExtentFlags::DELAYED);
        assert_eq!(delayed.physical, None);
        let shared = decode(&raw(FIEMAP_EXTENT_SHARED)).unwrap();
        assert!(!shared.is_extant());
    }

    #[test]
    fn decode_of_an_extent_past_64_bits_is_an_error() {
        let raw = FiemapExtent {
            fe_logical: u64::MAX - 1,
            fe_length: 4096,
            ..FiemapExtent::default()
        };
        assert!(decode(&raw).is_err());
    }
}
