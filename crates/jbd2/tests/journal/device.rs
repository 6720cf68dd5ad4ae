//! A small device with an empty journal in two runs: blocks 0 to 63 hold metadata in place, the
//! journal begins in the middle of the rest.

use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_jbd2::{
    BlockNumbers, Checksums, FastCommits, Journal, JournalLocation, JournalOptions, LogFormat,
    Recovery, RecoveryReport, Run,
};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::superblock::RawJournalSuperblock;
use extant_space::Result;
use zerocopy::{FromZeros, IntoBytes};

pub const BLOCK: usize = 1024;
pub const HOMES: u64 = 64;
pub const V3: LogFormat = LogFormat {
    checksums: Checksums::V3,
    block_numbers: BlockNumbers::Bits64,
};

pub const FORMATS: [LogFormat; 8] = {
    const fn both(checksums: Checksums) -> [LogFormat; 2] {
        [
            LogFormat {
                checksums,
                block_numbers: BlockNumbers::Bits32,
            },
            LogFormat {
                checksums,
                block_numbers: BlockNumbers::Bits64,
            },
        ]
    }
    let [a, b] = both(Checksums::None);
    let [c, d] = both(Checksums::Transaction);
    let [e, f] = both(Checksums::V2);
    let [g, h] = both(Checksums::V3);
    [a, b, c, d, e, f, g, h]
};

/// A journal of `blocks` blocks: its second half is before its first on the device.
pub fn location(blocks: u32) -> JournalLocation {
    let half = blocks / 2;
    let run = |first, blocks| Run {
        first: PhysicalBlock(first),
        blocks,
    };
    let runs = [
        run(HOMES + u64::from(half), blocks - half),
        run(HOMES, half),
    ];
    JournalLocation::new(BLOCK as u32, &runs).unwrap()
}

/// The byte offset of a block of the journal.
pub fn offset(location: &JournalLocation, block: u32) -> u64 {
    location.runs(block, 1).next().unwrap().first.0 * BLOCK as u64
}

/// A device with a journal as mke2fs makes it: empty, and without any feature.
pub fn device(blocks: u32) -> MemoryDevice {
    device_from(blocks, 1)
}

/// The same, after transactions up to `sequence`.
pub fn device_from(blocks: u32, sequence: u32) -> MemoryDevice {
    let device = MemoryDevice::new((HOMES + u64::from(blocks)) * BLOCK as u64);
    let mut raw = RawJournalSuperblock::new_zeroed();
    raw.s_header.h_magic.set(0xC03B_3998);
    raw.s_header.h_blocktype.set(4);
    raw.s_blocksize.set(BLOCK as u32);
    raw.s_maxlen.set(blocks);
    raw.s_first.set(1);
    raw.s_sequence.set(sequence);
    raw.s_nr_users.set(1);
    raw.s_uuid = *b"a journal's uuid";
    let at = offset(&location(blocks), 0);
    device
        .write_at(raw.as_bytes(), at, Persistence::Fua)
        .unwrap();
    device
}

pub fn options(format: LogFormat) -> JournalOptions {
    JournalOptions {
        format: Some(format),
        fast_commits: FastCommits::Off,
    }
}

pub fn open(device: impl Device + 'static, blocks: u32, format: LogFormat) -> Journal {
    Journal::open(Arc::new(device), location(blocks), options(format)).unwrap()
}

/// Recovers wholly.
pub fn recover(device: Arc<dyn Device>, blocks: u32) -> Result<RecoveryReport> {
    let recovery = Recovery::read(device, location(blocks))?;
    let report = *recovery.report();
    recovery.replay()?;
    recovery.finish()?;
    Ok(report)
}

/// Contents of a block in place.
pub fn home(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut contents = vec![0; BLOCK];
    device.read_at(&mut contents, block * BLOCK as u64).unwrap();
    contents
}

/// Contents that name a block and a version of it. Some begin with the magic number of the journal.
pub fn contents(block: u64, version: u64) -> Arc<[u8]> {
    let mut bytes = vec![version as u8; BLOCK];
    if (block + version).is_multiple_of(3) {
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
    }
    bytes[4..12].copy_from_slice(&block.to_le_bytes());
    bytes[12..20].copy_from_slice(&version.to_le_bytes());
    bytes.into()
}
