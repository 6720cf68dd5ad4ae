//! `extant fs stats` of an image, beside dumpe2fs and debugfs.

use std::fs;

use extant_testkit::command;
use extant_testkit::{require, requires};
use serde_json::Value;

use crate::image::{FORMATS, Image, must};

/// The value behind `name:` in dumpe2fs's words.
fn value(theirs: &str, name: &str) -> String {
    let line = theirs.lines().find_map(|line| line.strip_prefix(name));
    line.expect(name).trim_start_matches(':').trim().to_owned()
}

#[test]
fn statistics_of_an_image_are_those_of_dumpe2fs() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("debugfs"),
        requires::tool("dumpe2fs")
    );
    let bigalloc = "-t ext4 -b 4096 -O bigalloc -C 65536";
    for format in FORMATS.into_iter().chain([bigalloc]) {
        let image = Image::of(format, 64);
        for request in ["error_count 3", "mnt_count 7", "kbytes_written 12345"] {
            let write = format!("set_super_value {request}");
            must(
                command::tool("debugfs")
                    .args(["-w", "-R", &write])
                    .arg(&image.path),
            );
        }
        let theirs = must(command::tool("dumpe2fs").arg("-h").arg(&image.path));
        let number = |name: &str| value(&theirs, name).parse::<u64>().expect(name);
        let ours = image.fs(&["stats", "--json", "IMAGE"]).success();
        assert_eq!(ours.number("/mounts"), 7);
        assert_eq!(ours.number("/mounts"), number("Mount count"));
        assert_eq!(ours.number("/errors"), 3);
        assert_eq!(ours.number("/errors"), number("FS Error count"));
        assert_eq!(ours.number("/written_kib"), 12345);
        assert_eq!(ours.number("/inodes"), number("Inode count"));
        assert_eq!(ours.number("/free_inodes"), number("Free inodes"));
        let free = "/free_space/free_blocks";
        assert_eq!(ours.number(free), number("Free blocks"));
        let dump = image.fs(&["dump", "--superblock", "--json", "IMAGE"]);
        let free = "/superblock/free_blocks";
        assert_eq!(dump.success().number(free), number("Free blocks"));
        let dump = image.fs(&["dump", "--groups", "--json", "IMAGE"]).success();
        let groups = dump.json()["groups"].as_array().unwrap().clone();
        let in_groups = groups.iter().map(|group| group["free_blocks"].as_u64());
        let sum = in_groups.map(Option::unwrap).sum::<u64>();
        assert_eq!(sum, number("Free blocks"));
        assert_eq!(ours.json()["journal"]["needs_recovery"], false);
        assert_eq!(ours.json()["first_error"], Value::Null);
        let freefrag = image.fs(&["freefrag", "--json", "IMAGE"]).success().json();
        assert_eq!(
            ours.json()["free_space"]["histogram"],
            freefrag["histogram"]
        );
        let text = image.fs(&["stats", "IMAGE"]).success();
        for line in [
            "As stored; counters",
            "Lifetime writes          12345 KiB",
            "Errors recorded          3",
        ] {
            assert!(text.stdout.contains(line), "{line}: {text}");
        }
    }
}

#[test]
fn image_without_a_journal_or_without_ext4_is_said_to_be_so() {
    require!(requires::tool("mke2fs"));
    let image = Image::of("-t ext2", 16);
    let ours = image.fs(&["stats", "--json", "IMAGE"]).success();
    assert_eq!(ours.json()["journal"], Value::Null);
    let other = image.work.path().join("other");
    fs::write(&other, vec![7; 1 << 20]).unwrap();
    image
        .fs(&["stats", other.to_str().unwrap()])
        .refused(5, &["other", "not an ext4 file system"]);
    image.fs(&["stats", "none"]).refused(4, &["none"]);
}
