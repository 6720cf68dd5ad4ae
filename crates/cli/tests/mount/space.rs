//! `create`, `fallocate`, `materialize`, `map` and `probe` on paths inside a mount: as on the
//! kernel's ext4.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};
use serde_json::Value;

use crate::image::{FORMATS, Image, must};
use crate::stand::{Stand, can_mount};
use crate::support::{Answer, KIB, MIB, create, extant, noise, run};

const CACHES: [&str; 2] = ["writeback", "no_writeback"];

#[track_caller]
fn fallocate(stand: &Stand, words: &[&str], name: &str) -> Answer {
    stand.extant(&[&["fallocate"], words].concat(), name)
}

#[track_caller]
fn extents(answer: Answer) -> Vec<(u64, u64, String)> {
    let json = answer.success().json();
    let bound = |extent: &Value, name: &str| extent["logical"][name].as_u64().unwrap();
    let extents = json["files"][0]["extents"].as_array().unwrap();
    let tell = |extent: &Value| {
        (
            bound(extent, "start"),
            bound(extent, "end") - bound(extent, "start"),
            extent["state"].as_str().unwrap().to_owned(),
        )
    };
    extents.iter().map(tell).collect()
}

#[test]
fn collapse_and_insert_move_data_that_was_just_written() {
    require!(can_mount());
    for cache in CACHES {
        let stand = Stand::mounted(64, &["-o", cache]);
        let path = stand.path("file");
        let mut model = noise(1, 100 * KIB as usize);
        fs::write(&path, &model).unwrap();
        let open = File::options().read(true).write(true).open(&path).unwrap();
        for round in 0..10u64 {
            let piece = noise(100 + round, 5_000);
            let at = (round * 7_919 % 80_000) as usize;
            open.write_all_at(&piece, at as u64).unwrap();
            model[at..at + 5_000].copy_from_slice(&piece);
            let from = (round % 5 * 8 * KIB) as usize;
            let offset = from.to_string();
            match round % 2 {
                0 => {
                    let words = ["-c", "-o", &offset, "-l", "4KiB"];
                    fallocate(&stand, &words, "file").success();
                    model.drain(from..from + 4096);
                }
                _ => {
                    let words = ["-i", "-o", &offset, "-l", "8KiB"];
                    fallocate(&stand, &words, "file").success();
                    model.splice(from..from, vec![0; 8192]);
                }
            }
            assert_eq!(open.metadata().unwrap().len(), model.len() as u64);
            assert!(fs::read(&path).unwrap() == model, "{cache}, round {round}");
        }
        drop(open);
        stand.umount().success();
        stand.image.fs(&["get", "IMAGE", "/file", "copy"]).success();
        let copy = fs::read(stand.image.work.path().join("copy")).unwrap();
        assert!(copy == model, "{cache}: in the image");
        stand.assert_closed();
    }
}

#[test]
fn write_zeroes_is_done_by_the_mount_itself() {
    require!(can_mount());
    for cache in CACHES {
        let stand = Stand::mounted(64, &["-o", cache]);
        let path = stand.path("file");
        fs::write(&path, noise(2, MIB as usize)).unwrap();
        // Without it the fallback of the command would be seen.
        let words = ["-w", "--no-fallback", "-o", "1000", "-l", "8MiB"];
        fallocate(&stand, &words, "file").success();
        let mut wanted = noise(2, 1000);
        wanted.resize(1000 + 8 * MIB as usize, 0);
        assert!(fs::read(&path).unwrap() == wanted, "{cache}");
        let map = stand.extant(&["map", "--json"], "file").success();
        // Blocks at the edges are written as a whole.
        assert_eq!(
            map.number("/total/extant_bytes"),
            8 * MIB + 4 * KIB,
            "{map}"
        );
        stand.end();
    }
}

#[test]
fn every_mode_is_accepted_and_visible_in_the_map() {
    require!(can_mount());
    let stand = Stand::mounted(64, &[]);
    fallocate(&stand, &["-l", "64KiB"], "file").success();
    fallocate(&stand, &["-n", "-o", "64KiB", "-l", "64KiB"], "file").success();
    fs::write(stand.path("data"), noise(3, 64 * KIB as usize)).unwrap();
    fallocate(&stand, &["-p", "-o", "16KiB", "-l", "16KiB"], "data").success();
    fallocate(&stand, &["-z", "-o", "40KiB", "-l", "8KiB"], "data").success();
    let inside = |name: &str| extents(stand.extant(&["map", "--json"], name));
    let (file, data) = (inside("file"), inside("data"));
    let states = |extents: &[(u64, u64, String)]| -> Vec<(u64, u64, String)> {
        let mut joined: Vec<(u64, u64, String)> = Vec::new();
        for (offset, length, state) in extents.iter().cloned() {
            match joined.last_mut() {
                Some(last) if last.2 == state => last.1 += length,
                _ => joined.push((offset, length, state)),
            }
        }
        joined
    };
    let line = |offset, length, state: &str| (offset * KIB, length * KIB, state.to_owned());
    // Also blocks reserved behind the end.
    assert_eq!(states(&file), [line(0, 128, "unwritten")]);
    let data_wanted = [
        line(0, 16, "written"),
        line(16, 16, "hole"),
        line(32, 8, "written"),
        line(40, 8, "unwritten"),
        line(48, 16, "written"),
    ];
    assert_eq!(states(&data), data_wanted);
    let modes = run(extant().args(["probe", "--json"]).arg(&stand.directory)).success();
    for mode in modes.json()["modes"].as_array().unwrap() {
        assert_eq!(mode["is_supported"], true, "{mode}");
    }
    assert_eq!(modes.text("/map_source"), "extant-mount");
    stand.umount().success();
    let image = |name: &str| {
        let words = ["--json", "--in", "IMAGE", name];
        extents(run(&mut stand.image.command("map", &words)))
    };
    assert_eq!((image("/file"), image("/data")), (file, data));
    stand.assert_closed();
}

#[test]
fn map_of_more_extents_than_a_page_is_whole() {
    require!(can_mount());
    let stand = Stand::mounted(64, &[]);
    let file = File::create(stand.path("file")).unwrap();
    for index in 0..1000 {
        file.write_all_at(&[1; 4096], index * 8192).unwrap();
    }
    let found = extents(stand.extant(&["map", "--json"], "file"));
    let written = found.iter().filter(|(_, _, state)| state == "written");
    assert_eq!(written.count(), 1000);
    assert_eq!(
        found.iter().map(|(_, length, _)| length).sum::<u64>(),
        1000 * 8192 - 4096
    );
    drop(file);
    stand.end();
}

#[test]
fn created_file_is_extant_and_held_against_the_map() {
    require!(can_mount());
    let stand = Stand::mounted(128, &[]);
    let create =
        |name: &str, words: &[&str]| run(extant().arg("create").arg(stand.path(name)).args(words));
    let full = create("full", &["40MiB", "--json"]).success();
    assert_eq!(full.number("/map/extant_bytes"), 40 * MIB, "{full}");
    assert_eq!(full.text("/verified"), "extent-map");
    assert_eq!(full.text("/plan/strategy"), "write-zeroes");
    let words = ["20MiB", "--preallocation", "falloc", "--json"];
    let falloc = create("falloc", &words).success();
    assert_eq!(falloc.number("/map/unwritten_bytes"), 20 * MIB, "{falloc}");
    create("large", &["1GiB"]).refused(3, &["no space", "missing"]);
    assert!(!stand.path("large").exists());
    stand.end();
}

#[test]
fn materialize_keeps_data_and_fills_the_rest() {
    require!(can_mount());
    for cache in CACHES {
        let stand = Stand::mounted(64, &["-o", cache]);
        let path = stand.path("thin");
        let file = File::create(&path).unwrap();
        file.set_len(20 * MIB).unwrap();
        let mut model = vec![0; 20 * MIB as usize];
        for index in 0..20u64 {
            let at = index * 999_983;
            let piece = noise(index, 3_000);
            file.write_all_at(&piece, at).unwrap();
            model[at as usize..][..3_000].copy_from_slice(&piece);
        }
        let words = ["materialize", "--json"];
        stand
            .extant(&words[..1], "thin")
            .refused(4, &["thin", "open elsewhere"]);
        // Still on its way to the server, if the kernel delays it.
        drop(file);
        let done = stand.extant(&words, "thin").success();
        assert_eq!(done.text("/verified"), "extent-map", "{done}");
        let map = stand.extant(&["map", "--json"], "thin").success();
        assert_eq!(map.number("/total/extant_bytes"), 20 * MIB, "{map}");
        assert!(fs::read(&path).unwrap() == model, "{cache}");
        stand.end();
    }
}

#[test]
fn limit_of_the_process_and_right_to_write_are_respected() {
    require!(can_mount(), requires::tool("prlimit"));
    let stand = Stand::mounted(64, &[]);
    fs::write(stand.path("file"), noise(1, 64 * KIB as usize)).unwrap();
    let mut inner = extant();
    inner.args(["fallocate", "-i", "-o", "0", "-l", "64KiB"]);
    inner.arg(stand.path("file"));
    let limited = crate::support::through(&["prlimit", "--fsize=100000", "--"], &inner);
    let mut limited = limited;
    let answer = run(&mut limited);
    assert_eq!(answer.code, Some(1), "{answer}");
    assert!(answer.stderr.contains("too large"), "{answer}");
    assert_eq!(fs::metadata(stand.path("file")).unwrap().len(), 64 * KIB);
    let mut chattr = extant_testkit::command::tool("chattr");
    must(chattr.arg("+i").arg(stand.path("file")));
    let answer = fallocate(&stand, &["-c", "-o", "0", "-l", "4KiB"], "file");
    assert_eq!(answer.code, Some(1), "{answer}");
    let mut chattr = extant_testkit::command::tool("chattr");
    must(chattr.arg("-i").arg(stand.path("file")));
    stand.end();
}

#[test]
fn background_on_a_mount_watches_the_disk_below_its_image() {
    require!(can_mount());
    let host = Scratch::builder(Filesystem::Ext4, 128 * MIB)
        .memory(256 * MIB)
        .build();
    let disk = host.device().unwrap().file_name().unwrap();
    for cache in CACHES {
        let directory = host.path().join(cache);
        fs::create_dir(&directory).unwrap();
        let stand = Stand::of(Image::in_directory(&directory, FORMATS[0], 32));
        stand.mount(&["-o", cache]).success();
        let background = ["--background=50%", "--json"];
        let path = stand.directory.join("full");
        let made = create(&path, "4MiB", &background).success();
        assert_eq!(*made.text("/background_disk"), *disk, "{cache}");
        File::create(stand.directory.join("thin"))
            .unwrap()
            .set_len(MIB)
            .unwrap();
        let words = [&["materialize"][..], &background].concat();
        let made = stand.extant(&words, "thin").success();
        assert_eq!(*made.text("/background_disk"), *disk, "{cache}");
        stand.end();
    }
}

#[test]
fn background_on_a_mount_whose_image_is_not_found_is_refused_with_the_reason() {
    require!(can_mount());
    let stand = Stand::mounted(16, &["-o", "fsname=elsewhere"]);
    let path = stand.directory.join("full");
    create(&path, "1MiB", &["--background"]).refused(5, &["background pace", "elsewhere", "full"]);
    assert!(!path.exists());
    create(&path, "1MiB", &[]).success();
    stand.end();
}
