//! Multiple-mount protection: a block in which a mount notes that it is alive.
//!
//! It is only read, to report the user of the file system; taking part needs a clock and a thread.
//!
//! Format: docs/formats/ext4.md, "Multiple-mount protection".

use core::mem::offset_of;

use extant_space::Result;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::Seed;
use crate::fault::{check_sum, corrupt};
use crate::structure::on_disk;

on_disk! {
    /// `struct mmp_struct`.
    pub struct RawMmp: 1024 {
        0x000 mmp_magic: U32,
        0x004 mmp_seq: U32,
        0x008 mmp_time: U64,
        0x010 mmp_nodename: [u8; 64],
        0x050 mmp_bdevname: [u8; 32],
        0x070 mmp_check_interval: U16,
        0x072 mmp_pad1: U16,
        0x074 mmp_pad2: [U32; 226],
        0x3FC mmp_checksum: U32,
    }
}

const MAGIC: u32 = 0x004D_4D50;
const CLEAN: u32 = 0xFF4D_4D50;
const FSCK: u32 = 0xE24D_4D50;

/// The user of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpState {
    /// None.
    Clean,
    /// e2fsck.
    Fsck,
    /// A mount, with the number that it counts up.
    Mounted(u32),
}

/// The validated block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmp {
    raw: RawMmp,
}

impl Mmp {
    /// Reads the block that `s_mmp_block` names.
    ///
    /// # Errors
    /// `Corrupt` with the invalid field.
    pub fn parse(block: &[u8], seed: Option<Seed>) -> Result<Self> {
        const NAME: &str = "mmp block";
        let (raw, _) = RawMmp::read_from_prefix(block)
            .map_err(|_| corrupt(NAME, format_args!("only {} bytes", block.len())))?;
        let magic = raw.mmp_magic.get();
        if magic != MAGIC {
            return Err(corrupt(
                NAME,
                format_args!("mmp_magic is {magic:#x}, not {MAGIC:#x}"),
            ));
        }
        if let Some(seed) = seed {
            let summed = &raw.as_bytes()[..offset_of!(RawMmp, mmp_checksum)];
            check_sum(NAME, raw.mmp_checksum.get(), seed.sum(summed).value())?;
        }
        Ok(Self { raw })
    }

    /// The user of the file system.
    pub fn state(&self) -> MmpState {
        match self.raw.mmp_seq.get() {
            CLEAN => MmpState::Clean,
            FSCK => MmpState::Fsck,
            number => MmpState::Mounted(number),
        }
    }

    /// The fields as they are.
    pub fn raw(&self) -> &RawMmp {
        &self.raw
    }
}
