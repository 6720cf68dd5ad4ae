//! `ls`, `stat`, `df`, `tree`, `dump` against the tools that people know.

use std::fs;
use std::os::unix::fs::MetadataExt;

use extant_testkit::{command, require, requires};
use serde_json::Value;

use crate::image::{FORMATS, Image, must, tree};

/// An image with a tree that the kernel wrote.
fn populated(format: &str) -> Image {
    let image = Image::of(format, 64);
    let source = tree(image.work.path());
    let mounted = image.mount();
    must(
        command::tool("cp")
            .arg("-a")
            .arg(source.join("."))
            .arg(&mounted.place),
    );
    image
}

#[test]
fn ls_lists_the_same_names_as_the_kernel() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("ls")
    );
    let image = populated(FORMATS[0]);
    let list = |options: &[&str]| {
        image
            .fs(&[&["ls"], options, &["IMAGE", "/b"]].concat())
            .success()
            .stdout
    };
    let (ours, inodes) = (list(&["-la"]), list(&["-ia"]));
    let mounted = image.mount();
    let kernel = |options: &str| {
        let mut ls = command::tool("ls");
        let ls = ls
            .env("LC_ALL", "C")
            .args([options, "--time-style=+%Y-%m-%d %H:%M"]);
        must(ls.arg(mounted.place.join("b")))
    };
    let squeezed = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("total"));
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    assert_eq!(squeezed(&ours), squeezed(&kernel("-lan")));
    assert_eq!(squeezed(&inodes), squeezed(&kernel("-ia")));
}

#[test]
fn names_on_a_pipe_are_their_bytes() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = populated(FORMATS[0]);
    let mut ls = image.command("fs", &["ls", "IMAGE"]);
    let bytes = ls.output().unwrap().stdout;
    let wanted = b"caf\xe9 \n*\n";
    assert!(bytes.windows(wanted.len()).any(|window| window == wanted));
    let json = image.fs(&["ls", "--json", "IMAGE"]).success().json();
    let entries = json["entries"].as_array().unwrap();
    let odd = entries
        .iter()
        .find(|entry| entry.get("path_hex").is_some())
        .unwrap();
    assert_eq!(odd["path_hex"], "2f636166e9200a2a");
}

#[test]
fn stat_equals_the_kernel() {
    require!(requires::root(), requires::tool("mke2fs"));
    for format in FORMATS {
        let image = populated(format);
        let paths = [
            "a",
            "a/small",
            "b/longlink",
            "b/link",
            "b/fifo",
            "sparse",
            "a/deep/er/odd",
        ];
        let words = [&["stat", "--json", "IMAGE"][..], &paths].concat();
        let ours = image.fs(&words).success().json();
        let mounted = image.mount();
        for (found, path) in ours["entries"].as_array().unwrap().iter().zip(paths) {
            let kernel = fs::symlink_metadata(mounted.place.join(path)).unwrap();
            let number = |name: &str| found[name].as_u64().unwrap();
            assert_eq!(number("inode"), kernel.ino(), "{path}");
            assert_eq!(number("size_bytes"), kernel.size(), "{path}");
            assert_eq!(number("allocated_bytes"), kernel.blocks() * 512, "{path}");
            assert_eq!(number("links"), kernel.nlink(), "{path}");
            assert_eq!(
                found["mode"],
                format!("{:04o}", kernel.mode() & 0o7777),
                "{path}"
            );
            let modified = found["modified"].as_str().unwrap();
            let fraction = modified
                .trim_end_matches('Z')
                .split('.')
                .nth(1)
                .unwrap_or("0");
            let nanoseconds: i64 = format!("{fraction:0<9}").parse().unwrap();
            assert_eq!(nanoseconds, kernel.mtime_nsec(), "{path}: {modified}");
        }
    }
}

#[test]
fn df_equals_the_kernel() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("df")
    );
    for format in FORMATS {
        let image = populated(format);
        let figures = |text: &str| -> Vec<String> {
            let line = text.lines().nth(1).unwrap();
            line.split_whitespace()
                .skip(1)
                .take(4)
                .map(str::to_owned)
                .collect()
        };
        let (blocks, inodes) = (
            image.fs(&["df", "IMAGE"]).success().stdout,
            image.fs(&["df", "-i", "IMAGE"]).success().stdout,
        );
        let mounted = image.mount();
        let kernel = |options: &[&str]| must(command::tool("df").args(options).arg(&mounted.place));
        // The kernel's reserve for delayed allocation is available here.
        let (ours, theirs) = (figures(&blocks), figures(&kernel(&["-k"])));
        assert_eq!(ours[..2], theirs[..2], "{format}");
        let available = |figures: &[String]| figures[2].parse::<u64>().unwrap();
        assert!(available(&ours) >= available(&theirs), "{format}");
        assert_eq!(figures(&inodes), figures(&kernel(&["-i"])), "{format}");
    }
}

#[test]
fn tree_draws_every_name_once() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = populated(FORMATS[0]);
    let drawn = image.fs(&["tree", "IMAGE", "/b"]).success().stdout;
    let wanted = format!(
        "/b\n├── fifo\n├── link -> ../a/small\n├── longlink -> {}\n└── same\n\n0 directories, 4 files\n",
        "x".repeat(200)
    );
    assert_eq!(drawn, wanted);
    let shallow = image
        .fs(&["tree", "-L", "1", "IMAGE", "/a"])
        .success()
        .stdout;
    assert_eq!(
        shallow,
        "/a\n├── deep\n├── nothing\n└── small\n\n1 directory, 2 files\n"
    );
}

/// The value behind `name:` in the output of dumpe2fs.
/// An image with files that can be read, and with three that cannot: an inode without a type, a
/// file with a damaged extent tree, an encrypted directory.
pub fn partly_unreadable() -> Image {
    let image = Image::of("-t ext4 -b 4096 -O encrypt", 32);
    let source = image.work.path().join("source");
    fs::write(&source, "contents").unwrap();
    let source = source.display();
    image.change_by_debugfs(&format!(
        "mkdir /dir\nmkdir /dir/below\nmkdir /sealed\nwrite {source} /a\nwrite {source} /z\n\
         cd /dir\nwrite {source} inner\nwrite {source} worse\nwrite {source} zero\n\
         cd /dir/below\nwrite {source} last\n\
         set_inode_field /a mode 0\nset_inode_field /dir/worse block[0] 0\n\
         set_inode_field /sealed flags 0x80800\n"
    ));
    image
}

#[test]
fn listing_continues_behind_what_cannot_be_read() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = partly_unreadable();
    let ls = image.fs(&["ls", "IMAGE"]);
    assert_eq!(ls.code, Some(1), "{ls}");
    assert_eq!(ls.stdout, "a\ndir\nlost+found\nsealed\nz\n", "{ls}");
    assert_eq!(ls.stderr.lines().count(), 1, "{ls}");
    assert!(ls.stderr.contains("disk.img:/a: "), "{ls}");
    let ls = image.fs(&["ls", "-li", "IMAGE", "/", "/missing"]);
    assert_eq!(ls.code, Some(4), "{ls}");
    let unknown: Vec<_> = ls
        .stdout
        .lines()
        .filter(|line| line.contains('?'))
        .collect();
    assert_eq!(unknown.len(), 1, "{ls}");
    let words: Vec<_> = unknown[0].split_whitespace().collect();
    assert_eq!(words, ["?", "??????????", "?", "?", "?", "?", "?", "a"]);
    assert!(ls.stdout.ends_with(" z\n"), "{ls}");

    let all = [
        "/dir",
        "/dir/below",
        "/dir/below/last",
        "/dir/inner",
        "/dir/worse",
        "/dir/zero",
    ];
    let rest = ["/lost+found", "/sealed", "/z"];
    let wanted: Vec<&str> = all.into_iter().chain(rest).collect();
    for words in [
        &["ls", "-R", "--json", "IMAGE"][..],
        &["tree", "--json", "IMAGE"],
    ] {
        let answer = image.fs(words);
        assert_eq!(answer.code, Some(1), "{answer}");
        let json = answer.json();
        let entries = json["entries"].as_array().unwrap();
        let mut paths: Vec<_> = entries
            .iter()
            .map(|entry| entry["path"].as_str().unwrap())
            .filter(|path| *path != "/")
            .collect();
        paths.sort_unstable();
        assert_eq!(paths, wanted, "{answer}");
    }
    for words in [&["ls", "-R", "IMAGE"][..], &["tree", "IMAGE"]] {
        let answer = image.fs(words);
        assert_eq!(answer.code, Some(1), "{answer}");
        assert!(answer.stdout.contains("last"), "{answer}");
        assert_eq!(answer.stderr.lines().count(), 2, "{answer}");
        assert!(answer.stderr.contains("/sealed: "), "{answer}");
    }
    image
        .fs(&["ls", "--json", "IMAGE", "/sealed"])
        .refused_json(5, "unsupported");
}

fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))[name.len() + 1..].trim()
}

#[test]
fn superblock_is_that_of_dumpe2fs() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("dumpe2fs")
    );
    for format in FORMATS {
        let image = populated(format);
        let theirs = must(command::tool("dumpe2fs").arg(&image.path));
        let ours = image
            .fs(&["dump", "--superblock", "--json", "IMAGE"])
            .success()
            .json();
        let ours = &ours["superblock"];
        for (field, name) in [
            ("inodes", "Inode count"),
            ("blocks", "Block count"),
            ("reserved_blocks", "Reserved block count"),
            ("free_blocks", "Free blocks"),
            ("free_inodes", "Free inodes"),
            ("first_data_block", "First block"),
            ("block_bytes", "Block size"),
            ("blocks_per_group", "Blocks per group"),
            ("inodes_per_group", "Inodes per group"),
            ("inode_blocks_per_group", "Inode blocks per group"),
            ("first_inode", "First inode"),
            ("inode_bytes", "Inode size"),
            ("mounts", "Mount count"),
        ] {
            assert_eq!(
                ours[field].to_string(),
                value(&theirs, name),
                "{format}: {field}"
            );
        }
        assert_eq!(ours["uuid"], value(&theirs, "Filesystem UUID"));
        let mut features: Vec<&str> = value(&theirs, "Filesystem features").split(' ').collect();
        let found = ours["features"].as_array().unwrap();
        let mut found: Vec<&str> = found.iter().map(|name| name.as_str().unwrap()).collect();
        features.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, features);
    }
}

#[test]
fn groups_are_those_of_dumpe2fs() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("dumpe2fs")
    );
    for format in FORMATS {
        let image = populated(format);
        let theirs = must(command::tool("dumpe2fs").arg(&image.path));
        let ours = image
            .fs(&["dump", "--groups", "--json", "IMAGE"])
            .success()
            .json();
        let groups = ours["groups"].as_array().unwrap();
        let parts = theirs.split("\nGroup ");
        let is_group = |part: &&str| part.starts_with(|c: char| c.is_ascii_digit());
        let blocks: Vec<&str> = parts.filter(is_group).collect();
        assert_eq!(groups.len(), blocks.len());
        for (group, block) in groups.iter().zip(blocks) {
            let number = |name: &str| group[name].as_u64().unwrap();
            for wanted in [
                format!(
                    "(Blocks {}-{})",
                    number("first_block"),
                    number("last_block")
                ),
                format!("Block bitmap at {} ", number("block_bitmap")),
                format!("Inode bitmap at {} ", number("inode_bitmap")),
                format!(
                    "Inode table at {}-{} ",
                    number("inode_table"),
                    number("inode_table_end")
                ),
                format!(
                    "{} free blocks, {} free inodes, {} directories",
                    number("free_blocks"),
                    number("free_inodes"),
                    number("directories")
                ),
            ] {
                assert!(
                    block.contains(&wanted),
                    "{format}: no {wanted:?} in {block}"
                );
            }
        }
    }
}

#[test]
fn extents_are_those_of_debugfs() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs")
    );
    let image = Image::new(64);
    let mounted = image.mount();
    // Every other block, so that the tree has nodes.
    let file = fs::File::create(mounted.place.join("holes")).unwrap();
    use std::os::unix::fs::FileExt;
    for at in 0..1000 {
        file.write_all_at(&[7; 4096], at * 8192).unwrap();
    }
    file.sync_all().unwrap();
    drop((file, mounted));
    let theirs = image.debugfs("dump_extents -n /holes");
    let leaves = image.debugfs("dump_extents -l /holes");
    let ours = image
        .fs(&["dump", "--extents", "/holes", "--json", "IMAGE"])
        .success()
        .json();
    let entries = ours["extents"]["entries"].as_array().unwrap();
    let (extents, nodes): (Vec<&Value>, Vec<&Value>) =
        entries.iter().partition(|entry| entry["blocks"].is_u64());
    assert_eq!(extents.len(), 1000);
    let rows = |text: &str| text.lines().filter(|line| line.contains('/')).count() as u64;
    assert_eq!(nodes.len() as u64, rows(&theirs));
    assert_eq!(extents.len() as u64, rows(&leaves));
    for (extent, line) in extents
        .iter()
        .zip(leaves.lines().filter(|line| line.contains('/')))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let physical = extent["physical"].to_string();
        assert!(words.contains(&physical.as_str()), "{physical} in {line}");
        assert!(
            words.contains(&extent["logical"].to_string().as_str()),
            "{line}"
        );
    }
}

#[test]
fn inode_and_journal_are_those_of_debugfs() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs")
    );
    let image = populated(FORMATS[0]);
    let words = [
        "dump",
        "--inode",
        "/a/small",
        "--journal",
        "--json",
        "IMAGE",
    ];
    let ours = image.fs(&words).success().json();
    let theirs = image.debugfs("stat /a/small");
    for wanted in [
        format!("Inode: {} ", ours["inode"]["inode"]),
        format!("Links: {} ", ours["inode"]["links"]),
        format!("Blockcount: {}\n", ours["inode"]["sectors"]),
        format!("Generation: {} ", ours["inode"]["generation"]),
        format!(
            "Flags: {:#x}\n",
            ours["inode"]["flag_bits"].as_u64().unwrap()
        ),
    ] {
        assert!(theirs.contains(&wanted), "no {wanted:?} in {theirs}");
    }
    let journal = &ours["journal"];
    assert_eq!(journal["needs_recovery"], false);
    let summary = must(command::tool("dumpe2fs").arg("-h").arg(&image.path));
    assert_eq!(
        value(&summary, "Total journal blocks"),
        journal["blocks"].to_string()
    );
    let sequence = journal["sequence"].as_u64().unwrap();
    assert_eq!(
        value(&summary, "Journal sequence"),
        format!("{sequence:#010x}")
    );
    let by_number = ["dump", "--inode", "8", "IMAGE"];
    assert!(image.fs(&by_number).success().stdout.contains("Inode"));
}
