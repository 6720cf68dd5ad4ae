//! `create`, `fallocate`, `materialize` and `map` with `--in`: the kernel reads the result.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use extant_space::ExtentState;
use extant_testkit::{command, oracle, require, requires};
use serde_json::Value;

use crate::image::{FORMATS, Image, must};
use crate::support::{Answer, MIB, Running, extant, noise, run};

#[track_caller]
fn inside(image: &Image, name: &str, words: &[&str]) -> Answer {
    run(&mut image.command(name, &[&["--in", "IMAGE"], words].concat()))
}

#[test]
fn created_files_are_extant_to_the_kernel_in_every_format() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    for format in FORMATS {
        let image = Image::of(format, 128);
        let full = inside(&image, "create", &["/full", "40MiB", "--json"]).success();
        assert_eq!(full.number("/map/extant_bytes"), 40 * MIB, "{full}");
        inside(
            &image,
            "create",
            &["/falloc", "10MiB", "--preallocation", "falloc"],
        )
        .success();
        inside(
            &image,
            "create",
            &[
                "/part",
                "30000001",
                "--allocation",
                "5MiB",
                "--mode",
                "0600",
            ],
        )
        .success();
        inside(
            &image,
            "create",
            &["/off", "1GiB", "--preallocation", "off"],
        )
        .success();
        image.assert_clean();
        let mounted = image.mount();
        let states = |name: &str, state| oracle::filefrag(&mounted.place.join(name)).bytes(state);
        let full = mounted.place.join("full");
        assert!(oracle::filefrag(&full).is_extant(), "{format}");
        oracle::assert_zeros(&full, extant_space::ByteRange::new(0, 40 * MIB));
        assert_eq!(states("falloc", ExtentState::Unwritten), 10 * MIB);
        assert_eq!(states("part", ExtentState::Written), 5 * MIB);
        let part = fs::metadata(mounted.place.join("part")).unwrap();
        assert_eq!((part.len(), part.mode() & 0o7777), (30_000_001, 0o600));
        assert_eq!(
            fs::metadata(mounted.place.join("off")).unwrap().len(),
            1 << 30
        );
    }
}

#[test]
fn file_on_ext3_gets_its_space_by_written_zeros() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("filefrag")
    );
    let image = Image::of("-t ext3 -b 1024", 64);
    inside(&image, "create", &["/full", "20MiB"]).success();
    inside(
        &image,
        "create",
        &["/off", "3000001", "--preallocation", "off"],
    )
    .success();
    let made = inside(&image, "materialize", &["/off", "--json"]).success();
    assert_eq!(made.number("/zeroed_bytes"), 3_000_001, "{made}");
    inside(
        &image,
        "create",
        &["/f", "1MiB", "--preallocation", "falloc"],
    )
    .refused(5, &["disk.img:/f", "block map"]);
    image.assert_clean();
    let mounted = image.mount();
    for (name, bytes) in [("full", 20 * MIB), ("off", 3_000_001)] {
        let path = mounted.place.join(name);
        let written = oracle::filefrag(&path).bytes(ExtentState::Written);
        assert_eq!(written, bytes, "{name}");
        oracle::assert_zeros(&path, extant_space::ByteRange::new(0, 3_000_001));
    }
}

#[test]
fn old_contents_never_show_in_new_space() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(64);
    fs::write(image.work.path().join("secret"), noise(11, 30_000_000)).unwrap();
    image.fs(&["put", "IMAGE", "secret", "/"]).success();
    image.fs(&["rm", "IMAGE", "/secret"]).success();
    inside(&image, "create", &["/new", "35MiB"]).success();
    image.fs(&["get", "IMAGE", "/new", "new"]).success();
    let bytes = fs::read(image.work.path().join("new")).unwrap();
    assert!(bytes.len() as u64 == 35 * MIB && bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn name_that_is_taken_is_refused_or_replaced_whole() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(64);
    fs::write(image.work.path().join("old"), "old").unwrap();
    image.fs(&["put", "IMAGE", "old", "/name"]).success();
    inside(&image, "create", &["/name", "1MiB"])
        .refused(4, &["disk.img:/name", "file exists", "--force"]);
    inside(&image, "create", &["/lost+found", "1MiB"]).refused(4, &["is a directory"]);
    inside(&image, "create", &["/none/name", "1MiB"]).refused(4, &["disk.img:/none/name"]);
    inside(&image, "create", &["/name", "1GiB", "--force"])
        .refused(3, &["disk.img:/name", "missing"]);
    assert_eq!(image.fs(&["cat", "IMAGE", "/name"]).success().stdout, "old");
    let before = image
        .fs(&["df", "--json", "IMAGE"])
        .number("/filesystems/0/free_bytes");
    inside(&image, "create", &["/name", "1MiB", "--force"]).success();
    assert_eq!(
        image.fs(&["ls", "-a", "IMAGE"]).success().stdout,
        ".\n..\nlost+found\nname\n"
    );
    let after = image
        .fs(&["df", "--json", "IMAGE"])
        .number("/filesystems/0/free_bytes");
    assert_eq!(before - after, MIB - 4096);
    image.assert_clean();
}

#[test]
fn interrupted_create_leaves_no_name_and_no_space() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    use extant_testkit::command::find;
    assert!(find("e2fsck").is_some());
    let image = Image::new(256);
    let before = image
        .fs(&["df", "--json", "IMAGE"])
        .number("/filesystems/0/free_bytes");
    let words = [
        "--in",
        "IMAGE",
        "/slow",
        "200MiB",
        "--rate",
        "20MB",
        "--progress",
        "json",
    ];
    for end in [End::Cancel, End::Kill] {
        let running = Running::start(&mut image.command("create", &words));
        std::thread::sleep(std::time::Duration::from_millis(700));
        match end {
            End::Cancel => {
                let (answer, _) = running.stop(rustix::process::Signal::INT);
                assert_eq!(answer.code, Some(130), "{answer}");
                // Not even an orphan is left to the next.
                oracle::assert_e2fsck_clean(&image.path);
            }
            End::Kill => {
                running.stop(rustix::process::Signal::KILL);
                // Looking writes nothing, and sees the file system as it will be.
                let bytes = fs::read(&image.path).unwrap();
                assert_eq!(image.fs(&["ls", "IMAGE"]).success().stdout, "lost+found\n");
                image.fs(&["check", "IMAGE"]).success();
                assert!(fs::read(&image.path).unwrap() == bytes);
            }
        }
        image.fs(&["mkdir", "IMAGE", "/x"]).success();
        image.fs(&["rm", "-r", "IMAGE", "/x"]).success();
        assert_eq!(image.fs(&["ls", "IMAGE"]).success().stdout, "lost+found\n");
        assert_eq!(
            image
                .fs(&["df", "--json", "IMAGE"])
                .number("/filesystems/0/free_bytes"),
            before
        );
        image.assert_clean();
    }
}

enum End {
    Cancel,
    Kill,
}

#[test]
fn materialize_keeps_every_byte() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    for format in FORMATS {
        let image = Image::of(format, 128);
        let mounted = image.mount();
        let place = mounted.place.join("file");
        let file = fs::File::create(&place).unwrap();
        file.set_len(8 * MIB + 77).unwrap();
        must(
            command::tool("fallocate")
                .args(["-o", "3MiB", "-l", "2MiB"])
                .arg(&place),
        );
        for (start, length) in [(0, 300_000), (3_500_000, 70_001), (6_000_000, 1)] {
            file.write_all_at(&noise(start, length), start).unwrap();
        }
        file.sync_all().unwrap();
        let bytes = fs::read(&place).unwrap();
        let written = oracle::filefrag(&place).bytes(ExtentState::Written);
        drop((file, mounted));
        let answer = inside(&image, "materialize", &["/file", "--json"]).success();
        assert_eq!(
            answer.number("/already_written_bytes"),
            written,
            "{format}: {answer}"
        );
        assert_eq!(answer.number("/zeroed_bytes"), 8 * MIB + 77 - written);
        let again = inside(&image, "materialize", &["/file", "--json"]).success();
        assert_eq!(again.number("/zeroed_bytes"), 0);
        image.assert_clean();
        let mounted = image.mount();
        let place = mounted.place.join("file");
        assert!(oracle::filefrag(&place).is_extant(), "{format}");
        assert!(fs::read(&place).unwrap() == bytes, "{format}");
    }
}

#[test]
fn fallocate_equals_the_kernel() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    let (ours, kernels) = (Image::new(64), Image::new(64));
    let data = noise(12, 2_000_000);
    for image in [&ours, &kernels] {
        fs::write(image.mount().place.join("file"), &data).unwrap();
    }
    for line in [
        "-l 3000000",
        "-n -o 5MiB -l 1MiB",
        "-p -o 100000 -l 300000",
        "-z -o 1000000 -l 50000",
        "-c -o 40960 -l 40960",
        "-i -o 8192 -l 81920",
        "-d",
        "-p -o 1 -l 5000000",
    ] {
        let words: Vec<&str> = line.split(' ').chain(["/file"]).collect();
        inside(&ours, "fallocate", &words).success();
        let mounted = kernels.mount();
        let place = mounted.place.join("file");
        must(command::tool("fallocate").args(line.split(' ')).arg(&place));
        let wanted = (fs::read(&place).unwrap(), oracle::filefrag(&place));
        drop(mounted);
        let mounted = ours.mount();
        let place = mounted.place.join("file");
        assert!(fs::read(&place).unwrap() == wanted.0, "{line}");
        let found = oracle::filefrag(&place);
        for state in [ExtentState::Written, ExtentState::Unwritten] {
            // util-linux's program punches unwritten space too, if zeros precede it.
            if state == ExtentState::Unwritten && line == "-d" {
                continue;
            }
            assert_eq!(found.bytes(state), wanted.1.bytes(state), "{line}: {state}");
        }
    }
    ours.assert_clean();
    // A file that is not there is made, zeroed and written.
    let answer = inside(&ours, "fallocate", &["-v", "-w", "-l", "4MiB", "/new"]).success();
    assert!(answer.stdout.contains("disk.img:/new: 4 MiB"), "{answer}");
    let report = inside(&ours, "fallocate", &["-r", "/new"]).success();
    assert!(
        report.stdout.contains("data holes: 1 holes, 4 MiB"),
        "{report}"
    );
    let missing = inside(&ours, "fallocate", &["-p", "-l", "4k", "/none"]);
    assert_eq!(missing.code, Some(1), "{missing}");
    assert!(
        missing.stderr.contains("fallocate: cannot open")
            && missing.stderr.contains("disk.img:/none")
    );
    assert!(oracle::filefrag(&ours.mount().place.join("new")).is_extant());
}

#[test]
fn map_equals_filefrag() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    let image = Image::new(64);
    let mounted = image.mount();
    let place = mounted.place.join("dir");
    fs::create_dir(&place).unwrap();
    let file = fs::File::create(place.join("file")).unwrap();
    for at in 0..20 {
        file.write_all_at(&noise(at, 5000), at * 100_000).unwrap();
    }
    file.sync_all().unwrap();
    must(
        command::tool("fallocate")
            .args(["-n", "-o", "4MiB", "-l", "1MiB"])
            .arg(place.join("file")),
    );
    file.sync_all().unwrap();
    let theirs = oracle::filefrag(&place.join("file"));
    drop((file, mounted));
    let ours = run(&mut image.command("map", &["--in", "IMAGE", "--json", "/dir"]))
        .success()
        .json();
    assert_eq!(ours["files"][0]["path"], "/dir/file");
    let extents = ours["files"][0]["extents"].as_array().unwrap();
    let placed: Vec<&Value> = extents
        .iter()
        .filter(|extent| extent["state"] != "hole")
        .collect();
    assert_eq!(placed.len(), theirs.extents.len());
    for (ours, theirs) in placed.iter().zip(&theirs.extents) {
        assert_eq!(ours["physical"].as_u64(), theirs.physical, "{ours}");
        assert_eq!(ours["state"], theirs.state.name());
        assert_eq!(
            ours["logical"]["start"].as_u64(),
            Some(theirs.logical.start())
        );
    }
    let picture = run(&mut image.command("map", &["--in", "IMAGE", "/"])).success();
    assert!(picture.stdout.contains("/dir/file"), "{picture}");
    let none = run(&mut image.command("map", &["--in", "IMAGE", "/none"]));
    assert_eq!(none.code, Some(4), "{none}");
}

#[test]
fn options_that_make_no_sense_inside_are_refused() {
    let image = ["--in", "x.img"];
    for words in [
        &["create", "/f", "1M", "--nocow"][..],
        &["create", "/f", "1M", "--keep-partial"],
        &["materialize", "/f", "--unshare"],
        &["map", "/f", "-x"],
    ] {
        run(extant().args(words).args(image)).refused(2, &["cannot be used with", "--in"]);
    }
    run(extant().args(["create", "/f", "1M", "--assign", "off"])).refused(2, &["--in"]);
}

#[test]
fn assign_gives_space_its_place_below() {
    require!(requires::tool("mke2fs"));
    for (assign, is_taken) in [("off", false), ("try", true), ("require", true)] {
        let image = Image::new(256);
        let before = oracle::allocated_bytes(&image.path);
        let words = [
            "/f",
            "100MiB",
            "--preallocation",
            "falloc",
            "--assign",
            assign,
        ];
        inside(&image, "create", &words).success();
        let taken = oracle::allocated_bytes(&image.path) - before;
        assert_eq!(taken >= 100 * MIB, is_taken, "{assign}: {taken}");
    }
}
