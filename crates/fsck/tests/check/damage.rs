//! One image for every kind of finding, damaged in one place: both our check and e2fsck find it.
//!
//! debugfs recomputes the checksums of changed structures; bytes are changed in images without
//! checksums.

use extant_fsck::FindingKind::{self, *};
use extant_fsck::{CheckOptions, Coverage, Report, Totals};
use extant_space::ErrorKind;
use extant_testkit::command::{run, tool};
use extant_testkit::{require, requires};

use crate::image::Image;
use crate::population::populate;

const SUMMED: &str = "-t ext4 -b 1024 -O metadata_csum_seed,orphan_file";
const PLAIN: &str = "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg";

/// Whether e2fsck reports an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Agrees,
    /// It does not look there, or does not call it an error.
    Silent,
}

fn populated(format: &str) -> Image {
    let image = Image::new(format, 16);
    image.mounted(populate);
    image
}

/// Mistakes in the two reports; `Ok` with ours if there are none.
fn judge(image: &Image, kind: FindingKind, damage: &str, other: Other) -> Result<Report, String> {
    let report = image.check().unwrap();
    if !report.findings_by_kind.contains_key(&kind) {
        return Err(format!("{damage}: no {kind:?} in {report}\n"));
    }
    let (status, words) = image.e2fsck();
    if (status != 0) != (other == Other::Agrees) {
        return Err(format!("{damage}: {words}\n"));
    }
    Ok(report)
}

fn require_tools() -> bool {
    extant_testkit::requires::all_met(&[
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs"),
        requires::tool("e2fsck"),
        requires::tool("setfattr"),
        requires::kernel_filesystem("ext4"),
    ])
}

#[test]
fn damage_by_debugfs_is_found_by_both() {
    if !require_tools() {
        return;
    }
    let image = populated(SUMMED);
    let whole = image.bytes();
    let mut trouble = String::new();
    for (kind, damage) in [
        (Superblock, "ssv blocks_count 20000"),
        (Superblock, "ssv r_blocks_count 9000"),
        (Feature, "feature +meta_bg"),
        (
            Descriptor,
            "set_bg 1 inode_table 99999\nset_bg 1 checksum calc",
        ),
        (
            GroupCounts,
            "set_bg 0 free_inodes_count 7\nset_bg 0 checksum calc",
        ),
        (
            GroupCounts,
            "set_bg 1 used_dirs_count 9\nset_bg 1 checksum calc",
        ),
        (
            BitmapChecksum,
            "set_bg 0 block_bitmap_csum 77\nset_bg 0 checksum calc",
        ),
        (
            BitmapChecksum,
            "set_bg 0 inode_bitmap_csum 77\nset_bg 0 checksum calc",
        ),
        (BlockBitmap, "freeb 40"),
        (BlockBitmap, "setb 8000"),
        (InodeBitmap, "freei small"),
        (InodeBitmap, "seti <2000>"),
        (SharedBlock, "sif some block[5] 40"),
        (Inode, "sif small dtime 1700000000"),
        (Inode, "sif small mode 0170644"),
        (Inode, "sif fast size 7"),
        (Inode, "sif slow size 70"),
        (Inode, "sif small flags 0x81000"),
        (Inode, "sif small flags 0"),
        (Inode, "sif fifo size 1"),
        (Inode, "sif small links_count 0"),
        (ReservedInode, "sif <2> mode 0100644"),
        (ReservedInode, "sif <1> gid 5"),
        (Inode, "sif <7> dtime 5"),
        (Size, "sif some size 100"),
        (Size, "sif a size 3000"),
        (BlockCount, "sif some blocks 2"),
        (Mapping, "sif some block[0] 0xF30B"),
        (Mapping, "sif some block[4] 0"),
        (Mapping, "sif some block[5] 99999999"),
        (Attributes, "sif small file_acl 99999999"),
        (
            AttributeReferences,
            "sif \"linear/shared 0\" file_acl 0\nsif \"linear/shared 0\" blocks 0",
        ),
        (Journal, "zap_block -f <8> -p 1 0"),
        (Journal, "sif <8> links_count 0"),
        (ResizeInode, "sif <7> block[0] 9000"),
        (ResizeInode, "clri <7>"),
        (DirectoryBlock, "zap_block -f many -o 4 -l 2 -p 255 5"),
        (Entry, "clri small"),
        (EntryType, "sif hole mode 0140644"),
        (HashTree, "zap_block -f many -o 28 -l 1 -p 7 0"),
        (DirectoryTwice, "ln a/b empty/again"),
        (Unreachable, "unlink small"),
        (Unreachable, "unlink a"),
        (Unreachable, "ln a a/b/c/d/loop\nunlink a"),
        (OwnEntries, "ln a/b/c/d empty/d\nunlink a/b/c/d"),
        (Links, "sif small links_count 3"),
        (Links, "sif a links_count 7"),
        // Also a directory that is too small to count no further.
        (Links, "sif a links_count 1"),
    ] {
        image.set_bytes(&whole);
        image.debugfs(&format!("{damage}\n"));
        trouble += &judge(&image, kind, damage, Other::Agrees)
            .err()
            .unwrap_or_default();
    }
    assert!(trouble.is_empty(), "{trouble}");
}

/// Offset of the first block of a file in the image.
fn first_block(image: &Image, file: &str) -> usize {
    let words = image.debugfs(&format!("blocks \"{file}\"\n"));
    let last = words.lines().last().expect("a line of blocks");
    let block: usize = last.split_whitespace().next().unwrap().parse().unwrap();
    block * 1024
}

#[test]
fn damage_that_e2fsck_passes_over_is_found() {
    if !require_tools() {
        return;
    }
    let image = populated(SUMMED);
    let whole = image.bytes();
    let mut trouble = String::new();
    for (kind, damage) in [
        (Feature, "feature -resize_inode"),
        (Descriptor, "set_bg 0 checksum 1"),
        (Orphan, "ssv last_orphan 2000"),
    ] {
        image.set_bytes(&whole);
        image.debugfs(&format!("{damage}\n"));
        trouble += &judge(&image, kind, damage, Other::Silent)
            .err()
            .unwrap_or_default();
    }
    assert!(trouble.is_empty(), "{trouble}");
}

#[test]
fn damaged_inode_with_a_value_is_found_by_both() {
    if !require_tools() {
        return;
    }
    let image = Image::new("-t ext4 -b 1024 -O ea_inode", 16);
    image.mounted(|root| {
        for name in ["one", "other"] {
            let file = root.join(name);
            std::fs::write(&file, name).unwrap();
            let value = "v".repeat(9000);
            let mut command = tool("setfattr");
            command.args(["-n", "user.large", "-v", &value]).arg(file);
            run(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
        }
    });
    // After the first file.
    let value = "<13>";
    let whole = image.bytes();
    let mut trouble = String::new();
    for (kind, damage) in [
        (Attributes, format!("sif {value} atime 5")),
        (Attributes, format!("sif {value} size 8000")),
        (Attributes, format!("sif {value} flags 0x80000")),
        (AttributeReferences, format!("sif {value} version 9")),
        (Links, format!("sif {value} links_count 2")),
    ] {
        image.set_bytes(&whole);
        image.debugfs(&format!("{damage}\n"));
        trouble += &judge(&image, kind, &damage, Other::Agrees)
            .err()
            .unwrap_or_default();
    }
    assert!(trouble.is_empty(), "{trouble}");
    // The kernel refuses to open it.
    image.set_bytes(&whole);
    image.debugfs(&format!("ln {value} name\n"));
    judge(&image, Entry, "the name of a value", Other::Silent).unwrap();
}

#[test]
fn value_of_an_attribute_as_lustre_wrote_it_is_clean() {
    if !require_tools() {
        return;
    }
    let image = Image::new("-t ext4 -b 1024 -O ea_inode", 16);
    image.mounted(|root| {
        let file = root.join("one");
        std::fs::write(&file, "one").unwrap();
        let value = "v".repeat(9000);
        let mut command = tool("setfattr");
        command.args(["-n", "user.large", "-v", &value]).arg(file);
        run(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
    });
    // The file is inode 12 with one block of data, its value 13. Number and generation of the owner
    // replace the hash and the count, and the owner is not charged for the blocks.
    let lustre = "sif <13> mtime @12\nsif <12> generation 77\nsif <13> generation 77\n\
         sif <13> atime @1700000000\nsif <13> ctime @1700000000\nsif <13> version 0\n\
         sif <12> blocks 2\n";
    image.debugfs(lustre);
    let (status, words) = image.e2fsck();
    assert_eq!(status, 0, "{words}");
    let report = image.check().unwrap();
    assert!(report.is_clean(), "{report}");
    // The value of another owner.
    image.debugfs("sif <13> generation 78\n");
    judge(&image, Attributes, "another generation", Other::Agrees).unwrap();
}

#[test]
fn damaged_block_of_multiple_mount_protection_is_found_by_both() {
    if !require_tools() {
        return;
    }
    let image = Image::new("-t ext4 -b 1024 -O mmp", 16);
    let words = image.debugfs("dump_mmp\n");
    let (_, rest) = words.split_once("block_number:").expect("a place");
    let block: usize = rest.split_whitespace().next().unwrap().parse().unwrap();
    image.write_at(b"x", block * 1024);
    judge(&image, Mmp, "no magic", Other::Agrees).unwrap();
}

#[test]
fn orphan_that_follows_itself_is_found_by_both() {
    if !require_tools() {
        return;
    }
    let image = populated(SUMMED);
    let words = image.debugfs("stat small\n");
    let number = words
        .split_once("Inode: ")
        .unwrap()
        .1
        .split_whitespace()
        .next()
        .unwrap();
    image.debugfs(&format!(
        "ssv last_orphan {number}\nsif small dtime {number}\n"
    ));
    let report = judge(&image, Orphan, "a loop of orphans", Other::Agrees).unwrap();
    assert_eq!(report.orphans, 1);
}

/// e2fsck reports it, too, and does not count it as an error.
#[test]
fn wrong_totals_are_found_unless_they_may_be_old() {
    if !require_tools() {
        return;
    }
    for field in ["free_blocks_count", "free_inodes_count"] {
        let image = Image::new(SUMMED, 16);
        image.debugfs(&format!("ssv {field} 5\n"));
        judge(&image, Totals, field, Other::Silent).unwrap();
        let options = CheckOptions {
            totals: Totals::Ignore,
            ..CheckOptions::default()
        };
        assert!(image.check_with(&options).unwrap().is_clean());
    }
}

#[test]
fn damaged_bytes_are_found_by_both() {
    if !require_tools() {
        return;
    }
    let image = populated(PLAIN);
    let whole = image.bytes();
    let (a, linear) = (first_block(&image, "a"), first_block(&image, "linear"));
    let name = linear + 24 + 8;
    let block = |word: &str| -> usize {
        let words = image.debugfs("stats\n");
        let line = words.lines().find(|line| line.contains(word)).unwrap();
        let rest = line.split_once(word).unwrap().1;
        let number: String = rest
            .trim()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        number.parse::<usize>().unwrap() * 1024
    };
    let (blocks, inodes) = (block("block bitmap at"), block("inode bitmap at"));
    let size_high = |file: &str| {
        let words = image.debugfs(&format!("imap \"{file}\"\n"));
        let (_, rest) = words.split_once("located at block ").expect("a place");
        let (block, offset) = rest.split_once(", offset 0x").expect("a place");
        let offset = usize::from_str_radix(offset.trim(), 16).unwrap();
        block.parse::<usize>().unwrap() * 1024 + offset + 108
    };
    let mut trouble = String::new();
    for (kind, what, at, bytes, other) in [
        (
            Superblock,
            "no magic",
            1024 + 0x38,
            &[0, 0][..],
            Other::Agrees,
        ),
        (
            Backup,
            "no magic in a copy",
            8193 * 1024 + 0x38,
            &[0, 0],
            Other::Silent,
        ),
        (
            BitmapPadding,
            "inodes behind the last",
            inodes + 1023,
            &[0],
            Other::Agrees,
        ),
        (
            BlockBitmap,
            "the first block",
            blocks,
            &[0xFE],
            Other::Agrees,
        ),
        (
            OwnEntries,
            "`..` of another directory",
            a + 12,
            &[11, 0, 0, 0],
            Other::Agrees,
        ),
        (
            OwnEntries,
            "`.` of another directory",
            a,
            &[11, 0, 0, 0],
            Other::Agrees,
        ),
        (OwnEntries, "no `.`", a + 8, b"x", Other::Agrees),
        (
            Entry,
            "an inode of the file system",
            a + 24,
            &[8, 0, 0, 0],
            Other::Agrees,
        ),
        (Entry, "the root", a + 24, &[2, 0, 0, 0], Other::Agrees),
        (
            DirectoryBlock,
            "no such inode",
            a + 24,
            &[0, 0, 1, 0],
            Other::Agrees,
        ),
        (
            DirectoryBlock,
            "a record of 3 bytes",
            a + 28,
            &[3, 0],
            Other::Agrees,
        ),
        (EntryType, "another type", a + 24 + 7, &[1], Other::Agrees),
        (
            OwnEntries,
            "no zero behind `..`",
            a + 22,
            b"x",
            Other::Agrees,
        ),
        (
            Size,
            "a size of 64 bits",
            size_high("a"),
            &[1],
            Other::Agrees,
        ),
        (
            Inode,
            "a pipe with a size",
            size_high("fifo"),
            &[1],
            Other::Agrees,
        ),
        (DuplicateName, "two names alike", name, b"1", Other::Agrees),
    ] {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        image.set_bytes(&damaged);
        trouble += &judge(&image, kind, what, other).err().unwrap_or_default();
    }
    assert!(trouble.is_empty(), "{trouble}");
}

#[test]
fn damaged_superblock_ends_the_check() {
    if !require_tools() {
        return;
    }
    let image = Image::new(SUMMED, 16);
    let mut bytes = image.bytes();
    bytes.truncate(8 << 20);
    image.set_bytes(&bytes);
    let report = judge(&image, Superblock, "half a device", Other::Agrees).unwrap();
    assert_eq!(report.coverage, Coverage::Superblock);
    assert_eq!(
        report.findings[0].to_string(),
        "the file system has 16777216 bytes, the device 8388608"
    );
}

#[test]
fn unknown_feature_is_refused_by_name() {
    require!(requires::tool("mke2fs"));
    let error = Image::new("-t ext4 -O bigalloc", 16).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let line = error.to_string();
    assert!(
        line.contains("bigalloc") && line.ends_with("check it with e2fsck"),
        "{line}"
    );
}
