//! Logs of this crate, replayed by e2fsck and by the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_jbd2::{
    BlockNumbers, Checksums, FastCommits, Frozen, Journal, JournalOptions, LogFormat,
};
use extant_ondisk::ext4::PhysicalBlock;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{BLOCK, Image, block, recover};

const FORMATS: [(Checksums, BlockNumbers); 6] = [
    (Checksums::None, BlockNumbers::Bits32),
    (Checksums::None, BlockNumbers::Bits64),
    (Checksums::Transaction, BlockNumbers::Bits64),
    (Checksums::V2, BlockNumbers::Bits64),
    (Checksums::V3, BlockNumbers::Bits32),
    (Checksums::V3, BlockNumbers::Bits64),
];

/// Leaves transactions in the log: several descriptor blocks, blocks that begin with the magic
/// number, blocks changed again, blocks revoked. Returns the expected content of each block after
/// replay.
fn leave_log(image: &Image, format: LogFormat, rounds: u8) -> BTreeMap<u64, Vec<u8>> {
    let blocks = image.free_blocks(200);
    let device = image.load();
    let options = JournalOptions {
        format: Some(format),
        fast_commits: FastCommits::Off,
    };
    let location = image.location(BLOCK);
    let journal = Journal::open(device.clone(), location, options).unwrap();
    let mut expected: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for round in 1..=rounds {
        let mut frozen = Frozen::new();
        for (number, &home) in blocks.iter().enumerate().skip(usize::from(round)) {
            if number % usize::from(round) != 0 {
                continue;
            }
            let mut contents = vec![round; BLOCK];
            contents[..8].copy_from_slice(&home.to_le_bytes());
            if number % 5 == 0 {
                contents[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
            }
            frozen.block(PhysicalBlock(home), Arc::from(contents.as_slice()));
            expected.insert(home, contents);
        }
        // Changed in the round before, and not in this one.
        let revoked = blocks[usize::from(round) - 1];
        frozen.revoke(PhysicalBlock(revoked));
        expected.remove(&revoked);
        journal.commit(frozen).unwrap();
    }
    // Blocks already in place count as well, and a revoked block keeps its contents.
    for home in blocks {
        expected
            .entry(home)
            .or_insert_with(|| block(&*device, home));
    }
    drop(journal);
    image.store(&device);
    expected
}

fn assert_blocks(device: &dyn Device, expected: &BTreeMap<u64, Vec<u8>>, who: &str) {
    for (home, contents) in expected {
        assert!(
            block(device, *home) == *contents,
            "block {home} after {who}"
        );
    }
}

#[test]
fn log_of_every_format_is_replayed_by_e2fsck() {
    require!(
        requires::tool("mkfs.ext4"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for (checksums, block_numbers) in FORMATS {
        let format = LogFormat {
            checksums,
            block_numbers,
        };
        let image = Image::new();
        let expected = leave_log(&image, format, 5);
        image.set_needs_recovery();
        let own = Image::copy_of(&image.path);

        let report = image.e2fsck(&["-f"]);
        assert!(
            report.contains("recovering journal"),
            "{format:?}: {report}"
        );
        for complaint in ["corrupt", "checksum", "Checksum", "invalid", "error"] {
            assert!(!report.contains(complaint), "{format:?}: {report}");
        }
        assert_blocks(&*image.load(), &expected, "e2fsck");
        assert_e2fsck_clean(&image.path);

        let device = own.load();
        let report = recover(device.clone(), own.location(BLOCK));
        assert_eq!(report.transactions, 5);
        assert_blocks(&*device, &expected, "our own replay");
        own.store(&device);
        // Nothing is left to replay: the file system is valid for e2fsck, except for the flag.
        own.e2fsck(&["-E", "journal_only"]);
        assert_e2fsck_clean(&own.path);
    }
}

#[test]
fn log_that_went_round_many_times_is_replayed_by_e2fsck() {
    require!(
        requires::tool("mkfs.ext4"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let image = Image::new();
    let format = LogFormat {
        checksums: Checksums::V3,
        block_numbers: BlockNumbers::Bits64,
    };
    let expected = leave_log(&image, format, 60);
    image.set_needs_recovery();
    image.e2fsck(&["-f"]);
    assert_blocks(&*image.load(), &expected, "e2fsck");
}

#[test]
fn logdump_finds_every_transaction() {
    require!(requires::tool("mkfs.ext4"), requires::tool("debugfs"));
    let image = Image::new();
    let format = LogFormat {
        checksums: Checksums::V3,
        block_numbers: BlockNumbers::Bits64,
    };
    leave_log(&image, format, 3);
    let dump = image.debugfs("logdump\n");
    let count = |kind: &str| dump.matches(kind).count();
    assert_eq!(count("(commit block)"), 3, "{dump}");
    assert_eq!(count("(revoke table)"), 3, "{dump}");
    assert!(count("(descriptor block)") > 3, "{dump}");
    assert!(dump.contains("end of journal"), "{dump}");
}

#[test]
fn log_is_replayed_by_the_kernel_and_the_journal_used_on() {
    require!(
        requires::root(),
        requires::kernel_filesystem("ext4"),
        requires::tool("mkfs.ext4"),
        requires::tool("debugfs")
    );
    for (checksums, block_numbers) in FORMATS {
        let format = LogFormat {
            checksums,
            block_numbers,
        };
        let image = Image::new();
        let expected = leave_log(&image, format, 5);
        image.set_needs_recovery();
        use_in_kernel(&image);
        assert_blocks(&*image.load(), &expected, "the kernel's replay");
        assert_e2fsck_clean(&image.path);

        // And round again: the kernel left its features and its numbers.
        let expected = leave_log(&image, format, 5);
        image.set_needs_recovery();
        use_in_kernel(&image);
        assert_blocks(&*image.load(), &expected, "the kernel's second replay");
        assert_e2fsck_clean(&image.path);
    }
}

/// Mounts the image, writes a file and unmounts. The file uses none of the compared blocks: it has
/// no data.
fn use_in_kernel(image: &Image) {
    let work = Workdir::new();
    let directory = work.directory("mount");
    let device = LoopDevice::attach(&image.path);
    let mount = Mount::new("ext4", device.path(), &directory, "");
    let name = directory.join("used");
    std::fs::write(&name, b"").unwrap();
    std::fs::File::open(&name).unwrap().sync_all().unwrap();
    std::fs::remove_file(&name).unwrap();
    mount.unmount();
}

#[test]
fn emptied_journal_is_left_as_mke2fs_and_the_kernel_leave_it() {
    require!(
        requires::tool("mkfs.ext4"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let image = Image::new();
    let device: Arc<MemoryDevice> = image.load();
    let format = LogFormat {
        checksums: Checksums::V3,
        block_numbers: BlockNumbers::Bits64,
    };
    let options = JournalOptions {
        format: Some(format),
        fast_commits: FastCommits::Off,
    };
    let home = PhysicalBlock(image.free_blocks(1)[0]);
    let journal = Journal::open(device.clone(), image.location(BLOCK), options).unwrap();
    let mut frozen = Frozen::new();
    frozen.block(home, Arc::new([5; BLOCK]));
    journal.commit(frozen).unwrap();
    journal.empty().unwrap();
    image.store(&device);
    assert_e2fsck_clean(&image.path);
    assert_eq!(image.block(home.0), [5; BLOCK]);
}
