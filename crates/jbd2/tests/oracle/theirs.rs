//! Logs of debugfs and the kernel, replayed by this crate and by e2fsck to the same bytes.

use std::fs;
use std::io::Write;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::image::{BLOCK, Image, recover};

/// Replays both ways and compares every block but the two superblocks, that of the file system and
/// that of the journal, which identify the writer. Returns how many transactions there were.
#[track_caller]
fn replay_both_ways(image: &Image, block: usize) -> u32 {
    let theirs = Image::copy_of(&image.path);
    theirs.e2fsck(&["-E", "journal_only"]);
    let theirs = fs::read(&theirs.path).unwrap();

    let location = image.location(block);
    let journal = location.runs(0, 1).next().unwrap().first.0 as usize;
    let device = image.load();
    let report = recover(device.clone(), location);
    assert_eq!(report.failed_commit, None);
    let ours = device.to_vec();
    for (number, (ours, theirs)) in ours.chunks(block).zip(theirs.chunks(block)).enumerate() {
        if number != 1024 / block && number != journal {
            assert!(ours == theirs, "block {number} after replay of {report:?}");
        }
    }
    report.transactions
}

#[test]
fn log_of_debugfs_is_replayed_as_e2fsck_does() {
    require!(
        requires::tool("mkfs.ext4"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for open in ["jo", "jo -c"] {
        let image = Image::new();
        let blocks = image.free_blocks(90);
        let data = image.path.with_extension("data");
        let mut contents: Vec<u8> = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let mut one = [number as u8; BLOCK];
            one[..8].copy_from_slice(&block.to_le_bytes());
            if number % 4 == 0 {
                one[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
            }
            contents.write_all(&one).unwrap();
        }
        fs::write(&data, contents).unwrap();
        let list = |blocks: &[u64]| {
            let words: Vec<_> = blocks.iter().map(u64::to_string).collect();
            words.join(",")
        };
        let data = data.display();
        let (all, some, none) = (list(&blocks), list(&blocks[30..60]), list(&blocks[50..70]));
        image.debugfs(&format!(
            "{open}\njw -b {all} {data}\njw -b {some} {data}\njw -r {none}\njc\n"
        ));
        assert_eq!(replay_both_ways(&image, BLOCK), 3, "{open}");
    }
}

#[test]
fn log_of_the_kernel_is_replayed_as_e2fsck_does() {
    require!(
        requires::root(),
        requires::kernel_filesystem("ext4"),
        requires::tool("mkfs.ext4"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for (options, block) in [
        (&["-b", "1024", "-O", "^metadata_csum,^64bit"][..], 1024),
        (&["-b", "1024"], 1024),
        (&["-b", "4096"], 4096),
    ] {
        let scratch = Scratch::builder(Filesystem::Ext4, 32 << 20)
            .mkfs_options(options)
            .build();
        let directory = scratch.path();
        // Directories that are given up are blocks of metadata that are revoked; their blocks go to
        // files.
        for round in 0..6 {
            for name in 0..40 {
                let file = directory.join(format!("{round}-{name}"));
                fs::create_dir(file.with_extension("directory")).unwrap();
                fs::write(&file, vec![name as u8; 5000 + name * 100]).unwrap();
            }
            if round > 0 {
                for name in 0..40 {
                    let file = directory.join(format!("{}-{name}", round - 1));
                    fs::remove_dir(file.with_extension("directory")).unwrap();
                }
            }
            let last = fs::File::open(directory.join(format!("{round}-1"))).unwrap();
            last.sync_all().unwrap();
        }
        // The loop device holds the kernel's writes; nothing has been checkpointed yet.
        let image = Image::copy_of(scratch.backing_file().unwrap());
        let transactions = replay_both_ways(&image, block);
        assert!(
            transactions >= 5,
            "{transactions} transactions, {options:?}"
        );
    }
}
