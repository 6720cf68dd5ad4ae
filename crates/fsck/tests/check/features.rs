//! Features that the engine does not carry out, or only for some files: all of them are checked.

use std::fs::{self, File};
use std::path::Path;

use extant_fsck::FindingKind;
use extant_testkit::command::{run, text, tool};
use extant_testkit::requires::Requirement;
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::Image;

/// An image with a directory, files of several sizes and a link.
fn populated(options: &str) -> Image {
    let work = Workdir::new();
    let root = work.directory("root");
    fs::create_dir_all(root.join("directory/below")).unwrap();
    fs::write(root.join("directory/small"), "some bytes").unwrap();
    fs::write(root.join("directory/below/medium"), [b'm'; 100]).unwrap();
    fs::write(root.join("directory/zeros"), [0; 300]).unwrap();
    fs::write(root.join("large"), [b'l'; 20_000]).unwrap();
    std::os::unix::fs::symlink("large", root.join("link")).unwrap();
    Image::new(&format!("{options} -d {}", root.display()), 16)
}

#[track_caller]
fn assert_clean(image: &Image, what: &str) {
    let (status, words) = image.e2fsck();
    assert_eq!(status, 0, "{what}: {words}");
    let report = image.check().unwrap();
    assert!(report.is_clean(), "{what}: {report}");
}

#[test]
fn file_systems_with_features_of_single_files_are_checked() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for (features, change) in [
        ("inline_data", ""),
        ("quota", ""),
        ("quota,project", ""),
        ("mmp", ""),
        ("ea_inode", ""),
        ("encrypt", ""),
        ("verity", "set_inode_field /large flags 0x180000\n"),
        // The tree of hashes is behind the end of the file.
        (
            "verity",
            "set_inode_field /large flags 0x180000\nset_inode_field /large size 5000\n",
        ),
        (
            "casefold",
            "set_inode_field /directory/below flags 0x40080000\n",
        ),
        ("^has_journal", "feature shared_blocks\n"),
    ] {
        let image = populated(&format!("-t ext4 -b 1024 -O {features}"));
        if !change.is_empty() {
            image.debugfs(change);
        }
        if features.contains("quota") {
            // mke2fs does not count the blocks that it copies.
            image.repair();
        }
        assert_clean(&image, &format!("{features}: {change}"));
    }
}

/// Names in them are any bytes, `/` and zeros among them.
#[test]
fn encrypted_directories_of_the_kernel_are_clean() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs"),
        requires::tool("xfs_io"),
        requires::kernel_filesystem("ext4"),
        Requirement::new(
            "encryption in the kernel's ext4",
            Path::new("/sys/fs/ext4/features/encryption").exists()
        )
    );
    for format in [
        "-t ext4 -b 1024 -O encrypt",
        "-t ext4 -b 4096 -O encrypt,^dir_index,^metadata_csum",
    ] {
        let image = Image::new(format, 32);
        image.mounted(|root| {
            let key = root.join("key");
            fs::write(&key, [7; 64]).unwrap();
            let mut add = tool("xfs_io");
            add.args(["-c", "add_enckey"]).arg(root);
            let words = text(add.stdin(File::open(&key).unwrap())).unwrap();
            let identifier = words.split_whitespace().next_back().unwrap();
            let secret = root.join("secret");
            fs::create_dir(&secret).unwrap();
            let policy = format!("set_encpolicy -v 2 {identifier}");
            run(tool("xfs_io").args(["-c", &policy]).arg(&secret)).unwrap();
            // As many as make a tree; of their names, some have a slash and some a zero.
            for name in 0..400 {
                fs::write(secret.join(format!("a name of some length {name}")), "x").unwrap();
            }
            fs::create_dir(secret.join("below")).unwrap();
            std::os::unix::fs::symlink("target", secret.join("link")).unwrap();
        });
        assert_clean(&image, format);
        image.debugfs("set_inode_field /secret links_count 9\n");
        assert!(!image.check().unwrap().is_clean(), "{format}");
    }
}

#[test]
fn flags_without_their_feature_are_found() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    for (path, flags) in [
        ("/large", "0x180000"),
        ("/large", "0x80800"),
        ("/directory", "0x40080000"),
        ("/large", "0x10080000"),
    ] {
        let image = populated("-t ext4 -b 1024");
        image.debugfs(&format!("set_inode_field {path} flags {flags}\n"));
        let report = image.check().unwrap();
        assert!(!report.is_clean(), "{path} {flags}");
    }
}

/// Both find errors, and ours are of `kind` alone.
#[track_caller]
fn assert_found(image: &Image, kind: FindingKind, what: &str) {
    let (status, words) = image.e2fsck();
    assert_ne!(status, 0, "{what}: {words}");
    let report = image.check().unwrap();
    let kinds: Vec<_> = report.findings_by_kind.keys().collect();
    assert_eq!(kinds, [&kind], "{what}: {report}");
}

#[test]
fn encrypted_file_without_a_valid_policy_is_found() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    // A context has 28 bytes in version 1 and 40 in version 2.
    for (value, is_valid) in [
        (None, false),
        (Some(format!("\x01{}", "q".repeat(27))), true),
        (Some(format!("\x01{}", "q".repeat(28))), false),
        (Some(format!("\x02{}", "q".repeat(39))), true),
        (Some(format!("\x02{}", "q".repeat(27))), false),
    ] {
        let image = populated("-t ext4 -b 1024 -O encrypt,^metadata_csum");
        let flags = "set_inode_field /large flags 0x80800\n";
        image.debugfs(flags);
        if let Some(value) = &value {
            image.debugfs(&format!("ea_set /large user.c {value}\n"));
            // An entry with a name of one byte: its index, that of encryption.
            let bytes = image.bytes();
            let length = [value.len() as u8, 0, 0, 0];
            let is_entry =
                |entry: &[u8]| entry[..2] == [1, 1] && entry[8..12] == length && entry[16] == b'c';
            let at = bytes.windows(17).position(is_entry).unwrap();
            image.write_at(&[9], at + 1);
        }
        let what = format!("{value:?}");
        if is_valid {
            assert_clean(&image, &what);
        } else {
            assert_found(&image, FindingKind::Attributes, &what);
        }
    }
}

#[test]
fn name_that_is_no_text_is_found_in_a_strict_directory_without_case() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for (options, is_strict) in [("", false), ("-E encoding_flags=strict", true)] {
        let image = populated(&format!(
            "-t ext4 -b 1024 -O casefold,^metadata_csum {options}"
        ));
        image.debugfs("set_inode_field /directory/below flags 0x40080000\n");
        assert_clean(&image, options);
        let bytes = image.bytes();
        let name = bytes.windows(6).position(|bytes| bytes == b"medium");
        image.write_at(&[0xFF], name.unwrap());
        if is_strict {
            assert_found(&image, FindingKind::Name, options);
        } else {
            assert_clean(&image, options);
        }
    }
}

#[test]
fn quota_inode_that_cannot_be_one_is_found() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for damage in [
        "set_super_value usr_quota_inum 99999",
        "set_super_value prj_quota_inum 2",
        "set_inode_field <3> mode 040755",
    ] {
        let image = populated("-t ext4 -b 1024 -O quota");
        image.debugfs(&format!("{damage}\n"));
        let (status, words) = image.e2fsck();
        assert_ne!(status, 0, "{damage}: {words}");
        let report = image.check().unwrap();
        let found = report.findings_by_kind.get(&FindingKind::ReservedInode);
        assert_eq!(found, Some(&1), "{damage}: {report}");
    }
}

#[test]
fn damage_of_directories_in_inodes_is_found() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    // The inode of a name, the length of a record, and `..`.
    for (field, value) in [
        ("block[1]", "1999"),
        ("block[2]", "0x05010007"),
        ("block[0]", "12"),
    ] {
        let image = populated("-t ext4 -b 1024 -O inline_data");
        image.debugfs(&format!("set_inode_field /directory {field} {value}\n"));
        assert!(!image.check().unwrap().is_clean(), "{field}");
    }
}

#[test]
fn inodes_of_the_hurd_keep_fields_unknown_to_linux() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = populated("-t ext2 -o hurd -b 1024");
    assert_clean(&image, "hurd");
}
