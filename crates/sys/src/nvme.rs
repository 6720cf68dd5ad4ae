//! Properties of an NVMe namespace that concern deallocated blocks, by Identify Namespace.
//!
//! Format: NVM Command Set Specification, "Identify Namespace Data Structure"; linux/nvme_ioctl.h.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use serde::Serialize;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// `_IO('N', 0x40)`.
const NVME_IOCTL_ID: u32 = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: u32 = 0xC048_4E41;
const OPCODE_IDENTIFY: u8 = 0x06;
const IDENTIFY_BYTES: usize = 4096;
/// Offset of DLFEAT, Deallocate Logical Block Features.
const DLFEAT: usize = 33;
const TIMEOUT_MILLIS: u32 = 5000;

/// `struct nvme_passthru_cmd`.
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    /// CDW10 to CDW15; all zeros is "Identify Namespace".
    cdw10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// Contents of deallocated blocks (DLFEAT, bits 2 to 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeallocatedReads {
    /// The namespace does not say.
    NotReported,
    /// Zeros.
    Zeros,
    /// Bytes of 0xFF.
    Ones,
    /// A value that is reserved.
    Reserved,
}

/// Properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// Deallocate Logical Block Features.
    pub dlfeat: u8,
    /// Its bits 2 to 0.
    pub deallocated_reads: DeallocatedReads,
    /// Its bit 3, DEAC: Write Zeroes may deallocate.
    pub has_deac: bool,
}

impl Namespace {
    /// The namespace that is the disk at `node`.
    ///
    /// # Errors
    /// Those of opening the disk, which needs permission to read it, and of the command.
    pub fn identify(node: &Path) -> io::Result<Self> {
        let disk = File::open(node)?;
        // SAFETY: the call takes no argument, and the descriptor lives for it.
        let nsid = unsafe { libc::ioctl(disk.as_raw_fd(), NVME_IOCTL_ID as _) };
        if nsid == -1 {
            return Err(io::Error::last_os_error());
        }
        let mut data = [0_u8; IDENTIFY_BYTES];
        let mut command = AdminCommand::new_zeroed();
        command.opcode = OPCODE_IDENTIFY;
        command.nsid = nsid as u32;
        command.addr = data.as_mut_ptr() as u64;
        command.data_len = IDENTIFY_BYTES as u32;
        command.timeout_ms = TIMEOUT_MILLIS;
        let request = NVME_IOCTL_ADMIN_CMD as _;
        // SAFETY: the kernel reads the command and writes `data_len` bytes at `addr`; both live for
        // the call, as does the descriptor.
        match unsafe { libc::ioctl(disk.as_raw_fd(), request, &raw mut command) } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(Self::parse(&data)),
            status => Err(io::Error::other(format!("NVMe status {status:#x}"))),
        }
    }

    /// From the data of Identify Namespace.
    fn parse(data: &[u8; IDENTIFY_BYTES]) -> Self {
        let dlfeat = data[DLFEAT];
        Self {
            dlfeat,
            deallocated_reads: match dlfeat & 0b111 {
                0b000 => DeallocatedReads::NotReported,
                0b001 => DeallocatedReads::Zeros,
                0b010 => DeallocatedReads::Ones,
                _ => DeallocatedReads::Reserved,
            },
            has_deac: dlfeat & 0b1000 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes that QEMU's emulated namespace of 256 MiB answers.
    const QEMU: [u8; 40] = [
        0x00, 0x00, 0x08, 0, 0, 0, 0, 0, 0x00, 0x00, 0x08, 0, 0, 0, 0, 0, 0x00, 0x00, 0x08, 0, 0,
        0, 0, 0, 0x34, 0x07, 0x00, 0x03, 0x1F, 0, 0, 0, 0, 0x09, 0, 0, 0, 0, 0, 0,
    ];

    fn parsed(dlfeat: Option<u8>) -> Namespace {
        let mut data = [0; IDENTIFY_BYTES];
        data[..QEMU.len()].copy_from_slice(&QEMU);
        data[DLFEAT] = dlfeat.unwrap_or(data[DLFEAT]);
        Namespace::parse(&data)
    }

    #[test]
    fn emulated_namespace_reads_zeros_and_deallocates() {
        let namespace = parsed(None);
        assert_eq!(namespace.deallocated_reads, DeallocatedReads::Zeros);
        assert!(namespace.has_deac);
    }

    #[test]
    fn other_features_are_told_apart() {
        for (dlfeat, reads, has_deac) in [
            (0x00, DeallocatedReads::NotReported, false),
            (0x01, DeallocatedReads::Zeros, false),
            (0x0A, DeallocatedReads::Ones, true),
            (0x18, DeallocatedReads::NotReported, true),
            (0x07, DeallocatedReads::Reserved, false),
        ] {
            let namespace = parsed(Some(dlfeat));
            assert_eq!(namespace.deallocated_reads, reads, "{dlfeat:#x}");
            assert_eq!(namespace.has_deac, has_deac, "{dlfeat:#x}");
        }
    }
}
