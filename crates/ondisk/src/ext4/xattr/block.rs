//! The block with attributes, which inodes may share.

use core::mem::offset_of;

use extant_space::Result;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::area::{self, Hashes};
use super::{Attributes, MAGIC, RawXattrHeader, hash};
use crate::ext4::{PhysicalBlock, Seed};
use crate::fault::{check_range, check_sum, corrupt};

const HEADER_BYTES: usize = size_of::<RawXattrHeader>();
const CHECKSUM: usize = offset_of!(RawXattrHeader, h_checksum);
/// More inodes than that share no block.
const REFERENCES_MAX: u32 = 1024;

/// A block with attributes, read and validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrBlock<'a> {
    /// How many inodes name the block, 1 to 1024.
    pub references: u32,
    /// Its hash, which is 0 where it must not be shared.
    pub hash: u32,
    /// Attributes in the block.
    pub attributes: Attributes<'a>,
}

impl<'a> XattrBlock<'a> {
    /// Reads `block` at `place`.
    ///
    /// # Errors
    /// `Corrupt` with the reason, also for a wrong checksum.
    pub fn parse(block: &'a [u8], place: PhysicalBlock, seed: Option<Seed>) -> Result<Self> {
        let name = format!("attribute block {place}");
        let (header, _) = RawXattrHeader::ref_from_prefix(block)
            .map_err(|_| corrupt(&name, format_args!("only {} bytes", block.len())))?;
        let magic = header.h_magic.get();
        if magic != MAGIC {
            let problem = format_args!("h_magic is {magic:#010x}, not {MAGIC:#010x}");
            return Err(corrupt(&name, problem));
        }
        check_range(&name, "h_blocks", header.h_blocks.get().into(), 1..=1)?;
        let references = header.h_refcount.get();
        check_range(
            &name,
            "h_refcount",
            references.into(),
            1..=REFERENCES_MAX.into(),
        )?;
        if let Some(seed) = seed {
            check_sum(
                &name,
                header.h_checksum.get(),
                computed_sum(block, place, seed),
            )?;
        }
        Ok(Self {
            references,
            hash: header.h_hash.get(),
            attributes: Attributes::parse(&name, block, HEADER_BYTES, 0)?,
        })
    }

    /// The hash that those of the entries make, whether or not it is the stored one.
    pub fn computed_hash(&self) -> u32 {
        let list = self.attributes.list.iter();
        hash::of_block(list.map(|attribute| attribute.hash))
    }
}

impl Attributes<'_> {
    /// Bytes that the list takes in a block of its own, 0 for none.
    pub fn block_bytes(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            HEADER_BYTES + self.listed_bytes()
        }
    }

    /// Writes the list into `block` at `place`, which `references` inodes name, and seals it.
    /// Reserved fields of an older header are kept.
    ///
    /// # Errors
    /// `NoSpace` if they do not fit. Nothing has changed then.
    ///
    /// # Panics
    /// If the list is empty: then there is no block.
    pub fn write_block(
        &self,
        block: &mut [u8],
        references: u32,
        place: PhysicalBlock,
        seed: Option<Seed>,
    ) -> Result<()> {
        assert!(!self.is_empty(), "a block for no attributes");
        if self.block_bytes() > block.len() {
            return Err(area::no_space(self.block_bytes(), block.len()));
        }
        let reserved = match RawXattrHeader::ref_from_prefix(block) {
            Ok((old, _)) if old.h_magic.get() == MAGIC => old.h_reserved,
            _ => RawXattrHeader::new_zeroed().h_reserved,
        };
        let mut sorted = self.clone();
        // Readers stop at the first name past the one they search.
        sorted
            .list
            .sort_by(|one, two| one.name.order_in_block(&two.name));
        block.fill(0);
        sorted.lay_out(block, HEADER_BYTES, 0, Hashes::All);
        let mut header = RawXattrHeader::new_zeroed();
        header.h_magic.set(MAGIC);
        header.h_refcount.set(references);
        header.h_blocks.set(1);
        let hashes = sorted
            .list
            .iter()
            .map(|attribute| attribute.entry_hash(Hashes::All));
        header.h_hash.set(hash::of_block(hashes));
        header.h_reserved = reserved;
        block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        seal(block, place, seed);
        Ok(())
    }
}

/// Sets the number of inodes that name the block at `place`, which was parsed, and seals it.
pub fn set_references(block: &mut [u8], references: u32, place: PhysicalBlock, seed: Option<Seed>) {
    let (header, _) = RawXattrHeader::mut_from_prefix(block).expect("a block");
    header.h_refcount.set(references);
    seal(block, place, seed);
}

fn seal(block: &mut [u8], place: PhysicalBlock, seed: Option<Seed>) {
    let sum = seed.map_or(0, |seed| computed_sum(block, place, seed));
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
}

fn computed_sum(block: &[u8], place: PhysicalBlock, seed: Seed) -> u32 {
    seed.sum(&place.0.to_le_bytes())
        .and(&block[..CHECKSUM])
        .and(&[0; 4])
        .and(&block[CHECKSUM + 4..])
        .value()
}
