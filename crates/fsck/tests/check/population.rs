//! Files of every kind, as the kernel makes them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use extant_testkit::command::{run, tool};

/// Contents of files.
pub const FILL: u8 = 0x5A;

/// Creates files of every kind in `root`. Kinds that the file system does not support are left out.
pub fn populate(root: &Path) {
    make_directories(root);
    make_nodes(root);
    make_data(root);
    make_attributes(root);
}

/// A tree of directories, and one with enough entries for two levels in its hash tree.
fn make_directories(root: &Path) {
    let deep = root.join("a/b/c/d");
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    let mut names = Vec::new();
    for number in 0..700 {
        let name = many.join(format!("{number:0>200}"));
        File::create(&name).unwrap();
        names.push(name);
    }
    // Leaves with little or nothing in them.
    for name in names.iter().skip(100).take(200) {
        fs::remove_file(name).unwrap();
    }
    let linear = root.join("linear");
    fs::create_dir(&linear).unwrap();
    for number in 0..10 {
        fs::create_dir(linear.join(number.to_string())).unwrap();
    }
    fs::remove_dir(linear.join("4")).unwrap();
}

fn make_nodes(root: &Path) {
    symlink("target", root.join("fast")).unwrap();
    symlink("x".repeat(59), root.join("longest fast")).unwrap();
    symlink("x".repeat(60), root.join("slow")).unwrap();
    symlink("x".repeat(1000), root.join("slower")).unwrap();
    UnixListener::bind(root.join("socket")).unwrap();
    for (name, words) in [
        ("fifo", &["p"][..]),
        ("block", &["b", "8", "1"]),
        ("character", &["c", "1", "3"]),
        ("far", &["b", "300", "70000"]),
    ] {
        run(tool("mknod").arg(root.join(name)).args(words)).unwrap();
    }
}

fn make_data(root: &Path) {
    let write = |name: &str, at: u64, bytes: usize| {
        let mut options = File::options();
        let file = options
            .create(true)
            .write(true)
            .truncate(false)
            .open(root.join(name));
        file.unwrap().write_all_at(&vec![FILL; bytes], at).unwrap();
    };
    write("small", 0, 5);
    write("one block", 0, 4096);
    write("some", 0, 300_000);
    fs::hard_link(root.join("some"), root.join("a/other name")).unwrap();
    fs::hard_link(root.join("some"), root.join("a/b/third name")).unwrap();
    // A tree, or indirect blocks.
    for number in 0..500 {
        write("scattered", number * 16_384, 1000);
    }
    // Double and triple indirect blocks, where there are any.
    write("sparse", 0, 10);
    write("sparse", 5 << 20, 10);
    write("sparse", 70 << 20, 10);
    write("gone", 0, 2 << 20);
    fs::remove_file(root.join("gone")).unwrap();
    File::create(root.join("hole"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    for (name, arguments) in [
        ("unwritten", &["-l", "300000"][..]),
        ("past the end", &["-n", "-l", "300000"]),
    ] {
        // ext2 has none.
        let _ = run(tool("fallocate").args(arguments).arg(root.join(name)));
    }
    write("past the end", 0, 10);
}

fn make_attributes(root: &Path) {
    let set = |file: &str, name: &str, value: &str| {
        run(tool("setfattr")
            .args(["-n", name, "-v", value])
            .arg(root.join(file)))
    };
    for number in 0..5 {
        let file = format!("linear/shared {number}");
        File::create(root.join(&file)).unwrap();
        // Too large for an inode: the same in a block that all name.
        set(&file, "user.text", &"y".repeat(700)).unwrap();
    }
    set("small", "user.short", "v").unwrap();
    set("linear", "user.of-a-directory", "v").unwrap();
    set("linear", "user.long", &"z".repeat(500)).unwrap();
    set("socket", "trusted.node", "n").unwrap();
    // Larger than a block: in an inode of its own, or refused.
    for file in ["some", "one block"] {
        let _ = set(file, "user.large", &"w".repeat(9000));
    }
    fs::copy(root.join("small"), root.join("attributes")).unwrap();
    set("attributes", "user.one", &"1".repeat(300)).unwrap();
    set("attributes", "user.two", &"2".repeat(300)).unwrap();
}
