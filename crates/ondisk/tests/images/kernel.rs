//! Images that the kernel left without an unmount: a journal in use, orphans; and attributes.

use std::fs::{self, File};

use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::xattr::{Attributes, XattrBlock, XattrName, XattrValue};
use extant_ondisk::ext4::{InodeNumber, PhysicalBlock, orphan};
use extant_ondisk::jbd2::format::Checksums;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, require, requires};

use crate::image::{Image, e2fsprogs};
use crate::journal::{Author, Journal};
use crate::walk::Walk;

pub const SIZE_BYTES: u64 = 64 << 20;

/// Contents that the device has received. Its node would also show those that are in memory only.
pub fn copy(scratch: &Scratch) -> Image {
    let image = Image::empty(SIZE_BYTES >> 20);
    fs::copy(scratch.backing_file().unwrap(), image.path()).unwrap();
    image
}

#[test]
fn journal_of_the_kernel_is_read_and_written_again() {
    use Checksums::{None, Transaction, V3};
    for (filesystem, options, mount, checksums) in [
        (Filesystem::Ext4, "orphan_file", "noatime", V3),
        (Filesystem::Ext4SmallBlocks, "^64bit", "noatime", V3),
        (
            Filesystem::Ext4SmallBlocks,
            "^metadata_csum",
            "noatime",
            None,
        ),
        (
            Filesystem::Ext4,
            "^metadata_csum,^64bit",
            "journal_checksum",
            Transaction,
        ),
    ] {
        require!(e2fsprogs(), filesystem.requirement());
        let scratch = Scratch::builder(filesystem, SIZE_BYTES)
            .mkfs_options(&["-O", options])
            .mount_options(mount)
            .build();
        let directory = scratch.path().join("directory");
        fs::create_dir(&directory).unwrap();
        let directory = File::open(directory).unwrap();
        for round in 0..3 {
            for number in 0..300 {
                fs::write(
                    scratch.path().join(format!("directory/{round}-{number}")),
                    "x",
                )
                .unwrap();
            }
            // Freed directory blocks are revoked.
            let old = scratch.path().join(format!("old-{round}"));
            fs::create_dir(&old).unwrap();
            for number in 0..200 {
                fs::write(old.join(format!("a-rather-long-name-{number:060}")), "").unwrap();
            }
            directory.sync_all().unwrap();
            fs::remove_dir_all(&old).unwrap();
            directory.sync_all().unwrap();
        }
        let image = copy(&scratch);
        let journal = Journal::open(&image);
        assert_eq!(journal.superblock.format().checksums, checksums);
        let transactions = journal.transactions(Author::Others);
        let copies: usize = transactions.iter().map(|each| each.copies.len()).sum();
        let revoked: usize = transactions.iter().map(|each| each.revoked.len()).sum();
        eprintln!(
            "{filesystem}: {} transactions, {copies} copies, {revoked} revoked",
            transactions.len()
        );
        assert!(transactions.len() >= 3 && copies > 20);
        assert!(revoked > 0);
    }
}

#[test]
fn orphans_of_the_kernel_are_found_in_their_file() {
    require!(e2fsprogs(), Filesystem::Ext4.requirement());
    let scratch = Scratch::builder(Filesystem::Ext4, SIZE_BYTES)
        .mkfs_options(&["-O", "orphan_file"])
        .build();
    let mut open = Vec::new();
    for number in 0..5 {
        let path = scratch.path().join(number.to_string());
        open.push(File::create(&path).unwrap());
        fs::remove_file(path).unwrap();
    }
    File::open(scratch.path()).unwrap().sync_all().unwrap();
    // e2fsck would checkpoint the journal, and would also clear orphans; so the copies are laid
    // over the image here.
    let image = copy(&scratch);
    let layout = *image.superblock().layout();
    for transaction in Journal::open(&image).transactions(Author::Others) {
        for (PhysicalBlock(block), copy) in transaction.copies {
            image.write(layout.bytes_of(PhysicalBlock(block)).start(), &copy);
        }
    }
    let mut walk = Walk::new(&image);
    assert!(walk.superblock.has_orphans_in_file());
    let number = walk.superblock.orphan_file().unwrap();
    let (inode, _) = walk.inode(number);
    let seed = walk.superblock.seed().map(|seed| inode.seed(seed, number));
    let mut found = Vec::new();
    for piece in walk.map(number, &inode).values() {
        let block = image.block(&layout, piece.physical);
        orphan::verify(&block, piece.physical, seed).unwrap();
        found.extend(orphan::orphans(&block, &layout).map(|orphan| orphan.unwrap().1));
        let mut copy = block.clone();
        copy[block.len() - 8..].fill(0xA5);
        orphan::seal(&mut copy, piece.physical, seed);
        assert!(copy == block, "orphan block written again");
    }
    assert_eq!(found.len(), open.len());
    for orphan in found {
        let (inode, _) = walk.inode(orphan);
        assert_eq!(inode.links(), 0);
        assert_eq!(inode.mode().file_type(), Some(FileType::Regular));
    }
}

#[test]
fn attributes_of_the_kernel_have_our_order_and_hashes() {
    require!(
        e2fsprogs(),
        Filesystem::Ext4.requirement(),
        requires::tool("setfattr")
    );
    let mut scratch = Scratch::new(Filesystem::Ext4, SIZE_BYTES);
    let path = scratch.path().join("file");
    fs::write(&path, "x").unwrap();
    let large = "v".repeat(300);
    // Out of order, so that the kernel sorts them. The first fills the inode.
    let written = [
        ("user.inside", "v".repeat(50)),
        ("user.zzz", large.clone()),
        ("trusted.a", "1".into()),
        ("user.aaa", large),
        ("security.something", "22".into()),
        ("user.b", "4444".into()),
    ];
    for (name, value) in &written {
        let mut setfattr = command::tool("setfattr");
        command::run(setfattr.args(["-n", name, "-v", value]).arg(&path)).unwrap();
    }
    scratch.unmount();
    let image = copy(&scratch);
    let mut walk = Walk::new(&image);
    let (root, _) = walk.inode(InodeNumber::ROOT);
    let names = walk.names(InodeNumber::ROOT, &root);
    let number = names.iter().find(|(name, _)| name == b"file").unwrap().1;
    let (inode, bytes) = walk.inode(InodeNumber(number));

    let layout = *walk.superblock.layout();
    let seed = walk.superblock.seed();
    let place = inode.xattr_block(&layout).unwrap();
    let block = image.block(&layout, place);
    let parsed = XattrBlock::parse(&block, place, seed).unwrap();
    parsed.attributes.check_hashes().unwrap();
    assert_ne!(parsed.hash, 0);
    assert_eq!(parsed.hash, parsed.computed_hash());
    // The kernel puts values where there is room; lists and their hashes are the same.
    let mut again = vec![0; block.len()];
    parsed
        .attributes
        .write_block(&mut again, 1, place, seed)
        .unwrap();
    let again = XattrBlock::parse(&again, place, seed).unwrap();
    assert_eq!(again.hash, parsed.hash);
    assert!(
        again
            .attributes
            .iter()
            .map(|each| (&each.name, &each.value))
            .eq(parsed
                .attributes
                .iter()
                .map(|each| (&each.name, &each.value)))
    );

    let inside = Attributes::parse_inode(&bytes, &inode, &layout).unwrap();
    assert!(!inside.is_empty());
    assert_eq!(
        inside.iter().len() + parsed.attributes.iter().len(),
        written.len()
    );
    for (name, value) in &written {
        let name = XattrName::new(name.as_bytes()).unwrap();
        let found = inside.get(&name).or(parsed.attributes.get(&name));
        let expected = XattrValue::Bytes(value.as_bytes().into());
        assert_eq!(found, Some(&expected));
    }
}
