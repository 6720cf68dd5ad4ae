//! Damaged and hostile logs: an error or the end of the log, never a wrong state, a panic or a walk
//! without end.

use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_jbd2::{Frozen, LogFormat, Recovery};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::ErrorKind;

use crate::device::{
    BLOCK, FORMATS, HOMES, V3, contents, device, home, location, offset, open, recover,
};

const BLOCKS: u32 = 40;
const TRANSACTIONS: u64 = 4;

/// A log of transactions that each change three blocks, two of them again and again, and revoke
/// one.
fn leave_log(format: LogFormat) -> MemoryDevice {
    let device = Arc::new(device(BLOCKS));
    let journal = open(device.clone(), BLOCKS, format);
    for number in 1..=TRANSACTIONS {
        let mut frozen = Frozen::new();
        for block in [0, 1, 10 + number] {
            frozen.block(PhysicalBlock(block), contents(block, number));
        }
        frozen.revoke(PhysicalBlock(10 + number - 1));
        journal.commit(frozen).unwrap();
    }
    device.snapshot()
}

/// The number of transactions visible on a device, if its state is that after one of them.
fn state(device: &dyn Device) -> Option<u64> {
    let counter = home(device, 0);
    let number = u64::from_le_bytes(counter[12..20].try_into().unwrap());
    let is_state = match number {
        0 => (0..HOMES).all(|block| home(device, block) == [0; BLOCK]),
        _ => (0..HOMES).all(|block| {
            let is = home(device, block);
            match block {
                0 | 1 => is == *contents(block, number),
                _ if block == 10 + number => is == *contents(block, number),
                _ => is == [0; BLOCK],
            }
        }),
    };
    (is_state && number <= TRANSACTIONS).then_some(number)
}

fn flip(device: &MemoryDevice, at: u64) {
    let sector = at & !511;
    let mut bytes = [0; 512];
    device.read_at(&mut bytes, sector).unwrap();
    bytes[(at - sector) as usize] ^= 0x10;
    device.write_at(&bytes, sector, Persistence::Fua).unwrap();
}

#[test]
fn any_flipped_byte_is_an_error_or_the_end_of_the_log() {
    let whole = leave_log(V3);
    let (mut errors, mut ends) = (0, 0);
    for block in 0..BLOCKS {
        let at = offset(&location(BLOCKS), block);
        // Copies are all alike.
        for byte in (at..at + BLOCK as u64).step_by(7) {
            let device = Arc::new(whole.snapshot());
            flip(&device, byte);
            match recover(device.clone(), BLOCKS) {
                Ok(_) => {
                    let state = state(&*device);
                    let state = state.unwrap_or_else(|| panic!("byte {byte}: a wrong state"));
                    ends += u64::from(state < TRANSACTIONS);
                }
                Err(error) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "byte {byte}: {error}");
                    // Nothing has changed.
                    assert_eq!(state(&*device), Some(0), "byte {byte}");
                    errors += 1;
                }
            }
        }
    }
    assert!(errors > 300 && ends > 100, "{errors} errors, {ends} ends");
}

#[test]
fn damaged_copy_that_is_not_replayed_harms_nothing() {
    let device = Arc::new(leave_log(V3));
    // Revoke block, descriptor, then the first copy of block 0, which later ones replace.
    flip(&device, offset(&location(BLOCKS), 3) + 100);
    recover(device.clone(), BLOCKS).unwrap();
    assert_eq!(state(&*device), Some(TRANSACTIONS));
}

#[test]
fn damaged_commit_block_ends_the_log_and_is_reported() {
    for format in FORMATS {
        let device = Arc::new(leave_log(format));
        // A transaction has a revoke block, a descriptor, three copies and a commit block.
        flip(&device, offset(&location(BLOCKS), 2 * 6) + 0x11);
        let report = recover(device.clone(), BLOCKS).unwrap();
        let is_seen = format.checksums != extant_jbd2::Checksums::None;
        assert_eq!(report.failed_commit.is_some(), is_seen, "{format:?}");
        assert_eq!(report.transactions, if is_seen { 1 } else { 4 });
        assert_eq!(state(&*device), Some(u64::from(report.transactions)));
    }
}

#[test]
fn torn_commit_block_is_the_end_of_a_log_and_damage_within_it() {
    // All its fields are in its first sector; the second is still that of an older round.
    for (transaction, is_last) in [(1, false), (3, true)] {
        let device = Arc::new(leave_log(V3));
        let commit = offset(&location(BLOCKS), (transaction + 1) * 6);
        device
            .write_at(&[0xA5; 512], commit + 512, Persistence::Cached)
            .unwrap();
        let report = recover(device.clone(), BLOCKS).unwrap();
        assert_eq!(report.failed_commit.is_some(), !is_last);
        assert_eq!(report.transactions, transaction);
        assert_eq!(state(&*device), Some(u64::from(transaction)));
    }
}

#[test]
fn damaged_descriptor_of_a_committed_transaction_is_an_error_that_names_it() {
    let device = Arc::new(leave_log(V3));
    flip(&device, offset(&location(BLOCKS), 2) + 500);
    let error = recover(device, BLOCKS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let line = error.to_string();
    assert!(line.contains("block 2 of the journal"), "{line}");
}

#[test]
fn recovery_survives_a_damaged_log_in_every_format() {
    let mut random = fastrand::Rng::with_seed(7);
    for format in FORMATS {
        let whole = leave_log(format);
        for _ in 0..300 {
            let device = Arc::new(whole.snapshot());
            for _ in 0..random.usize(1..20) {
                // The superblock's own checks are those of another crate; here most of it is kept.
                let least = u32::from(random.u8(..20) > 0);
                let block = random.u32(least..BLOCKS);
                let at = offset(&location(BLOCKS), block);
                flip(&device, at + random.u64(..64.min(BLOCK as u64)));
            }
            // Recovery ends with any result, and the next one finds an empty log.
            if recover(device.clone(), BLOCKS).is_ok() {
                assert!(
                    !Recovery::read(device, location(BLOCKS))
                        .unwrap()
                        .is_needed()
                );
            }
        }
    }
}

/// A log without checksums whose blocks all claim to be part of the transaction that is due.
fn hostile(random: &mut fastrand::Rng, kinds: &[u32]) -> MemoryDevice {
    let format = FORMATS[random.usize(..4)];
    let device = leave_log(format);
    let recovery = Recovery::read(Arc::new(device.snapshot()), location(BLOCKS)).unwrap();
    let first = recovery.report().next.0.wrapping_sub(TRANSACTIONS as u32);
    let mut sequence = first;
    for block in 1..BLOCKS {
        let mut bytes = [0; BLOCK];
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        let kind = *random.choice(kinds).unwrap();
        bytes[4..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_be_bytes());
        // Revoke counts, tags and flags.
        for word in bytes[12..].chunks_exact_mut(4) {
            let value: u32 = match random.u8(..4) {
                0 => random.u32(..),
                1 => random.u32(..80),
                _ => 0,
            };
            word.copy_from_slice(&value.to_be_bytes());
        }
        sequence += u32::from(kind == 2);
        let at = offset(&location(BLOCKS), block);
        device.write_at(&bytes, at, Persistence::Fua).unwrap();
    }
    device
}

#[test]
fn log_without_a_commit_block_has_an_end() {
    let mut random = fastrand::Rng::with_seed(9);
    for kinds in [&[5u32][..], &[1], &[1, 5]] {
        for _ in 0..100 {
            let device: Arc<dyn Device> = Arc::new(hostile(&mut random, kinds));
            let recovery = Recovery::read(device, location(BLOCKS)).unwrap();
            assert_eq!(recovery.report().transactions, 0);
        }
    }
}

#[test]
fn hostile_log_writes_only_file_system_blocks() {
    let mut random = fastrand::Rng::with_seed(10);
    let mut replayed = 0;
    for _ in 0..500 {
        let device = Arc::new(hostile(&mut random, &[1, 2, 2, 5]));
        let before = device.snapshot();
        let journal = offset(&location(BLOCKS), 0).min(offset(&location(BLOCKS), BLOCKS / 2));
        let Ok(recovery) = Recovery::read(device.clone(), location(BLOCKS)) else {
            continue;
        };
        recovery.replay().unwrap();
        replayed += recovery.report().blocks;
        assert_eq!(
            device.to_vec()[journal as usize..],
            before.to_vec()[journal as usize..],
            "the journal itself"
        );
    }
    assert!(replayed > 10, "{replayed} blocks");
}

#[test]
fn copy_of_a_block_outside_the_file_system_is_an_error() {
    // Without checksums the number can be changed alone: the first tag of the first descriptor.
    let format = FORMATS[0];
    for wrong in [HOMES as u32, HOMES as u32 + BLOCKS, u32::MAX] {
        let device = Arc::new(leave_log(format));
        let at = offset(&location(BLOCKS), 2);
        let mut bytes = [0; BLOCK];
        device.read_at(&mut bytes, at).unwrap();
        bytes[12..16].copy_from_slice(&wrong.to_be_bytes());
        device.write_at(&bytes, at, Persistence::Fua).unwrap();
        let error = recover(device, BLOCKS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains("is outside the file system"),
            "{error}"
        );
    }
}

#[test]
fn superblock_of_another_journal_is_refused() {
    let device: Arc<dyn Device> = Arc::new(leave_log(V3));
    // Blocks 0 to 29 of it alone: shorter than its own length field.
    let all = location(BLOCKS);
    let runs: Vec<_> = all.runs(0, 30).collect();
    let short = extant_jbd2::JournalLocation::new(BLOCK as u32, &runs).unwrap();
    let error = Recovery::read(device.clone(), short).err().unwrap();
    assert!(error.to_string().contains("s_maxlen is 40"), "{error}");

    let run = extant_jbd2::Run {
        first: PhysicalBlock(HOMES + BLOCKS as u64 - 1),
        blocks: 2,
    };
    let outside = extant_jbd2::JournalLocation::new(BLOCK as u32, &[run]).unwrap();
    let error = Recovery::read(device, outside).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
