//! `freefrag` and `frag` against e2freefrag and e4defrag.

use std::fs;
use std::io::Write;
use std::path::Path;

use extant_testkit::{command, require, requires};

use crate::image::{FORMATS, Image, must};

/// Files appended to round-robin, so that they and the space between them are fragmented.
fn fragment(directory: &Path) {
    fs::create_dir(directory.join("dir")).unwrap();
    let names = ["one", "two", "dir/three"];
    for round in 0..20u8 {
        for name in names {
            let mut file = fs::File::options()
                .create(true)
                .append(true)
                .open(directory.join(name))
                .unwrap();
            file.write_all(&vec![round + 1; 40_000]).unwrap();
            file.sync_all().unwrap();
        }
    }
    fs::remove_file(directory.join("two")).unwrap();
    fs::write(directory.join("whole"), vec![1; 3_000_000]).unwrap();
    // Blocks and no size: not counted by e4defrag.
    let empty = directory.join("empty");
    fs::write(&empty, "").unwrap();
    must(
        command::tool("fallocate")
            .args(["-n", "-l", "1MiB"])
            .arg(&empty),
    );
}

fn fragmented(format: &str) -> Image {
    let image = Image::of(format, 64);
    fragment(&image.mount().place);
    image
}

#[test]
fn free_space_equals_e2freefrag() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2freefrag")
    );
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    };
    for format in FORMATS {
        for image in [fragmented(format), Image::of(format, 64)] {
            let theirs = must(command::tool("e2freefrag").arg(&image.path));
            let ours = image.fs(&["freefrag", "IMAGE"]).success().stdout;
            assert_eq!(lines(&ours), lines(&theirs), "{format}");
            let theirs = must(
                command::tool("e2freefrag")
                    .args(["-c", "64"])
                    .arg(&image.path),
            );
            let ours = image
                .fs(&["freefrag", "--chunk", "64k", "IMAGE"])
                .success()
                .stdout;
            // It counts a chunk too many where the last one is whole.
            let comparable = |text: &str| -> Vec<String> {
                let all = lines(text).into_iter();
                all.filter(|line| !line.starts_with("Total chunks"))
                    .map(|line| line.split(" (").next().unwrap_or_default().to_owned())
                    .collect()
            };
            assert_eq!(
                comparable(&ours),
                comparable(&theirs),
                "{format}, in chunks"
            );
        }
    }
    let image = Image::new(16);
    image
        .fs(&["freefrag", "--chunk", "1000", "IMAGE"])
        .refused(2, &["power of two"]);
}

#[test]
fn fragmentation_equals_e4defrag() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e4defrag")
    );
    for format in FORMATS {
        let image = fragmented(format);
        for path in ["/", "/dir"] {
            let ours = image
                .fs(&["frag", "--json", "IMAGE", path])
                .success()
                .json();
            let mounted = image.mount();
            let directory = mounted.place.join(&path[1..]);
            let theirs = must(command::tool("e4defrag").arg("-c").arg(&directory));
            let total = &ours["total"];
            let row = |name: &str| {
                let line = theirs
                    .lines()
                    .find(|line| line.trim().starts_with(name))
                    .unwrap();
                line.trim()[name.len()..].trim().to_owned()
            };
            assert_eq!(
                format!("{}/{}", total["extents"], total["best_extents"]),
                row("Total/best extents"),
                "{format} {path}"
            );
            let mean = total["mean_extent_bytes"].as_u64().unwrap() / 1024;
            assert_eq!(
                format!("{mean} KB"),
                row("Average size per extent"),
                "{format} {path}"
            );
            let score = total["fragmentation_score"].as_f64().unwrap();
            assert_eq!(
                format!("{score:.0}"),
                row("Fragmentation score"),
                "{format} {path}"
            );
            for file in ours["worst"].as_array().unwrap() {
                let name = file["path"].as_str().unwrap();
                // A long path has its figures on the next line.
                let mut words = theirs.split_whitespace();
                let is_there = words.any(|word| word.ends_with(name));
                assert!(is_there, "no {name} in {theirs}");
                let now = format!("{}/{}", file["extents"], file["best_extents"]);
                assert_eq!(words.next(), Some(&now[..]), "{format} {name}");
            }
        }
    }
}

#[test]
fn worst_files_come_first_and_have_names() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = fragmented(FORMATS[0]);
    let answer = image.fs(&["frag", "--top", "2", "IMAGE"]).success();
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert!(
        lines[1].starts_with("1. /") && lines[2].starts_with("2. /"),
        "{answer}"
    );
    assert!(
        !answer.stdout.contains("/whole") && lines[3].is_empty(),
        "{answer}"
    );
    let one = image.fs(&["frag", "--json", "IMAGE", "/one"]).success();
    assert_eq!(one.number("/files"), 1);
    assert_eq!(one.text("/worst/0/path"), "/one");
}
