//! Multiple-mount protection against debugfs.

use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::ext4::mmp::{Mmp, MmpState};
use extant_space::Corruption;
use extant_testkit::require;

use crate::image::{Image, e2fsprogs};

fn read(image: &Image) -> Mmp {
    let superblock = image.superblock();
    let block = PhysicalBlock(superblock.raw().s_mmp_block.get());
    let bytes = image.block(superblock.layout(), block);
    Mmp::parse(&bytes, superblock.seed()).unwrap()
}

/// The words of debugfs's `dump_mmp` behind `name: `.
fn said(image: &Image, name: &str) -> String {
    let text = image.ask("dump_mmp");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .trim()
        .to_owned()
}

#[test]
fn block_of_mke2fs_is_clean_and_read_as_debugfs_reads_it() {
    require!(e2fsprogs());
    for options in ["mmp", "mmp,^metadata_csum"] {
        let image = Image::mkfs(64, &["-O", options]);
        image.change(&["set_mmp_value nodename a-machine".into()]);
        let block = read(&image);
        assert_eq!(block.state(), MmpState::Clean);
        assert_eq!(said(&image, "sequence:"), "ff4d4d50");
        assert!(block.raw().mmp_nodename.starts_with(b"a-machine\0"));
        assert_eq!(said(&image, "node_name:"), "a-machine");
        let interval = block.raw().mmp_check_interval.get().to_string();
        assert_eq!(said(&image, "check_interval:"), interval);
    }
}

#[test]
fn each_state_is_the_one_that_debugfs_names() {
    require!(e2fsprogs());
    // Without checksums, because nothing here writes the block.
    let image = Image::mkfs(64, &["-O", "mmp,^metadata_csum"]);
    let superblock = image.superblock();
    let block = PhysicalBlock(superblock.raw().s_mmp_block.get());
    let start = superblock.layout().bytes_of(block).start();
    for (sequence, state, words) in [
        (0xE24D_4D50_u32, MmpState::Fsck, "e24d4d50"),
        (0x0001_2345, MmpState::Mounted(0x12345), "00012345"),
        (0xFF4D_4D50, MmpState::Clean, "ff4d4d50"),
    ] {
        image.write(start + 4, &sequence.to_le_bytes());
        assert_eq!(read(&image).state(), state);
        assert_eq!(said(&image, "sequence:"), words);
    }
}

#[test]
fn changed_and_missing_block_is_refused() {
    require!(e2fsprogs());
    let image = Image::mkfs(64, &["-O", "mmp"]);
    let superblock = image.superblock();
    let block = PhysicalBlock(superblock.raw().s_mmp_block.get());
    let mut bytes = image.block(superblock.layout(), block);
    bytes[0x10] ^= 1;
    let error = Mmp::parse(&bytes, superblock.seed()).unwrap_err();
    assert_eq!(error.corruption(), Some(&Corruption::checksum("mmp block")));
    bytes[0] = 0;
    let line = Mmp::parse(&bytes, superblock.seed())
        .unwrap_err()
        .to_string();
    assert_eq!(line, "mmp block: mmp_magic is 0x4d4d00, not 0x4d4d50");
    let line = Mmp::parse(&bytes[..1000], None).unwrap_err().to_string();
    assert_eq!(line, "mmp block: only 1000 bytes");
}
