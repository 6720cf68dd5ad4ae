//! Seeds of the checksums of a file system and of one inode (`metadata_csum`).
//!
//! Every sum starts from the file system's seed, so that blocks of another file system never
//! pass; the seed of an inode also includes its number and generation, so that blocks of a deleted
//! file do not match either. Without `metadata_csum` there is no seed, and functions that take an
//! `Option` then check and write nothing.

use super::InodeNumber;
use crate::checksum::{self, START};

/// The seed of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// From a UUID, as the file system had it when checksums were turned on.
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        Self(checksum::crc32c(START, uuid))
    }

    /// As stored in `s_checksum_seed`.
    pub fn from_stored(seed: u32) -> Self {
        Self(seed)
    }

    /// The number that `s_checksum_seed` would hold.
    pub fn value(self) -> u32 {
        self.0
    }

    /// The seed of the structures of one inode.
    pub fn inode(self, number: InodeNumber, generation: u32) -> InodeSeed {
        let sum = checksum::crc32c(self.0, &number.0.to_le_bytes());
        InodeSeed(checksum::crc32c(sum, &generation.to_le_bytes()))
    }

    pub(crate) fn sum(self, bytes: &[u8]) -> Sum {
        Sum(self.0).and(bytes)
    }
}

/// The seed of an inode: of itself, its extent tree, its directory blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSeed(u32);

impl InodeSeed {
    pub(crate) fn sum(self, bytes: &[u8]) -> Sum {
        Sum(self.0).and(bytes)
    }
}

/// A sum over several pieces.
#[derive(Clone, Copy)]
pub(crate) struct Sum(u32);

impl Sum {
    pub(crate) fn and(self, bytes: &[u8]) -> Self {
        Self(checksum::crc32c(self.0, bytes))
    }

    pub(crate) fn value(self) -> u32 {
        self.0
    }
}
