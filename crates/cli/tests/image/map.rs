//! `extant map`: pictures that replace nothing, images below directories, statuses, and text about
//! fragments.

use std::fs;
use std::path::Path;

use extant_testkit::browser::{self, Scheme};
use extant_testkit::oracle::qemu::{qemu, qemu_img};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::outer::Outer;
use crate::support::{Answer, MIB, create, extant, run};

#[track_caller]
fn map(work: &Path, words: &[&str]) -> Answer {
    run(extant().arg("map").args(words).current_dir(work))
}

fn is_png(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(b"\x89PNG")
}

#[test]
fn picture_replaces_files_only_if_forced_and_never_a_mapped_one() {
    let work = Workdir::new();
    let place = work.path();
    fs::create_dir(place.join("d")).unwrap();
    for name in ["a.raw", "d/b.raw"] {
        fs::write(place.join(name), [7; 8192]).unwrap();
    }
    fs::write(place.join("keep.txt"), "keep").unwrap();
    map(place, &["a.raw", "--png", "keep.txt"]).refused(4, &["keep.txt", "file exists", "--force"]);
    map(place, &["a.raw", "--svg", "keep.txt"]).refused(4, &["keep.txt", "--force"]);
    assert_eq!(fs::read(place.join("keep.txt")).unwrap(), b"keep");
    map(place, &["a.raw", "--force", "--svg", "keep.txt"]).success();
    assert!(fs::read(place.join("keep.txt")).unwrap().starts_with(b"<"));
    // By whatever name, and wherever it was found.
    std::os::unix::fs::symlink("a.raw", place.join("link")).unwrap();
    fs::hard_link(place.join("a.raw"), place.join("other")).unwrap();
    for (input, picture) in [
        ("a.raw", "a.raw"),
        ("a.raw", "./a.raw"),
        ("link", "a.raw"),
        ("a.raw", "other"),
        ("d", "d/b.raw"),
    ] {
        let answer = map(place, &[input, "--force", "--png", picture]);
        assert_eq!(answer.code, Some(2), "{answer}");
        assert!(answer.stderr.contains("mapped itself"), "{answer}");
    }
    map(place, &["a.raw", "--force", "--svg", "d"]).refused(4, &["not a regular file"]);
    map(place, &["a.raw", "--svg", "new", "--png", "./new"]).refused(2, &["two pictures"]);
    for name in ["a.raw", "d/b.raw"] {
        assert_eq!(fs::read(place.join(name)).unwrap(), [7; 8192], "{name}");
    }
    map(place, &["a.raw", "--svg", "new.svg", "--png", "new.png"]).success();
    assert!(is_png(&place.join("new.png")));
    assert!(!place.join("new").exists());
}

#[test]
fn images_below_a_directory_are_shown_by_their_disk_and_stray_contents_as_files() {
    require!(qemu_img());
    let work = Workdir::new();
    let place = work.path().join("d");
    fs::create_dir(&place).unwrap();
    create(&place.join("a.qcow2"), "4MiB", &["--preallocation", "off"]).success();
    fs::copy(place.join("a.qcow2"), place.join("b.img")).unwrap();
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"vmdk",
        &place.join("c.vmdk"),
        &"4M",
    ]);
    fs::write(place.join("d.qcow2"), [7; 4096]).unwrap();
    let answer = map(work.path(), &["--json", "d"]).success();
    let files = answer.json()["files"].clone();
    let shown: Vec<_> = files
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            (
                file["path"].as_str().unwrap(),
                file["format"].as_str().unwrap(),
            )
        })
        .collect();
    let wanted = [
        ("d/a.qcow2", "qcow2"),
        ("d/b.img", "raw"),
        ("d/c.vmdk", "raw"),
        ("d/d.qcow2", "raw"),
    ];
    assert_eq!(shown, wanted);
    assert_eq!(answer.number("/files/0/size_bytes"), 4 * MIB);
}

#[test]
fn status_distinguishes_no_mapped_file_from_some() {
    let work = Workdir::new();
    let place = work.path();
    fs::write(place.join("a"), "x").unwrap();
    fs::create_dir(place.join("empty")).unwrap();
    map(place, &["none"]).refused(4, &["none", "no such file"]);
    let some = map(place, &["none", "a"]);
    assert_eq!(some.code, Some(1), "{some}");
    assert!(some.stdout.contains("fragments"), "{some}");
    let nothing = map(place, &["empty"]).success();
    assert_eq!(nothing.stdout, "no regular files\n");
}

#[test]
fn hidden_files_below_a_directory_are_listed_on_request() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    let place = work.path().join("d");
    fs::create_dir_all(place.join(".extant/jobs")).unwrap();
    for name in ["a", ".hidden", ".extant/jobs/1.json"] {
        fs::write(place.join(name), "x").unwrap();
    }
    let count = |words: &[&str]| {
        let answer = map(work.path(), &[&["--json"], words].concat()).success();
        answer.json()["files"].as_array().unwrap().len()
    };
    assert_eq!(count(&["d"]), 1);
    assert_eq!(count(&["-a", "d"]), 3);
    assert_eq!(count(&["d/.hidden"]), 1);
    assert_eq!(count(&["d/.extant"]), 1);
    let outer = Outer::new();
    for name in ["/a", "/.hidden"] {
        outer.on(&["create"], name, &["4096"]).success();
    }
    let inside = |more: &[&str]| outer.on(&["map", "--json"], "/", more).success().json();
    let total = |found: serde_json::Value| found["files"].as_array().unwrap().len();
    assert_eq!(total(inside(&[])), 1);
    assert_eq!(total(inside(&["--all"])), 2);
}

#[test]
fn bars_are_ascii_where_the_locale_has_nothing_else() {
    let work = Workdir::new();
    let file = work
        .path()
        .join("a-name-that-is-much-longer-than-its-column");
    create(&file, "1MiB", &["--preallocation", "falloc"]).success();
    let shown = |locale: &str, term: &str| {
        let mut command = extant();
        command.env("LC_ALL", locale).env("TERM", term);
        run(command.arg("map").arg(&file)).success().stdout
    };
    for (locale, term) in [("C", "xterm"), ("C.UTF-8", "dumb")] {
        let text = shown(locale, term);
        assert!(text.is_ascii() && text.contains("____"), "{text}");
    }
    assert!(shown("C.UTF-8", "xterm").contains('▁'));
}

#[test]
fn file_in_one_piece_needs_no_defragmentation_whatever_its_states() {
    require!(requires::tool("mke2fs"));
    let outer = Outer::new();
    outer
        .on(&["create"], "/a", &["128KiB", "--preallocation", "falloc"])
        .success();
    // Every other block is written: as many extents, in one place of the device.
    for block in (0..32).step_by(2) {
        let offset = (block * 4096).to_string();
        let mut command = extant();
        command.args(["materialize", "--in"]).arg(outer.path());
        run(command.args(["/a", "-o", &offset, "-l", "4096"])).success();
    }
    let answer = outer.on(&["map"], "/a", &[]).success();
    let words = ["in 1 fragment", "no problem", "32 extents where 1 would do"];
    for words in words {
        assert!(answer.stdout.contains(words), "{answer}");
    }
}

#[test]
fn page_opens_in_a_browser_with_picture_and_figures_of_every_file() {
    require!(requires::tool("chromium"));
    let work = Workdir::new();
    let place = work.path();
    create(&place.join("a.raw"), "4MiB", &[]).success();
    fs::write(place.join("<b>.raw"), [7; 8192]).unwrap();
    map(place, &["a.raw", "--html", "a.raw"]).refused(4, &["a.raw", "--force"]);
    map(place, &["a.raw", "<b>.raw", "--html", "map.html"]).success();
    let page = place.join("map.html");
    for (scheme, behind) in [
        (Scheme::Light, [0xff; 3]),
        (Scheme::Dark, [0x14, 0x18, 0x1d]),
    ] {
        let view = browser::open(&page, scheme, (1000, 700));
        assert_eq!(view.messages, [""; 0]);
        assert_eq!(view.pixels[0], behind);
        assert!(view.colors() > 8, "{scheme:?}: {}", view.colors());
        assert_eq!(view.document.matches("class=\"bar\"").count(), 2);
        for part in [
            "<th scope=\"row\">a.raw</th><td>4 MiB</td><td>4 MiB</td>",
            "<th scope=\"row\">&lt;b&gt;.raw</th><td>8 KiB</td>",
            "<th scope=\"row\">all 2 files</th>",
        ] {
            assert!(view.document.contains(part), "{part}: {}", view.document);
        }
    }
}
