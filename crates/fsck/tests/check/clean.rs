//! Images that are as they should be: no findings, and e2fsck counts the same.

use std::cell::Cell;
use std::fs::{self, File};

use extant_blockdev::MemoryDevice;
use extant_fsck::{CheckOptions, Counts, Report, check};
use extant_space::{CancelToken, Control, ErrorKind, Progress, Silent};
use extant_testkit::command::{run, tool};
use extant_testkit::{require, requires};

use crate::image::Image;
use crate::population::populate;

/// Options of mke2fs, each with something that others do not have.
const FORMATS: [&str; 24] = [
    "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048 -I 512",
    "-t ext4 -b 4096 -I 128",
    "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg",
    "-t ext4 -b 1024 -O ^64bit",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    "-t ext4 -b 1024 -O sparse_super2",
    "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
    "-t ext4 -b 1024 -O ^flex_bg",
    "-t ext4 -b 1024 -O ^has_journal",
    "-t ext4 -b 1024 -O ^resize_inode",
    "-t ext4 -b 1024 -O ^dir_index",
    "-t ext4 -b 1024 -O ^filetype",
    "-t ext4 -b 1024 -O ^huge_file,^dir_nlink,^extra_isize",
    "-t ext4 -b 4096 -O ea_inode",
    "-t ext4 -b 1024 -O ea_inode,large_dir",
    "-t ext4 -b 1024 -O mmp",
    "-t ext4 -b 4096 -O fast_commit",
    "-t ext4 -b 1024 -g 2048 -O ^extent,^64bit",
    "-t ext3 -b 1024",
    "-t ext2 -b 1024",
    "-t ext2 -b 4096",
];

/// Number before or after `name` in a line of e2fsck.
fn count(words: &str, name: &str) -> u64 {
    let line = words.lines().map(str::trim).find(|line| {
        line.split_once(' ')
            .is_some_and(|(_, rest)| rest.split(" (").next().unwrap().starts_with(name))
    });
    let line = line.unwrap_or_else(|| panic!("no {name} in {words}"));
    line.split_once(' ').unwrap().0.parse().unwrap()
}

/// The counts of `-v`.
fn counts(words: &str) -> Counts {
    let list = |name: &str| -> Vec<u64> {
        let Some((_, rest)) = words.split_once(name) else {
            return Vec::new();
        };
        let line = rest.lines().next().unwrap();
        line.trim()
            .split('/')
            .map(|number| number.parse().unwrap())
            .collect()
    };
    let mut trees_by_depth = [0; 6];
    for (depth, number) in list("Extent depth histogram:").into_iter().enumerate() {
        trees_by_depth[depth] = number;
    }
    let links = words.split_once(" symbolic links (").expect("a line").1;
    let fast = links.split_once(' ').unwrap().0.parse().unwrap();
    let of = |name| {
        let line = words.lines().find(|line| line.contains(name)).unwrap();
        let total = line.split("out of ").nth(1).unwrap();
        total.trim_end_matches(')').parse().unwrap()
    };
    Counts {
        blocks_used: count(words, "blocks used"),
        blocks_total: of(" blocks used"),
        inodes_used: count(words, "inode"),
        inodes_total: of(" used ("),
        regular_files: count(words, "regular file"),
        directories: count(words, "director"),
        character_devices: count(words, "character device"),
        block_devices: count(words, "block device"),
        fifos: count(words, "fifo"),
        sockets: count(words, "socket"),
        symbolic_links: count(words, "symbolic link"),
        fast_symbolic_links: fast,
        links: count(words, "link"),
        extents: 0,
        non_contiguous_files: count(words, "non-contiguous file"),
        non_contiguous_directories: count(words, "non-contiguous director"),
        trees_by_depth,
        indirect_blocks: list("ind/dind/tind blocks:").try_into().unwrap(),
    }
}

#[track_caller]
fn assert_agreement(image: &Image, format: &str) -> Report {
    let (status, words) = image.e2fsck();
    assert_eq!(status, 0, "{format}: {words}");
    let report = image.check().unwrap();
    assert!(report.is_clean(), "{format}: {report}");
    let mut found = report.counts.clone();
    found.extents = 0;
    assert_eq!(found, counts(&words), "{format}: {words}");
    report
}

#[test]
fn populated_images_of_all_formats_are_clean_with_the_counts_of_e2fsck() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("setfattr"),
        requires::kernel_filesystem("ext4")
    );
    for format in FORMATS {
        let image = Image::new(format, 32);
        assert_agreement(&image, format);
        image.mounted(populate);
        let report = assert_agreement(&image, format);
        assert!(report.counts.extents > 500, "{format}: {report}");
    }
}

/// After more than 65000 links, the kernel leaves the count at 1.
#[test]
fn revision_1_of_a_file_system_with_copies_of_revision_0_is_clean() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext2 -r 0 -b 1024", 16);
    let (primary, copy) = (1024, 8193 * 1024);
    for start in [primary, copy] {
        assert_eq!(image.bytes()[start + 0x4C], 0, "revision 0");
        // s_first_ino and s_inode_size, which that revision does not have.
        image.write_at(&[0; 6], start + 0x54);
    }
    assert_agreement(&image, "revision 0");
    // As the kernel does when it sets the first feature.
    image.write_at(&[1], primary + 0x4C);
    image.write_at(&[11, 0, 0, 0, 128, 0], primary + 0x54);
    assert_agreement(&image, "revision 1");
    image.write_at(&[1], copy + 0x4C);
    image.write_at(&[11, 0, 0, 0, 0, 1], copy + 0x54);
    let report = image.check().unwrap();
    let kind = extant_fsck::FindingKind::Backup;
    assert_eq!(report.findings_by_kind.get(&kind), Some(&1), "{report}");
}

#[test]
fn directory_with_a_tree_may_leave_its_links_uncounted() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs"),
        requires::kernel_filesystem("ext4")
    );
    let format = "-t ext4 -b 1024";
    let image = Image::new(format, 32);
    image.mounted(populate);
    image.debugfs("sif many links_count 1\n");
    assert_agreement(&image, format);
}

/// The kernel brings everything to its place and stops; the unlinked file is still open.
#[test]
fn orphans_of_a_frozen_file_system_are_counted_and_no_findings() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("fsfreeze"),
        requires::kernel_filesystem("ext4")
    );
    for format in ["-t ext4 -O ^orphan_file", "-t ext4 -O orphan_file"] {
        let image = Image::new(format, 16);
        let mut frozen = Vec::new();
        image.mounted(|root| {
            fs::write(root.join("file"), vec![1; 50_000]).unwrap();
            fs::create_dir(root.join("directory")).unwrap();
            let open = ["file", "directory"].map(|name| File::open(root.join(name)).unwrap());
            fs::remove_file(root.join("file")).unwrap();
            fs::remove_dir(root.join("directory")).unwrap();
            run(tool("fsfreeze").arg("--freeze").arg(root)).unwrap();
            frozen = image.bytes();
            run(tool("fsfreeze").arg("--unfreeze").arg(root)).unwrap();
            drop(open);
        });
        image.set_bytes(&frozen);
        let report = image.check().unwrap();
        assert!(report.is_clean(), "{format}: {report}");
        assert_eq!(report.orphans, 2);
        assert_eq!(image.e2fsck().0, 4, "e2fsck calls them errors");
    }
}

#[test]
fn check_reports_progress_and_stops_on_cancel() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4 -b 1024", 64);
    let device = MemoryDevice::from_bytes(&image.bytes());
    let options = CheckOptions::default();
    let cancel = CancelToken::new();
    let last = Cell::new(0);
    let calls = Cell::new(0);
    let sink = |progress: Progress| {
        assert!(last.get() <= progress.done_bytes && progress.done_bytes <= progress.total_bytes);
        last.set(progress.done_bytes);
        calls.set(calls.get() + 1);
    };
    check(&device, &options, Control::new(&cancel, &sink)).unwrap();
    assert!(
        calls.get() > 16,
        "two passes over 8 groups, and directories"
    );
    cancel.cancel();
    let error = check(&device, &options, Control::new(&cancel, &Silent)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn report_becomes_json_with_numbers_and_words() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new("-t ext4", 16);
    image.debugfs("sif lost+found links_count 5\n");
    let report = image.check().unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][0]["kind"], "links");
    assert_eq!(
        json["findings"][0]["place"],
        serde_json::json!({ "inode": 11 })
    );
    assert_eq!(json["findings_by_kind"]["links"], 1);
    assert_eq!(json["coverage"], "whole");
    assert_eq!(json["counts"]["directories"], 2);
    let line = "inode 11: i_links_count is 5, and there are 2 links";
    assert_eq!(report.to_string().lines().next(), Some(line));
}
