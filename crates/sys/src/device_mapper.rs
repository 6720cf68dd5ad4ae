//! Tables of the device mapper, by `DM_TABLE_STATUS` on `/dev/mapper/control`.
//!
//! The crate `devicemapper` has the call as well, and generates its structures by bindgen, which
//! needs libclang to build; one read-only call needs two structures.
//!
//! Format: linux/dm-ioctl.h.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const CONTROL: &str = "/dev/mapper/control";
/// `_IOWR(0xfd, 12, struct dm_ioctl)`.
const DM_TABLE_STATUS: u32 = 0xC138_FD0C;
const DM_STATUS_TABLE_FLAG: u32 = 1 << 4;
const DM_BUFFER_FULL_FLAG: u32 = 1 << 8;
const VERSION: [u32; 3] = [4, 0, 0];
const BUFFER_BYTES: usize = 16 << 10;
/// Of a table with more targets than anyone has.
const BUFFER_BYTES_MAX: usize = 16 << 20;

/// `struct dm_ioctl`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DmIoctl {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

const _: () = assert!(size_of::<DmIoctl>() == 312);

/// `struct dm_target_spec`; the parameters follow it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DmTargetSpec {
    sector_start: u64,
    length: u64,
    status: i32,
    /// Of the next target, from the first one.
    next: u32,
    target_type: [u8; 16],
}

const _: () = assert!(size_of::<DmTargetSpec>() == 40);

/// A line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// First sector of the device, of 512 bytes.
    pub start_sectors: u64,
    /// Length, in sectors of 512 bytes.
    pub length_sectors: u64,
    /// Type, `linear`.
    pub kind: String,
    /// Its parameters, `8:0 2048`.
    pub parameters: String,
}

/// The active table of the device with number `device`.
///
/// # Errors
/// Those of opening the control node, which needs root, and of the call; `InvalidData` for an
/// answer that contradicts itself.
pub fn table(device: u64) -> io::Result<Vec<Target>> {
    let control = File::options().read(true).write(true).open(CONTROL)?;
    let mut length = BUFFER_BYTES;
    loop {
        let mut buffer = vec![0_u8; length];
        let header = call(&control, device, &mut buffer)?;
        if header.flags & DM_BUFFER_FULL_FLAG == 0 {
            let start = header.data_start as usize;
            let data = buffer.get(start..).unwrap_or_default();
            return parse(data, header.target_count)
                .ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
        if length >= BUFFER_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        length *= 4;
    }
}

fn call(control: &File, device: u64, buffer: &mut [u8]) -> io::Result<DmIoctl> {
    let mut header = DmIoctl::new_zeroed();
    header.version = VERSION;
    header.data_size = buffer.len() as u32;
    header.data_start = size_of::<DmIoctl>() as u32;
    header.flags = DM_STATUS_TABLE_FLAG;
    // The kernel's own form of a number, which is libc's for the majors and minors that it has.
    header.dev = device;
    buffer[..size_of::<DmIoctl>()].copy_from_slice(header.as_bytes());
    // SAFETY: the kernel reads and writes `data_size` bytes, which is the length of the buffer; it
    // lives for the call, as does the descriptor.
    let result = unsafe {
        libc::ioctl(
            control.as_raw_fd(),
            DM_TABLE_STATUS as libc::Ioctl,
            buffer.as_mut_ptr(),
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    DmIoctl::read_from_prefix(buffer)
        .map(|(header, _)| header)
        .map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The targets in `data`, which begins with the first one.
fn parse(data: &[u8], count: u32) -> Option<Vec<Target>> {
    let mut targets = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let (spec, rest) = DmTargetSpec::read_from_prefix(data.get(at..)?).ok()?;
        targets.push(Target {
            start_sectors: spec.sector_start,
            length_sectors: spec.length,
            kind: text(&spec.target_type),
            parameters: text(rest),
        });
        at = spec.next as usize;
    }
    Some(targets)
}

/// Up to the first byte that is zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(lines: &[(u64, u64, &str, &str)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (start, length, kind, parameters) in lines {
            let mut spec = DmTargetSpec::new_zeroed();
            (spec.sector_start, spec.length) = (*start, *length);
            spec.target_type[..kind.len()].copy_from_slice(kind.as_bytes());
            let end = data.len() + size_of::<DmTargetSpec>() + parameters.len() + 1;
            spec.next = end.next_multiple_of(8) as u32;
            data.extend(spec.as_bytes());
            data.extend(parameters.as_bytes());
            data.resize(spec.next as usize, 0);
        }
        data
    }

    #[test]
    fn targets_follow_each_other_at_the_offsets_from_the_first() {
        let lines = [
            (0, 2048, "linear", "7:0 1"),
            (2048, 4096, "linear", "259:3 1234567890"),
            (6144, 8, "error", ""),
        ];
        let targets = parse(&answer(&lines), 3).unwrap();
        for (target, line) in targets.iter().zip(lines) {
            assert_eq!(
                (target.start_sectors, target.length_sectors),
                (line.0, line.1)
            );
            assert_eq!((&*target.kind, &*target.parameters), (line.2, line.3));
        }
        assert_eq!(targets.len(), 3);
    }

    #[test]
    fn answer_that_ends_early_is_refused() {
        let data = answer(&[(0, 8, "linear", "7:0 0")]);
        assert_eq!(parse(&data, 2), None);
        assert_eq!(parse(&data[..39], 1), None);
    }
}
