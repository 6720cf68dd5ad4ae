//! Extended attributes: in inodes, in blocks that inodes share, in inodes of their own.
//!
//! A block is read and claimed when the first inode names it; how often it is named is compared
//! in the end. The same goes for the inodes that hold large values.

use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::xattr::{
    Attribute, Attributes, NameIndex, XattrBlock, XattrName, XattrValue,
};
use extant_ondisk::ext4::{Compat, Incompat, Inode, InodeNumber, PhysicalBlock};
use extant_space::Result;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::shared_attributes::{References, SharedBlock};
use crate::states::InodeUse;

/// EXT4_XATTR_INDEX_ENCRYPTION
const ENCRYPTION: u8 = 9;

/// Whether the context of an encrypted file has the length of its version, if that is known.
fn is_encryption_context(context: &[u8]) -> bool {
    match context.first() {
        None | Some(0) => false,
        Some(1) => context.len() == 28,
        Some(2) => context.len() == 40,
        Some(_) => true,
    }
}

/// The first inode that names a list of attributes.
#[derive(Clone, Copy)]
struct Owner {
    number: InodeNumber,
    generation: u32,
}

/// Form of a value in an inode of its own.
enum ValueForm {
    /// With a hash and a reference count; each owner is charged for its blocks.
    Counted,
    /// As Lustre wrote it before: it has one owner, whose number and generation are in `i_mtime`
    /// and `i_generation`, and neither hash nor count.
    Lustre,
}

impl Check<'_> {
    /// Validates the attributes of an inode. Returns the blocks that `i_blocks` counts for them.
    pub(crate) fn check_attributes(
        &mut self,
        number: InodeNumber,
        bytes: &[u8],
        inode: &Inode,
    ) -> Result<u64> {
        let layout = *self.volume.layout();
        let place = Location::inode(number);
        let owner = Owner {
            number,
            generation: inode.raw().i_generation.get(),
        };
        let mut blocks = 0;
        match Attributes::parse_inode(bytes, inode, &layout) {
            Ok(attributes) => blocks += self.check_list(&attributes, owner, &place)?,
            Err(error) => self
                .findings
                .add(FindingKind::Attributes, place.clone(), error),
        }
        if let Some(block) = inode.xattr_block(&layout) {
            blocks += self.check_attribute_block(block, owner, place)?;
        }
        Ok(blocks)
    }

    /// An encrypted file has its policy and nonce in an attribute; without it, no key opens it.
    pub(crate) fn check_encryption(
        &mut self,
        number: InodeNumber,
        bytes: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let layout = *self.volume.layout();
        let name = XattrName {
            index: NameIndex(ENCRYPTION),
            rest: (&b"c"[..]).into(),
        };
        // Damaged lists are reported elsewhere.
        let Ok(attributes) = Attributes::parse_inode(bytes, inode, &layout) else {
            return Ok(());
        };
        let mut context = attributes.get(&name).cloned();
        if context.is_none()
            && let Some(block) = inode.xattr_block(&layout).filter(|&at| layout.holds(at, 1))
        {
            let bytes = self.volume.block(block)?;
            let Ok(parsed) = XattrBlock::parse(&bytes, block, None) else {
                return Ok(());
            };
            context = parsed.attributes.into_owned().get(&name).cloned();
        }
        let words = match context {
            None => "encrypted, and the attribute with the policy is missing",
            Some(XattrValue::Bytes(context)) if !is_encryption_context(&context) => {
                "encrypted, and the attribute with the policy is damaged"
            }
            Some(_) => return Ok(()),
        };
        self.findings
            .add(FindingKind::Attributes, Location::inode(number), words);
        Ok(())
    }

    fn check_attribute_block(
        &mut self,
        block: PhysicalBlock,
        owner: Owner,
        place: Location,
    ) -> Result<u64> {
        let features = self.volume.superblock().features();
        if !features.compat.contains(Compat::EXT_ATTR) || !self.volume.layout().holds(block, 1) {
            let words = format_args!("its attributes are in block {block}, which cannot be");
            self.findings.add(FindingKind::Attributes, place, words);
            return Ok(0);
        }
        if !self.shared.blocks.contains_key(&block) {
            let read = self.read_attribute_block(block, owner, place)?;
            self.shared.blocks.insert(block, read);
        }
        let shared = self.shared.blocks.get_mut(&block).expect("read before");
        if let Some(references) = &mut shared.references {
            references.found += 1;
        }
        Ok(1 + shared.value_blocks)
    }

    fn read_attribute_block(
        &mut self,
        block: PhysicalBlock,
        owner: Owner,
        place: Location,
    ) -> Result<SharedBlock> {
        let claimed = "its attribute block";
        self.claims
            .claim_for(claimed, block, 1, place.clone(), &mut self.findings);
        let place = place.in_block(block);
        let bytes = self.volume.block(block)?;
        let parsed = match XattrBlock::parse(&bytes, block, self.volume.seed()) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.findings.add(FindingKind::Attributes, place, error);
                return Ok(SharedBlock {
                    references: None,
                    value_blocks: 0,
                });
            }
        };
        if parsed.hash != 0 && parsed.hash != parsed.computed_hash() {
            let words = format_args!("h_hash is {:#x}", parsed.hash);
            self.findings
                .add(FindingKind::Attributes, place.clone(), words);
        }
        let value_blocks = self.check_list(&parsed.attributes, owner, &place)?;
        Ok(SharedBlock {
            references: Some(References {
                stored: parsed.references.into(),
                found: 0,
            }),
            value_blocks,
        })
    }

    /// Validates hashes and large values; returns the blocks that `i_blocks` counts for the latter.
    fn check_list(
        &mut self,
        attributes: &Attributes<'_>,
        owner: Owner,
        place: &Location,
    ) -> Result<u64> {
        if let Err(error) = attributes.check_hashes() {
            self.findings
                .add(FindingKind::Attributes, place.clone(), error);
        }
        let mut blocks = 0;
        for attribute in attributes.iter() {
            if attribute.name.index == NameIndex(0) {
                let name = attribute.name.rest.escape_ascii();
                let words = format_args!("e_name_index of attribute {name} is 0");
                self.findings
                    .add(FindingKind::Attributes, place.clone(), words);
            }
            if let XattrValue::Inode { inode, bytes } = attribute.value {
                let block_bytes = self.volume.layout().block_bytes();
                match self.check_value(attribute, inode, bytes, owner, place)? {
                    ValueForm::Counted => blocks += u64::from(bytes.div_ceil(block_bytes)),
                    ValueForm::Lustre => {}
                }
            }
        }
        Ok(blocks)
    }

    /// The inode that holds a value, when it is named.
    fn check_value(
        &mut self,
        attribute: &Attribute<'_>,
        number: InodeNumber,
        bytes: u32,
        owner: Owner,
        place: &Location,
    ) -> Result<ValueForm> {
        let layout = *self.volume.layout();
        let has_feature = self
            .volume
            .superblock()
            .features()
            .incompat
            .contains(Incompat::EA_INODE);
        let inode = self.volume.inode(number)?.filter(|inode| {
            inode.flags().contains(InodeFlags::EA_INODE)
                && inode.links() > 0
                && inode.mode().file_type() == Some(FileType::Regular)
                && inode.size_bytes(&layout) == u64::from(bytes)
        });
        let Some(inode) = inode.filter(|_| has_feature) else {
            let words = format_args!("no value of {bytes} bytes in inode {number}");
            self.findings
                .add(FindingKind::Attributes, place.clone(), words);
            return Ok(ValueForm::Counted);
        };
        // Fields that a file has for other things.
        let raw = inode.raw();
        let names_owner =
            raw.i_mtime.get() == owner.number.0 && raw.i_generation.get() == owner.generation;
        if names_owner && !attribute.is_hash_of_inode(raw.i_atime.get()) {
            self.shared.lustre_values.insert(number);
            return Ok(ValueForm::Lustre);
        }
        if !attribute.is_hash_of_inode(raw.i_atime.get()) {
            let words = format_args!("e_hash does not fit the value in inode {number}");
            self.findings
                .add(FindingKind::Attributes, place.clone(), words);
        }
        let stored = u64::from(raw.i_ctime.get()) << 32 | u64::from(raw.l_i_version.get());
        let value = self.shared.values.entry(number);
        value.or_insert(References { stored, found: 0 }).found += 1;
        Ok(ValueForm::Counted)
    }

    /// Compares how often attribute blocks and values are named.
    pub(crate) fn check_attribute_references(&mut self) {
        let wrong = |references: &References| references.stored != references.found;
        for (&block, shared) in &self.shared.blocks {
            if let Some(references) = shared.references.filter(|references| wrong(references)) {
                let words = format_args!(
                    "h_refcount is {}, and {} inodes name the block",
                    references.stored, references.found
                );
                let place = Location::block(block);
                self.findings
                    .add(FindingKind::AttributeReferences, place, words);
            }
        }
        for (&number, references) in self.shared.values.iter().filter(|(_, it)| wrong(it)) {
            let words = format_args!(
                "counts {} references to the value, and there are {}",
                references.stored, references.found
            );
            self.findings.add(
                FindingKind::AttributeReferences,
                Location::inode(number),
                words,
            );
        }
        for (number, _) in self
            .states
            .used()
            .filter(|(_, state)| state.usage == InodeUse::AttributeValue)
            .filter(|(number, _)| {
                !self.shared.values.contains_key(number)
                    && !self.shared.lustre_values.contains(number)
            })
        {
            let words = "the value of an attribute without references";
            self.findings
                .add(FindingKind::Unreachable, Location::inode(number), words);
        }
    }
}
