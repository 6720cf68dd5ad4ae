//! `--zeroes through|metadata`: the state of a file's space in the host file of its image, as
//! filefrag shows it on both levels.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_space::{ByteRange, ErrorKind, ExtentState};
use extant_testkit::command::tool;
use extant_testkit::faulty::{Faults, Faulty, WriteFault};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{oracle, require, requires};

use crate::image::{FORMATS, Image};
use crate::support::{Answer, MIB, noise, run};

/// Host file systems with unwritten extents, on which written space stays in place.
const HOSTS: [Filesystem; 2] = [Filesystem::Ext4, Filesystem::Xfs];

#[track_caller]
fn inside(image: &Image, name: &str, words: &[&str]) -> Answer {
    run(&mut image.command(name, &[&["--in", "IMAGE"], words].concat()))
}

fn host(filesystem: Filesystem) -> Scratch {
    Scratch::new(filesystem, filesystem.size_bytes_min().max(512 * MIB))
}

/// Bytes of the file `name` in `state` on the host, by the maps of filefrag on both levels; all of
/// the file is written in the image.
#[track_caller]
fn bytes_below(image: &Image, name: &str, state: ExtentState) -> u64 {
    let inner = {
        let mounted = image.mount();
        oracle::filefrag(&mounted.place.join(name))
    };
    assert!(inner.is_extant(), "{name} in the image");
    let outer = oracle::filefrag(&image.path).with_holes();
    let places = inner.extents.iter().map(|extent| {
        let place = extent.physical.expect("a written extent has a place");
        ByteRange::new(place, place + extent.logical.len())
    });
    places
        .flat_map(|place| outer.iter().filter_map(move |extent| extent.clip(place)))
        .filter(|extent| extent.state == state)
        .map(|extent| extent.logical.len())
        .sum()
}

#[test]
fn new_file_is_written_in_the_host_file_or_left_to_metadata() {
    for filesystem in HOSTS {
        require!(
            requires::root(),
            filesystem.requirement(),
            requires::tool("mke2fs"),
            requires::tool("filefrag")
        );
        for format in FORMATS {
            let host = host(filesystem);
            let image = Image::in_directory(host.path(), format, 128);
            let through = inside(&image, "create", &["/through", "20MiB", "--json"]).success();
            assert_eq!(through.number("/layers/0/written_bytes"), 20 * MIB);
            let words = ["/metadata", "20MiB", "--zeroes", "metadata", "--json"];
            let metadata = inside(&image, "create", &words).success();
            assert!(metadata.number("/layers/0/unwritten_bytes") > 19 * MIB);
            inside(&image, "fallocate", &["-w", "-l", "5MiB", "/zeroed"]).success();
            image.assert_clean();
            let at = format!("{format} on {filesystem}");
            for (name, state, bytes) in [
                ("through", ExtentState::Written, 20 * MIB),
                ("metadata", ExtentState::Unwritten, 20 * MIB),
                ("zeroed", ExtentState::Written, 5 * MIB),
            ] {
                let found = bytes_below(&image, name, state);
                // A block of the host may hold metadata of the image as well, which is written.
                let shared = match state {
                    ExtentState::Unwritten => 2 * 4096,
                    _ => 0,
                };
                assert!(
                    (bytes - shared..=bytes).contains(&found),
                    "{found} bytes of {name}, {at}"
                );
            }
        }
    }
}

#[test]
fn materialize_makes_a_file_written_in_name_only_written_below_and_keeps_its_data() {
    for filesystem in HOSTS {
        require!(
            requires::root(),
            filesystem.requirement(),
            requires::tool("mke2fs"),
            requires::tool("filefrag")
        );
        let host = host(filesystem);
        let image = Image::in_directory(host.path(), FORMATS[1], 128);
        let words = ["/file", "24MiB", "--zeroes", "metadata"];
        inside(&image, "create", &words).success();
        // Data at odd places of the file, by the kernel.
        let data = noise(5, 3_000_001);
        let offset = 7_000_003;
        {
            let mounted = image.mount();
            let file = fs::File::options()
                .write(true)
                .open(mounted.place.join("file"))
                .unwrap();
            file.write_all_at(&data, offset).unwrap();
            file.sync_all().unwrap();
        }
        let before = bytes_below(&image, "file", ExtentState::Unwritten);
        assert!(before > 20 * MIB, "{before}");
        let kept = inside(
            &image,
            "materialize",
            &["/file", "--zeroes", "metadata", "--json"],
        );
        assert_eq!(kept.success().number("/zeroed_below_bytes"), 0);
        assert_eq!(bytes_below(&image, "file", ExtentState::Unwritten), before);
        let part = ["/file", "--length", "1000001", "--rate", "64M", "--json"];
        let part = inside(&image, "materialize", &part).success();
        // But for a block of the host that holds metadata of the image as well.
        assert!(part.number("/zeroed_below_bytes") > 990_000, "{part}");
        let done = inside(&image, "materialize", &["/file", "--json"]).success();
        assert_eq!(done.number("/zeroed_bytes"), 0, "{done}");
        assert_eq!(done.number("/layers/0/written_bytes"), 24 * MIB, "{done}");
        let again = inside(&image, "materialize", &["/file", "--json"]).success();
        assert_eq!(again.number("/zeroed_below_bytes"), 0, "{again}");
        image.assert_clean();
        assert_eq!(bytes_below(&image, "file", ExtentState::Written), 24 * MIB);
        assert_contents(&image, &data, offset as usize);
    }
}

#[track_caller]
fn assert_contents(image: &Image, data: &[u8], offset: usize) {
    let copy = image.work.path().join("copy");
    image.fs(&["get", "IMAGE", "/file", "copy"]).success();
    let bytes = read(&copy);
    assert!(bytes[offset..][..data.len()] == *data, "data has changed");
    let rest = bytes[..offset].iter().chain(&bytes[offset + data.len()..]);
    assert!(rest.into_iter().all(|&byte| byte == 0), "not zeros");
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn full_host_is_an_error_that_leaves_no_file() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs")
    );
    let host = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let image = Image::in_directory(host.path(), FORMATS[0], 256);
    let refused = inside(&image, "create", &["/file", "200MiB", "--assign", "off"]);
    refused.refused(3, &["disk.img", "no space"]);
    assert_eq!(
        image.fs(&["ls", "IMAGE"]).success().stdout.trim(),
        "lost+found"
    );
    image.assert_clean();
}

/// Bytes of the file that lose their space in the host file.
const PUNCHED: u64 = 4 * MIB;

/// An image with a file that is a hole on the host where it begins, and has data further on.
fn with_a_hole_below(host: &Path, data: &[u8], offset: u64) -> Image {
    let image = Image::in_directory(host, FORMATS[0], 48);
    inside(&image, "create", &["/file", "20MiB"]).success();
    let begin = {
        let mounted = image.mount();
        let file = fs::File::options()
            .write(true)
            .open(mounted.place.join("file"))
            .unwrap();
        file.write_all_at(data, offset).unwrap();
        file.sync_all().unwrap();
        oracle::filefrag(&mounted.place.join("file")).extents
    };
    for extent in begin {
        if let Some(part) = extent.clip(ByteRange::new(0, PUNCHED)) {
            let (start, length) = (part.physical.unwrap(), part.logical.len());
            let range =
                ["-p", "-o", &start.to_string(), "-l", &length.to_string()].map(str::to_owned);
            run(tool("fallocate").args(range).arg(&image.path)).success();
        }
    }
    image
}

#[test]
fn full_or_read_only_host_is_named_and_materialize_does_the_rest_later() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    let host = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let (data, offset) = (noise(6, 1_000_001), 9_000_003);
    let image = with_a_hole_below(host.path(), &data, offset);
    assert_eq!(bytes_below(&image, "file", ExtentState::Hole), PUNCHED);
    let filler = host.path().join("filler");
    let file = fs::File::create(&filler).unwrap();
    let full = (0..).find_map(|at| file.write_all_at(&[1; 4096], at * 4096).err());
    assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    drop(file);
    let refused = inside(&image, "materialize", &["/file"]);
    refused.refused(3, &["disk.img", "no space"]);
    host.remount("ro");
    inside(&image, "materialize", &["/file"]).refused(4, &["disk.img", "read-only"]);
    host.remount("rw");
    fs::remove_file(&filler).unwrap();
    assert_contents(&image, &data, offset as usize);
    let done = inside(&image, "materialize", &["/file", "--json"]).success();
    assert!(done.number("/zeroed_below_bytes") > 0, "{done}");
    assert_eq!(done.number("/layers/0/written_bytes"), 20 * MIB, "{done}");
    image.assert_clean();
    assert_eq!(bytes_below(&image, "file", ExtentState::Written), 20 * MIB);
    assert_contents(&image, &data, offset as usize);
}

#[test]
fn host_that_fails_while_zeros_are_written_is_named_and_loses_nothing() {
    require!(Faulty::requirement(), requires::tool("mke2fs"));
    let fuse = Faulty::new(256 * MIB, Faults::default());
    let image = Image::in_directory(fuse.path(), FORMATS[0], 64);
    let data = image.work.path().join("data");
    fs::write(&data, noise(7, 300_001)).unwrap();
    image.fs(&["put", "IMAGE", "data", "/kept"]).success();
    for number in 0..6 {
        fuse.set_faults(Faults {
            write: WriteFault::FailsAfter(number * 3 * MIB, ErrorKind::Io),
            ..Faults::default()
        });
        let answer = inside(&image, "create", &["/file", "20MiB"]);
        answer.refused(1, &["disk.img", "put error"]);
        fuse.set_faults(Faults::default());
        // The journal is replayed by the next change.
        image
            .fs(&["mkdir", "IMAGE", &format!("/after-{number}")])
            .success();
        image.assert_clean();
        image.fs(&["get", "IMAGE", "/kept", "copy"]).success();
        assert!(read(&image.work.path().join("copy")) == read(&data));
        fs::remove_file(image.work.path().join("copy")).unwrap();
    }
    inside(&image, "create", &["/file", "20MiB"]).success();
    image.assert_clean();
}

#[test]
fn layers_of_a_copy_on_write_host_are_reported() {
    let filesystem = Filesystem::Btrfs;
    require!(
        requires::root(),
        filesystem.requirement(),
        requires::tool("mke2fs")
    );
    let host = host(filesystem);
    let image = Image::in_directory(host.path(), FORMATS[0], 128);
    let made = inside(&image, "create", &["/file", "20MiB", "--json"]).success();
    assert_eq!(made.number("/layers/0/written_bytes"), 20 * MIB, "{made}");
}
