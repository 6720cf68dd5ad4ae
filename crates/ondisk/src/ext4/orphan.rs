//! The orphan file: inodes that must be cleared or cut after a crash.
//!
//! Model: every block of the file is an array of inode numbers, where 0 is free, with a magic
//! number and a sum at the end. `orphan_present` in the superblock means that some may be set. The
//! older list is linked through `i_dtime` instead, from `s_last_orphan` on.
//!
//! Format: docs/formats/ext4.md, "Orphan file".

use extant_space::Result;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{InodeNumber, InodeSeed, Layout, PhysicalBlock};
use crate::fault::{check_sum, corrupt};
use crate::narrow::fit32;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_orphan_block_tail`.
    pub struct RawOrphanTail: 8 {
        0x0 ob_magic: U32,
        0x4 ob_checksum: U32,
    }
}

/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;
/// Most blocks of the file; Linux accepts no larger one.
pub const FILE_BLOCKS_MAX: u64 = 512;
const TAIL_BYTES: usize = size_of::<RawOrphanTail>();

/// Inode numbers in a block of `block_bytes`.
pub fn slots(block_bytes: u32) -> usize {
    (block_bytes as usize - TAIL_BYTES) / 4
}

/// Validates a block of the file at `place`: magic number and checksum.
///
/// # Errors
/// `Corrupt` with the reason.
pub fn verify(block: &[u8], place: PhysicalBlock, seed: Option<InodeSeed>) -> Result<()> {
    let name = format!("orphan block {place}");
    let (_, tail) = RawOrphanTail::ref_from_suffix(block)
        .map_err(|_| corrupt(&name, format_args!("only {} bytes", block.len())))?;
    let magic = tail.ob_magic.get();
    if magic != MAGIC {
        return Err(corrupt(
            &name,
            format_args!("ob_magic is {magic:#x}, not {MAGIC:#x}"),
        ));
    }
    match seed {
        Some(seed) => check_sum(&name, tail.ob_checksum.get(), sum(block, place, seed)),
        None => Ok(()),
    }
}

/// Writes magic number and sum.
///
/// # Panics
/// When `block` has no room for them.
pub fn seal(block: &mut [u8], place: PhysicalBlock, seed: Option<InodeSeed>) {
    let sum = seed.map_or(0, |seed| sum(block, place, seed));
    let (_, tail) = RawOrphanTail::mut_from_suffix(block).expect("a block");
    tail.ob_magic.set(MAGIC);
    tail.ob_checksum.set(sum);
}

/// The orphans in a block, with their places.
///
/// # Errors
/// An item is `Corrupt` when there is no such inode.
pub fn orphans(
    block: &[u8],
    layout: &Layout,
) -> impl Iterator<Item = Result<(usize, InodeNumber)>> {
    let (numbers, _) = block[..block.len() - TAIL_BYTES].as_chunks::<4>();
    let most = layout.inodes();
    numbers
        .iter()
        .map(|number| u32::from_le_bytes(*number))
        .enumerate()
        .filter(|&(_, number)| number != 0)
        .map(move |(slot, number)| {
            if number > most {
                let problem = format_args!("slot {slot} names inode {number}, of {most}");
                return Err(corrupt("orphan block", problem));
            }
            Ok((slot, InodeNumber(number)))
        })
}

/// Sets the inode of a slot. The block must be sealed after that.
///
/// # Panics
/// When there is no such slot.
pub fn set(block: &mut [u8], slot: usize, orphan: Option<InodeNumber>) {
    assert!(slot < slots(fit32(block.len())));
    let number = orphan.map_or(0, |number| number.0);
    block[slot * 4..slot * 4 + 4].copy_from_slice(&number.to_le_bytes());
}

fn sum(block: &[u8], place: PhysicalBlock, seed: InodeSeed) -> u32 {
    let numbers = &block[..slots(fit32(block.len())) * 4];
    seed.sum(&place.0.to_le_bytes()).and(numbers).value()
}

#[cfg(test)]
mod tests {
    use extant_space::Corruption;

    use super::*;
    use crate::ext4::Seed;
    use crate::ext4::superblock::fixture;

    #[test]
    fn orphans_are_set_found_and_summed() {
        let layout = *fixture().layout();
        let seed = Some(Seed::from_stored(3).inode(InodeNumber(12), 0));
        let place = PhysicalBlock(77);
        let mut block = vec![0; 4096];
        set(&mut block, 1021, Some(InodeNumber(40_000)));
        set(&mut block, 5, Some(InodeNumber(13)));
        seal(&mut block, place, seed);
        verify(&block, place, seed).unwrap();
        let found: Vec<_> = orphans(&block, &layout).collect();
        assert_eq!(found[0].as_ref().unwrap(), &(5, InodeNumber(13)));
        assert_eq!(
            found[1].as_ref().unwrap_err().to_string(),
            "orphan block: slot 1021 names inode 40000, of 32768"
        );
        let error = verify(&block, PhysicalBlock(78), seed).unwrap_err();
        assert_eq!(
            error.corruption(),
            Some(&Corruption::checksum("orphan block 78"))
        );
        block[4088] ^= 1;
        let line = verify(&block, place, seed).unwrap_err().to_string();
        assert_eq!(
            line,
            "orphan block 77: ob_magic is 0xb10ca05, not 0xb10ca04"
        );
    }
}
