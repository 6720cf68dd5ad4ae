//! `extant fs check` and e2fsck agree; `extant fs mkfs` makes an image that both accept.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle, require, requires};

use crate::image::{FORMATS, Image, tree};
use crate::support::{extant, run};

#[test]
fn clean_images_end_with_0() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in FORMATS {
        let image = Image::of(format, 32);
        let source = tree(image.work.path());
        image
            .fs(&["put", "-r", "IMAGE", source.to_str().unwrap(), "/"])
            .success();
        let answer = image.fs(&["check", "IMAGE"]).success();
        assert!(answer.stdout.contains("clean"), "{answer}");
        oracle::assert_e2fsck_clean(&image.path);
    }
}

#[test]
fn damage_ends_with_4_for_both() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for request in [
        "set_inode_field /file links_count 7",
        "clri /file",
        "set_bg 0 free_blocks_count 1",
        "freeb 1 1",
    ] {
        let image = Image::new(32);
        fs::write(image.work.path().join("file"), "x").unwrap();
        image.fs(&["put", "IMAGE", "file", "/"]).success();
        let debugfs = command::tool("debugfs")
            .args(["-w", "-R", request])
            .arg(&image.path)
            .output()
            .unwrap();
        assert!(debugfs.status.success());
        let e2fsck = command::tool("e2fsck")
            .arg("-fn")
            .arg(&image.path)
            .output()
            .unwrap();
        assert_eq!(e2fsck.status.code(), Some(4), "{request}");
        let answer = image.fs(&["check", "IMAGE"]);
        assert_eq!(answer.code, Some(4), "{request}: {answer}");
        let json = image.fs(&["check", "--json", "IMAGE"]);
        assert_eq!(json.code, Some(4));
        assert!(
            !json.json()["findings"].as_array().unwrap().is_empty(),
            "{json}"
        );
    }
}

#[test]
fn journal_that_cannot_be_replayed_is_a_finding_and_the_rest_is_checked() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::of("-t ext4 -b 4096", 32);
    image.leave_transactions();
    let answer = image.fs(&["check", "IMAGE"]).success();
    assert!(answer.stdout.contains("replayed in memory"), "{answer}");
    assert_eq!(
        image
            .fs(&["check", "--json", "IMAGE"])
            .valid_json("fs check")["journal_replayed"],
        true
    );
    let answer = image.fs(&["--noload", "check", "IMAGE"]).success();
    assert!(answer.stdout.contains("was not replayed"), "{answer}");
    let whole = fs::read(&image.path).unwrap();
    // A tag of the descriptor, the time of the first commit, and the size of the log.
    for (block, byte) in [(1, 20), (3, 0x30), (0, 0x12)] {
        fs::write(&image.path, &whole).unwrap();
        image.damage_journal(block, byte);
        image.change_by_debugfs("seti <2000>\n");
        let answer = image.fs(&["check", "--json", "IMAGE"]);
        assert_eq!(answer.code, Some(4), "{answer}");
        let json = answer.valid_json("fs check");
        assert_eq!(json["findings_by_kind"]["journal"], 1, "{answer}");
        assert_eq!(json["findings_by_kind"]["inode-bitmap"], 1, "{answer}");
        assert_eq!(json["journal_replayed"], false, "{answer}");
        let answer = image.fs(&["check", "IMAGE"]);
        assert_eq!(answer.code, Some(4), "{answer}");
        assert!(answer.stdout.contains("was not replayed"), "{answer}");
        let few = image.fs(&["check", "--json", "--findings", "1", "IMAGE"]);
        assert_eq!(few.code, Some(4), "{few}");
        let few = few.json();
        assert_eq!(few["findings"].as_array().unwrap().len(), 1, "{few}");
        assert_eq!(few["findings_by_kind"]["inode-bitmap"], 1, "{few}");
    }
}

#[test]
fn journal_whose_inode_is_not_in_use_is_a_finding() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new(32);
    image.change_by_debugfs("clri <8>\n");
    let answer = image.fs(&["check", "--json", "IMAGE"]);
    assert_eq!(answer.code, Some(4), "{answer}");
    assert_eq!(answer.json()["findings_by_kind"]["journal"], 1, "{answer}");
    let text = "inode 8: the inode of the journal is not in use";
    let answer = image.fs(&["check", "IMAGE"]);
    assert!(answer.stdout.contains(text), "{answer}");
    image
        .fs(&["ls", "IMAGE"])
        .refused(1, &["disk.img", "journal: inode 8 is not in use", "noload"]);
    image.fs(&["--noload", "ls", "IMAGE"]).success();
}

#[test]
fn broken_superblock_is_found_and_nothing_at_all_is_8() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(32);
    let file = fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0xff; 4], 1024 + 0x20).unwrap();
    let answer = image.fs(&["check", "IMAGE"]);
    assert_eq!(answer.code, Some(4), "{answer}");
    image
        .fs(&["ls", "IMAGE"])
        .refused(1, &["disk.img", "superblock"]);
    image
        .fs(&["check", "nothing"])
        .refused(8, &["nothing", "no such file"]);
}

#[test]
fn mkfs_makes_a_sparse_image_accepted_by_e2fsck_and_the_kernel() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new(16);
    let made = image.work.path().join("new.img");
    let words = ["mkfs", "new.img", "2GiB", "--", "-L", "label", "-b", "4096"];
    image.fs(&words).success();
    oracle::assert_e2fsck_clean(&made);
    let found = fs::metadata(&made).unwrap();
    assert_eq!(found.len(), 2 << 30);
    assert!(found.blocks() * 512 < 128 << 20);
    let df = image.fs(&["df", "--json", "new.img"]).success();
    assert_eq!(df.text("/filesystems/0/label"), "label");
    image
        .fs(&["mkfs", "new.img", "1GiB"])
        .refused(4, &["new.img", "2 GiB"]);
    image
        .fs(&["mkfs", "none.img"])
        .refused(4, &["none.img", "SIZE"]);
    // A refusal by mke2fs leaves no file.
    let answer = image.fs(&["mkfs", "bad.img", "1GiB", "--", "-b", "77"]);
    assert_eq!(answer.code, Some(1), "{answer}");
    assert!(!image.work.path().join("bad.img").exists());
    run(extant().args(["fs", "mkfs", "--help"])).success();
}

#[test]
fn mkfs_refuses_an_image_in_use() {
    require!(requires::tool("mke2fs"), requires::tool("qemu-io"));
    let work = Workdir::new();
    let image = work.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut user = command::tool("qemu-io")
        .args(["-f", "raw"])
        .arg(&image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It has the image locked when it answers.
    let mut requests = user.stdin.take().unwrap();
    requests.write_all(b"write -P 7 0 4k\n").unwrap();
    let mut answers = BufReader::new(user.stdout.take().unwrap()).lines();
    assert!(answers.any(|line| line.unwrap().contains("wrote 4096")));
    let mut make = extant();
    make.args(["fs", "mkfs"]).arg(&image).args(["--", "-F"]);
    run(&mut make).refused(4, &["disk.img", &user.id().to_string()]);
    drop(requests);
    user.wait().unwrap();
    run(&mut make).success();
}
