//! The journal.

use extant_ext4::{Access, Filesystem};
use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};
use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

use super::line;
use crate::fs::df::uuid_text;

#[derive(Debug, Serialize)]
pub(in crate::fs) struct Fields {
    inode: u32,
    runs: Vec<JournalLocation>,
    blocks: u32,
    block_bytes: u32,
    fast_commit_blocks: u32,
    features: Vec<String>,
    checksums: &'static str,
    block_number_bits: u32,
    uuid: String,
    sequence: u32,
    start: Option<u32>,
    error: i32,
    needs_recovery: bool,
    transactions: Option<u32>,
    blocks_not_home: Option<u32>,
    blocks_revoked: Option<u64>,
}

#[derive(Debug, Serialize)]
struct JournalLocation {
    first_block: u64,
    blocks: u32,
}

impl Fields {
    pub(in crate::fs) fn of(filesystem: &Filesystem) -> Result<Self> {
        debug_assert_eq!(filesystem.access(), Access::ReadOnly);
        let Some(look) = filesystem.journal()? else {
            return Err(Error::new(ErrorKind::NotFound).detail("the file system has no journal"));
        };
        let superblock = &look.superblock;
        let features = superblock.features();
        let format = superblock.format();
        let names = features
            .compat
            .names()
            .chain(features.incompat.names())
            .chain(features.ro_compat.names());
        let recovery = look.recovery;
        Ok(Self {
            inode: look.inode.0,
            runs: look
                .runs
                .iter()
                .map(|run| JournalLocation {
                    first_block: run.first.0,
                    blocks: run.blocks,
                })
                .collect(),
            blocks: superblock.blocks(),
            block_bytes: format.block_bytes,
            fast_commit_blocks: superblock.fast_commits().len() as u32,
            features: names.map(|name| name.to_string()).collect(),
            checksums: match format.checksums {
                Checksums::V3 => "v3",
                Checksums::V2 => "v2",
                _ => "none, or of commits",
            },
            block_number_bits: match format.block_numbers {
                BlockNumbers::Bits32 => 32,
                BlockNumbers::Bits64 => 64,
            },
            uuid: uuid_text(&superblock.raw().s_uuid),
            sequence: superblock.sequence().0,
            start: superblock.start().map(|block| block.0),
            error: superblock.error_number(),
            needs_recovery: superblock.start().is_some(),
            transactions: recovery.map(|found| found.transactions),
            blocks_not_home: recovery.map(|found| found.blocks),
            blocks_revoked: recovery.map(|found| found.revoked),
        })
    }

    pub(in crate::fs) fn describe(&self) -> String {
        let runs: Vec<String> = self
            .runs
            .iter()
            .map(|run| {
                let end = run.first_block + u64::from(run.blocks) - 1;
                format!("{}-{end}", run.first_block)
            })
            .collect();
        let mut lines = vec![
            line("Journal inode", self.inode),
            line(
                "Journal blocks",
                format!("{} of {} bytes", self.blocks, self.block_bytes),
            ),
            line("Journal at", runs.join(", ")),
            line("Journal features", self.features.join(" ")),
            line("Journal checksums", self.checksums),
            line("Journal UUID", &self.uuid),
            line("Journal sequence", self.sequence),
        ];
        if self.fast_commit_blocks > 0 {
            lines.push(line("Fast commit blocks", self.fast_commit_blocks));
        }
        if self.error != 0 {
            lines.push(line("Stopped by error", self.error));
        }
        lines.push(
            match (self.needs_recovery, self.transactions, self.blocks_not_home) {
                (true, Some(transactions), Some(blocks)) => line(
                    "Needs recovery",
                    format!(
                        "{transactions} transactions with {blocks} blocks, {} revoked",
                        self.blocks_revoked.unwrap_or_default()
                    ),
                ),
                (true, ..) => line("Needs recovery", "yes"),
                (false, ..) => line("Needs recovery", "no"),
            },
        );
        lines.join("\n")
    }
}
