//! `fs get` copies files of the kernel exactly, and writes nowhere else.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use extant_testkit::{command, require, requires};

use crate::image::{FORMATS, Image, Owners, assert_same_trees, must, tree};
use crate::look::partly_unreadable;
use crate::support::{MIB, as_nobody, noise, run};

#[test]
fn tree_of_the_kernel_comes_out_the_same_in_every_format() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("cp")
    );
    for format in FORMATS {
        let image = Image::of(format, 64);
        let source = tree(image.work.path());
        must(
            command::tool("chown")
                .arg("-hR")
                .arg("7:8")
                .arg(source.join("b")),
        );
        must(
            command::tool("mknod")
                .arg(source.join("node"))
                .args(["b", "259", "70000"]),
        );
        let mounted = image.mount();
        must(
            command::tool("cp")
                .arg("-a")
                .arg(source.join("."))
                .arg(&mounted.place),
        );
        drop(mounted);
        let before = fs::read(&image.path).unwrap();
        image.fs(&["get", "-r", "IMAGE", "/", "out"]).success();
        assert_same_trees(&source, &image.work.path().join("out"), Owners::Compared);
        let sparse = fs::metadata(image.work.path().join("out/sparse")).unwrap();
        assert!(
            sparse.blocks() * 512 < MIB,
            "{format}: {} blocks",
            sparse.blocks()
        );
        assert!(
            fs::read(&image.path).unwrap() == before,
            "{format}: the image was changed"
        );
    }
}

#[test]
fn tree_that_went_in_comes_out_the_same() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(64);
    let source = tree(image.work.path());
    image.fs(&["put", "-r", "IMAGE", "tree", "/"]).success();
    // Into an existing directory, under its own name.
    let out = image.work.directory("out");
    image.fs(&["get", "-r", "IMAGE", "/tree", "out"]).success();
    assert_same_trees(&source, &out.join("tree"), Owners::Left);
    // Again, over the existing files; and refused when that is not wanted.
    image.fs(&["get", "-r", "IMAGE", "/tree", "out"]).success();
    assert_same_trees(&source, &out.join("tree"), Owners::Left);
    image
        .fs(&["get", "-rn", "IMAGE", "/tree", "out"])
        .refused(4, &["file exists"]);
}

#[test]
fn user_gets_files_of_his_own_without_set_id_bits() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("setpriv")
    );
    let image = Image::new(32);
    tree(image.work.path());
    image
        .fs(&["put", "-r", "--owner", "1:2", "IMAGE", "tree", "/"])
        .success();
    let out = image.work.directory("user");
    must(command::tool("chown").arg("65534:65534").arg(&out));
    for path in [image.work.path(), &image.path] {
        must(command::tool("chmod").arg("a+rwX").arg(path));
    }
    let mut get = image.command("fs", &["get", "-r", "IMAGE", "/tree/a", "user"]);
    run(as_nobody(&get, &image.work).current_dir(image.work.path())).success();
    let small = fs::metadata(out.join("a/small")).unwrap();
    assert_eq!((small.uid(), small.mode() & 0o7777), (65534, 0o751));
    // Devices are root's to make.
    get = image.command("fs", &["stat", "IMAGE", "/tree/b/fifo"]);
    run(&mut get).success();
}

#[test]
fn nothing_outside_the_destination_is_reached() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(32);
    let outside = image.work.directory("outside");
    fs::write(outside.join("kept"), "kept").unwrap();
    // In the image a directory, in the destination a link to elsewhere.
    fs::create_dir_all(image.work.path().join("source/dir")).unwrap();
    fs::write(image.work.path().join("source/dir/kept"), "overwritten").unwrap();
    image.fs(&["put", "-r", "IMAGE", "source/.", "/"]).success();
    let out = image.work.directory("out");
    symlink(&outside, out.join("dir")).unwrap();
    image
        .fs(&["get", "-r", "IMAGE", "/dir", "out"])
        .refused(4, &["out/dir", "not a directory"]);
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    // A link with the name of a file is replaced, not followed.
    fs::remove_file(out.join("dir")).unwrap();
    fs::create_dir(out.join("dir")).unwrap();
    symlink(outside.join("kept"), out.join("dir/kept")).unwrap();
    image.fs(&["get", "-r", "IMAGE", "/dir", "out"]).success();
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    assert_eq!(fs::read(out.join("dir/kept")).unwrap(), b"overwritten");
    assert!(
        !fs::symlink_metadata(out.join("dir/kept"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn directory_in_a_circle_ends_with_an_error() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new(32);
    image.fs(&["mkdir", "-p", "IMAGE", "/a/b"]).success();
    let link = command::tool("debugfs")
        .args(["-w", "-R", "link /a /a/b/again"])
        .arg(&image.path)
        .output()
        .unwrap();
    assert!(link.status.success());
    for words in [
        &["get", "-r", "IMAGE", "/", "out"][..],
        &["tree", "IMAGE"],
        &["ls", "-R", "IMAGE"],
        &["rm", "-r", "IMAGE", "/a"],
    ] {
        let answer = image.fs(words);
        assert_eq!(answer.code, Some(1), "{answer}");
        assert!(answer.stderr.contains("more than one name"), "{answer}");
    }
    image.fs(&["frag", "IMAGE"]).success();
}

#[test]
fn tree_with_unreadable_files_is_copied_without_them_and_the_copy_fails() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = partly_unreadable();
    let answer = image.fs(&["get", "-r", "IMAGE", "/", "out"]);
    assert_eq!(answer.code, Some(1), "{answer}");
    let lines: Vec<_> = answer.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{answer}");
    for (line, word) in lines
        .iter()
        .zip([":/a: ", "/dir/worse", "/sealed", "are copied"])
    {
        assert!(line.contains(word), "no {word:?}: {answer}");
    }
    assert!(answer.stdout.contains("4 files"), "{answer}");
    let out = image.work.path().join("out");
    for name in ["dir/below/last", "dir/inner", "dir/zero", "z"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), b"contents", "{name}");
    }
    assert!(out.join("sealed").is_dir());
    assert!(!out.join("a").exists() && !out.join("dir/worse").exists());
    image
        .fs(&["get", "IMAGE", "/dir/worse", "single"])
        .refused(1, &["/dir/worse"]);
}

#[test]
fn cat_writes_holes_as_zeros_and_leaves_them_out_of_files() {
    require!(requires::tool("mke2fs"), requires::tool("sh"));
    let image = Image::new(64);
    let source = tree(image.work.path());
    fs::write(image.work.path().join("more"), noise(9, 5000)).unwrap();
    image
        .fs(&["put", "IMAGE", "tree/sparse", "more", "/"])
        .success();
    let wanted = [
        fs::read(source.join("sparse")).unwrap(),
        fs::read(image.work.path().join("more")).unwrap(),
    ]
    .concat();
    let words = &["cat", "IMAGE", "/sparse", "/more", "/sparse"];
    let wanted = [&wanted[..], &fs::read(source.join("sparse")).unwrap()].concat();
    for (redirect, is_sparse) in [("> out", true), (">> out", false), ("| cat > out", false)] {
        let out = image.work.path().join("out");
        let _ = fs::remove_file(&out);
        let cat = image.command("fs", words);
        let script = format!("\"$@\" {redirect}");
        let mut shell = command::tool("sh");
        shell
            .args(["-c", &script, "sh"])
            .arg(cat.get_program())
            .args(cat.get_args());
        run(shell.current_dir(image.work.path())).success();
        assert!(fs::read(&out).unwrap() == wanted, "{redirect}");
        let taken = fs::metadata(&out).unwrap().blocks() * 512;
        assert_eq!(taken < 2 * MIB, is_sparse, "{redirect}: {taken}");
    }
}

/// The value of an attribute of the path itself, without following links.
fn attribute(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(value[..length].to_vec())
}

fn set_attribute(path: &std::path::Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// `cap_setuid=ep`, as the kernel stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn power_given_by_an_image_is_left_out_unless_its_owners_are_kept() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(32);
    let mounted = image.mount();
    let file = mounted.place.join("power");
    fs::write(&file, "x").unwrap();
    set_attribute(&file, "security.capability", &CAPABILITY);
    set_attribute(&file, "trusted.note", b"t");
    set_attribute(&file, "user.note", b"u");
    drop(mounted);
    let out = image.work.path().join("out");
    let answer = image.fs(&["get", "--no-same-owner", "IMAGE", "/power", "out"]);
    let answer = answer.success();
    for name in ["security.capability", "trusted.note"] {
        assert_eq!(attribute(&out, name), None, "{name}");
        assert!(answer.stdout.contains(name), "{answer}");
    }
    assert_eq!(attribute(&out, "user.note").as_deref(), Some(&b"u"[..]));
    image.fs(&["get", "IMAGE", "/power", "kept"]).success();
    let kept = image.work.path().join("kept");
    assert_eq!(
        attribute(&kept, "security.capability").as_deref(),
        Some(&CAPABILITY[..])
    );
}

#[test]
fn attributes_of_encryption_and_verity_are_not_shown_or_copied() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    // EXT4_XATTR_INDEX_ENCRYPTION with the flags of an encrypted file, and of verity.
    for (index, features, flags) in [(9u8, "encrypt", 0x80800), (11, "verity", 0x18_0000)] {
        let format = format!("-t ext4 -b 4096 -O ^metadata_csum,{features}");
        let image = Image::of(&format, 32);
        let source = image.work.path().join("file");
        fs::write(&source, [b'x'; 5000]).unwrap();
        image.change_by_debugfs(&format!(
            "write {} file\nea_set /file user.descriptor value\nea_set /file user.seen yes\n\
             set_inode_field /file flags {flags:#x}\n",
            source.display()
        ));
        // Of an entry, e_name_index is 15 bytes before the name.
        let mut bytes = fs::read(&image.path).unwrap();
        let name = b"descriptor";
        let at = bytes.windows(name.len()).position(|bytes| bytes == name);
        bytes[at.unwrap() - 15] = index;
        fs::write(&image.path, bytes).unwrap();
        let stat = image.fs(&["stat", "--json", "IMAGE", "/file"]).success();
        let attributes = &stat.json()["entries"][0]["xattrs"];
        let names: Vec<_> = attributes.as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 1, "{stat}");
        assert_eq!(names[0]["name"], "user.seen", "{stat}");
        let get = image.fs(&["get", "IMAGE", "/file", "out"]);
        if features == "verity" {
            get.success();
            let copied = fs::read(image.work.path().join("out")).unwrap();
            assert!(copied == [b'x'; 5000]);
        } else {
            get.refused(5, &["/file", "encrypt"]);
        }
    }
}

#[test]
fn attributes_of_links_and_special_files_come_out_too() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("mkfifo")
    );
    let image = Image::new(32);
    let mounted = image.mount();
    symlink("nowhere", mounted.place.join("link")).unwrap();
    must(command::tool("mkfifo").arg(mounted.place.join("fifo")));
    for name in ["link", "fifo"] {
        set_attribute(&mounted.place.join(name), "trusted.label", name.as_bytes());
    }
    drop(mounted);
    image.fs(&["get", "-r", "IMAGE", "/", "out"]).success();
    for name in ["link", "fifo"] {
        let value = attribute(&image.work.path().join("out").join(name), "trusted.label");
        assert_eq!(value.as_deref(), Some(name.as_bytes()));
    }
    let answer = image.fs(&["get", "-r", "--no-same-owner", "IMAGE", "/", "ours"]);
    let answer = answer.success();
    assert!(
        answer.stdout.contains("/link: attribute trusted.label"),
        "{answer}"
    );
}
