//! Inspection of the journal.

use extant_jbd2::{JournalLocation, Recovery, RecoveryReport, Run};
use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{Access, InodeNumber, PhysicalBlock};
use extant_ondisk::jbd2::JournalSuperblock;
use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile};

use crate::filesystem::Filesystem;

/// Properties of a journal.
#[derive(Clone, Debug)]
pub struct JournalLook {
    /// The journal's inode.
    pub inode: InodeNumber,
    /// The blocks of the journal.
    pub runs: Vec<Run>,
    /// Its superblock.
    pub superblock: JournalSuperblock,
    /// Transactions in the log that are not checkpointed. `None` for a file system that is open for
    /// changes.
    pub recovery: Option<RecoveryReport>,
}

impl Filesystem {
    /// Reads the journal; `None` without one.
    ///
    /// # Errors
    /// `Corrupt` for invalid contents; `Unsupported` for an external journal.
    pub fn journal(&self) -> Result<Option<JournalLook>> {
        self.engine.record_corruption(self.look_at_journal())
    }

    fn look_at_journal(&self) -> Result<Option<JournalLook>> {
        let fs = &self.engine.fs;
        let superblock = self.superblock();
        let inode = match superblock.journal() {
            None => return Ok(None),
            Some(JournalPlace::Inode(inode)) => inode,
            Some(JournalPlace::Device { .. }) => {
                return Err(Error::new(ErrorKind::Unsupported)
                    .detail("the journal is on an external device"));
            }
        };
        let (block_bytes, bits) = (fs.layout.block_bytes(), fs.layout.block_bits());
        let file = self.node(inode)?.file()?;
        let mut runs: Vec<Run> = Vec::new();
        for extent in file.extents(ByteRange::new(0, file.size()?))? {
            let first = PhysicalBlock(extent.physical.unwrap_or_default() >> bits);
            let blocks = (extent.logical.len() >> bits) as u32;
            match runs.last_mut() {
                Some(last) if last.first.0 + u64::from(last.blocks) == first.0 => {
                    last.blocks += blocks;
                }
                _ => runs.push(Run { first, blocks }),
            }
        }
        let place = JournalLocation::new(block_bytes, &runs)?;
        let mut block = vec![0; block_bytes as usize];
        file.read_at(&mut block, 0)?;
        let recovery = match self.access() {
            Access::ReadOnly => {
                let recovery = Recovery::read(self.device(), place)?;
                Some(*recovery.report())
            }
            Access::ReadWrite => None,
        };
        Ok(Some(JournalLook {
            inode,
            runs,
            superblock: JournalSuperblock::parse(&block)?,
            recovery,
        }))
    }
}
