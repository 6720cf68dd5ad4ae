//! Trees are copied in, and the kernel reads them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use extant_testkit::{command, oracle, require, requires};

use crate::image::{FORMATS, Image, Owners, assert_same_trees, must, tree};
use crate::support::{MIB, extant, noise, run};

#[test]
fn tree_is_the_same_to_the_kernel_in_every_format() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck")
    );
    for format in FORMATS.into_iter().chain(["-t ext3 -b 1024"]) {
        let image = Image::of(format, 64);
        let source = tree(image.work.path());
        image
            .fs(&["put", "-r", "--owner", "host", "IMAGE", "tree/.", "/"])
            .success();
        image.assert_clean();
        let mounted = image.mount();
        assert_same_trees(&source, &mounted.place, Owners::Compared);
        let sparse = fs::metadata(mounted.place.join("sparse")).unwrap();
        assert!(
            sparse.blocks() * 512 < MIB,
            "{format}: {} blocks",
            sparse.blocks()
        );
    }
}

#[test]
fn owners_are_root_unless_asked_for() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs")
    );
    let image = Image::new(32);
    let file = image.work.path().join("file");
    fs::write(&file, "x").unwrap();
    must(command::tool("chown").arg("1234:70000").arg(&file));
    for (options, owner) in [
        (&[][..], (0, 0)),
        (&["--owner", "host"], (1234, 70000)),
        (&["--owner", "5:6"], (5, 6)),
    ] {
        let words = [&["put"][..], options, &["IMAGE", "file", "/"]].concat();
        image.fs(&words).success();
        let answer = image.fs(&["stat", "--json", "IMAGE", "/file"]).success();
        assert_eq!(
            (
                answer.number("/entries/0/uid"),
                answer.number("/entries/0/gid")
            ),
            owner,
            "{options:?}"
        );
    }
    image.assert_clean();
}

#[test]
fn file_that_is_there_is_replaced_or_refused() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new(32);
    fs::write(image.work.path().join("new"), noise(3, 100_000)).unwrap();
    fs::write(image.work.path().join("old"), "old").unwrap();
    image.fs(&["put", "IMAGE", "old", "/name"]).success();
    image
        .fs(&["put", "-n", "IMAGE", "new", "/name"])
        .refused(4, &["disk.img:/name", "file exists"]);
    assert_eq!(image.fs(&["cat", "IMAGE", "/name"]).success().stdout, "old");
    image.fs(&["put", "IMAGE", "new", "/name"]).success();
    assert_eq!(
        image
            .fs(&["stat", "--json", "IMAGE", "/name"])
            .number("/entries/0/size_bytes"),
        100_000
    );
    let names = image.fs(&["ls", "-a", "IMAGE"]).success().stdout;
    assert_eq!(names, ".\n..\nlost+found\nname\n");
    // A directory is not replaced by a file, nor a file by a directory.
    image.fs(&["mkdir", "IMAGE", "/d", "/d/new"]).success();
    image
        .fs(&["put", "IMAGE", "new", "/d"])
        .refused(4, &["disk.img:/d/new", "is a directory"]);
    fs::create_dir(image.work.path().join("name")).unwrap();
    image
        .fs(&["put", "-r", "IMAGE", "name", "/"])
        .refused(4, &["disk.img:/name", "not a directory"]);
    image.assert_clean();
}

#[test]
fn stdin_becomes_a_file() {
    require!(requires::tool("mke2fs"), requires::tool("sh"));
    let image = Image::new(32);
    let bytes = noise(4, 3_000_001);
    let source = image.work.path().join("bytes");
    fs::write(&source, &bytes).unwrap();
    let mut put = image.command(
        "fs",
        &["put", "--mode", "0600", "IMAGE", "-", "/from/stdin"],
    );
    run(put.stdin(Stdio::from(fs::File::open(&source).unwrap()))).refused(4, &["/from"]);
    image.fs(&["mkdir", "IMAGE", "/from"]).success();
    let mut put = image.command(
        "fs",
        &["put", "--mode", "0600", "IMAGE", "-", "/from/stdin"],
    );
    run(put.stdin(Stdio::from(fs::File::open(&source).unwrap()))).success();
    image.fs(&["get", "IMAGE", "/from/stdin", "back"]).success();
    assert!(fs::read(image.work.path().join("back")).unwrap() == bytes);
    assert_eq!(
        image
            .fs(&["stat", "--json", "IMAGE", "/from/stdin"])
            .text("/entries/0/mode"),
        "0600"
    );
    image.assert_clean();
}

#[test]
fn image_is_not_put_into_itself() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(32);
    let answer = image
        .fs(&["put", "-r", "--json", "IMAGE", ".", "/"])
        .success();
    assert_eq!(answer.number("/data_bytes"), 0, "{answer}");
    assert!(answer.text("/notes/0").contains("disk.img"), "{answer}");
    image.assert_clean();
}

#[test]
fn attributes_are_kept_in_both_directions() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(32);
    let file = image.work.path().join("file");
    fs::write(&file, "x").unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(&file, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let long = noise(5, 2000);
    let kept = set("user.short", b"value") && set("user.long", &long);
    require!(requires::Requirement::new(
        "user attributes on the work directory",
        kept
    ));
    image.fs(&["put", "IMAGE", "file", "/"]).success();
    image.assert_clean();
    image.fs(&["get", "IMAGE", "/file", "back"]).success();
    let mounted = image.mount();
    for place in [mounted.place.join("file"), image.work.path().join("back")] {
        for (name, value) in [("user.short", &b"value"[..]), ("user.long", &long)] {
            let mut found = vec![0; 4096];
            let size = rustix::fs::getxattr(&place, name, &mut found).unwrap();
            assert!(&found[..size] == value, "{name} of {}", place.display());
        }
    }
}

#[test]
fn full_image_is_reported_and_remains_consistent() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new(16);
    fs::write(image.work.path().join("small"), "kept").unwrap();
    fs::write(image.work.path().join("large"), noise(6, 20_000_000)).unwrap();
    image.fs(&["put", "IMAGE", "small", "/large"]).success();
    let before = image
        .fs(&["df", "--json", "IMAGE"])
        .number("/filesystems/0/free_bytes");
    image
        .fs(&["put", "IMAGE", "large", "/"])
        .refused(3, &["disk.img:/large"]);
    assert_eq!(
        image.fs(&["cat", "IMAGE", "/large"]).success().stdout,
        "kept"
    );
    assert_eq!(
        image
            .fs(&["df", "--json", "IMAGE"])
            .number("/filesystems/0/free_bytes"),
        before
    );
    image.assert_clean();
}

#[test]
fn large_file_is_in_few_pieces_and_progress_counts_it() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    let image = Image::new(256);
    fs::write(image.work.path().join("large"), noise(7, 100_000_000)).unwrap();
    let answer = image.fs(&["put", "--progress", "json", "IMAGE", "large", "/"]);
    assert_eq!(answer.code, Some(0), "{answer}");
    let last = answer.stderr.lines().last().expect("progress");
    assert!(
        last.contains("\"phase\":\"write\"") && last.contains("100000000"),
        "{answer}"
    );
    let mounted = image.mount();
    let file = mounted.place.join("large");
    oracle::assert_same_bytes(&file, &image.work.path().join("large"));
    assert!(oracle::filefrag_count(&file) <= 4);
}

#[test]
fn help_of_put_says_whose_files_are() {
    let help = run(extant().args(["fs", "put", "--help"])).success().stdout;
    let words: Vec<_> = help.split_whitespace().collect();
    let help = words.join(" ");
    assert!(
        help.contains("owned by root") && help.contains("--owner"),
        "{help}"
    );
}

#[test]
fn set_id_bits_and_capabilities_are_kept_where_the_owner_is() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(32);
    let source = image.work.directory("src");
    // `cap_setuid=ep`, as the kernel stores it.
    let mut capability = [0; 20];
    capability[..5].copy_from_slice(&[1, 0, 0, 2, 128]);
    for (name, owner) in [("users", 1000), ("roots", 0)] {
        let file = source.join(name);
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::chown(&file, Some(owner), Some(owner)).unwrap();
        let attribute = "security.capability";
        rustix::fs::setxattr(
            &file,
            attribute,
            &capability,
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
        fs::set_permissions(&file, mode).unwrap();
    }
    std::os::unix::fs::chown(&source, Some(1000), Some(1000)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2775);
    fs::set_permissions(&source, mode).unwrap();
    for (options, users, noted) in [
        (&[][..], 0o755, true),
        (&["--owner", "host"], 0o6755, false),
    ] {
        let words = [&["put", "-r"][..], options, &["IMAGE", "src/.", "/"]].concat();
        let answer = image.fs(&words).success();
        assert_eq!(
            answer
                .stdout
                .contains("users: file capabilities and set-ID bits"),
            noted
        );
        assert!(!answer.stdout.contains("roots"), "{answer}");
        let mounted = image.mount();
        let look = |name: &str| {
            let path = mounted.place.join(name);
            let mut value = [0; 64];
            let capable = rustix::fs::getxattr(&path, "security.capability", &mut value).is_ok();
            (fs::metadata(path).unwrap().mode() & 0o7777, capable)
        };
        assert_eq!(look("users"), (users, !noted), "{options:?}");
        assert_eq!(look("roots"), (0o6755, true), "{options:?}");
        assert_eq!(look(".").0, 0o2775, "{options:?}");
    }
}
