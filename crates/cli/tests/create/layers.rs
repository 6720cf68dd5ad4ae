//! The layers below a file as `map`, `image map` and `vol info` show them, in text, JSON and
//! pictures. Places are those of filefrag and qemu-img.

use std::fs;
use std::path::Path;

use extant_testkit::command::{must, text, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{oracle, require, requires};
use serde_json::Value;

use crate::support::{Answer, KIB, MIB, create, extant, run};
use crate::through::Stack;

macro_rules! needs {
    ($($tool:expr),*) => {
        require!(
            requires::root(),
            Filesystem::Ext4.requirement(),
            requires::tool("filefrag"),
            $(requires::tool($tool),)*
            requires::disk_below_temporary_files()
        );
    };
}

fn command(words: &[&str], path: &Path, more: &[&str]) -> Answer {
    run(extant().args(words).arg(path).args(more)).success()
}

/// The number of bars, and all words, of a picture.
fn bars_and_words(svg: &Path) -> (usize, String) {
    let document = fs::read_to_string(svg).unwrap();
    (document.matches(r#"class="bar""#).count(), document)
}

#[test]
fn map_shows_the_devices_between_the_layers_in_text_json_and_pictures() {
    needs!();
    let stack = Stack::new();
    let path = stack.path("file");
    create(&path, "8MiB", &["--through"]).success();
    let device = stack.device().display().to_string();
    let [svg, png] = ["map.svg", "map.png"].map(|name| stack.path(name));
    let pictures = [
        "--svg",
        svg.to_str().unwrap(),
        "--png",
        png.to_str().unwrap(),
    ];
    let map = command(&["map", "--through"], &path, &pictures);
    assert!(
        map.stdout.contains(&format!("  on {device} (loop)\n")),
        "{map}"
    );
    let (bars, words) = bars_and_words(&svg);
    assert_eq!(bars, 3);
    assert!(words.contains(&format!(
        "&gt; backing on {}",
        stack.device_below().display()
    )));
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));

    let map = command(&["map", "--through", "--json"], &path, &[]);
    let below = stack.below().to_str().unwrap();
    assert_eq!(map.text("/files/0/devices/0/name"), device);
    assert_eq!(map.text("/files/0/devices/0/kind"), "loop");
    assert_eq!(map.text("/files/0/devices/0/members/0"), below);
    assert_eq!(map.text("/files/1/devices/0/layer"), below);
    let lowest = &map.json()["files"][2]["devices"];
    let lowest = lowest.as_array().unwrap();
    let end = &lowest[lowest.len() - 1];
    assert_eq!(end["members"], Value::Array(Vec::new()), "{map}");
    let plain = command(&["map", "--json"], &path, &[]);
    assert_eq!(plain.json()["files"][0].get("devices"), None);
}

#[test]
fn map_of_a_file_in_an_image_shows_the_devices_below_the_image() {
    needs!("mke2fs");
    let stack = Stack::new();
    let image = stack.path("disk.img");
    fs::File::create(&image).unwrap().set_len(32 * MIB).unwrap();
    must(tool("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image));
    let words = ["create", "--in", image.to_str().unwrap(), "/db", "4MiB"];
    run(extant().args(words)).success();
    let svg = stack.path("map.svg");
    let words = ["map", "--through", "--json", "--svg", svg.to_str().unwrap()];
    let map = command(&[&words[..], &["--in"]].concat(), &image, &["/db"]);
    let names = [
        "/db",
        image.to_str().unwrap(),
        stack.below().to_str().unwrap(),
    ];
    for (at, name) in names.into_iter().enumerate() {
        assert_eq!(map.text(&format!("/files/{at}/path")), name, "{map}");
        let written = map.number(&format!("/files/{at}/summary/written_bytes"));
        assert_eq!(written, 4 * MIB, "{map}");
    }
    assert_eq!(map.json()["files"][0].get("devices"), None, "{map}");
    let device = stack.device().display().to_string();
    assert_eq!(map.text("/files/1/devices/0/name"), device);
    let (bars, words) = bars_and_words(&svg);
    assert_eq!(bars, 4);
    assert!(words.contains(&format!("&gt; disk.img on {device} (loop)")));
}

#[test]
fn image_map_shows_a_hole_below_at_its_offset_of_the_disk() {
    needs!("qemu-img", "fallocate");
    let stack = Stack::new();
    let path = stack.path("vm.qcow2");
    create(&path, "32MiB", &["--allocation", "8MiB", "--through"]).success();
    let map = |more: &[&str]| command(&["image", "map", "--through"], &path, more);
    let bytes = |map: &Answer, depth: u64, state: &str| {
        map.number(&format!("/files/{depth}/summary/{state}_bytes"))
    };
    let before = map(&["--json"]);
    for depth in 0..=2 {
        assert_eq!(before.number(&format!("/files/{depth}/depth")), depth);
        assert_eq!(bytes(&before, depth, "written"), 8 * MIB, "{before}");
    }
    assert_eq!(before.text("/files/0/format"), "qcow2");
    assert_eq!(before.text("/files/1/path"), path.to_str().unwrap());

    // The third cluster of the disk, in the image by qemu-img, and below by filefrag.
    let guest = 128 * KIB;
    let mut qemu_img = tool("qemu-img");
    let entries = text(qemu_img.args(["map", "--output=json"]).arg(&path)).unwrap();
    let entries: Value = serde_json::from_str(&entries).unwrap();
    let number = |entry: &Value, name: &str| entry[name].as_u64().unwrap();
    let entry = entries.as_array().unwrap().iter().find(|entry| {
        let start = number(entry, "start");
        (start..start + number(entry, "length")).contains(&guest)
    });
    let entry = entry.unwrap();
    let in_image = number(entry, "offset") + guest - number(entry, "start");
    let on_device = oracle::filefrag(&path)
        .extents
        .into_iter()
        .find_map(|found| {
            let inside = in_image.checked_sub(found.logical.start())?;
            (inside < found.logical.len()).then(|| found.physical.unwrap() + inside)
        });
    let mut fallocate = tool("fallocate");
    fallocate.args(["--punch-hole", "--length", "65536", "--offset"]);
    must(
        fallocate
            .arg(on_device.unwrap().to_string())
            .arg(stack.below()),
    );
    let after = map(&["--json"]);
    assert_eq!(bytes(&after, 1, "written"), 8 * MIB);
    assert_eq!(bytes(&after, 2, "written"), 8 * MIB - 64 * KIB, "{after}");
    let extents = after.json()["files"][2]["extents"].clone();
    let hole = extents.as_array().unwrap().iter();
    let mut hole = hole.filter(|extent| extent["state"] == "hole");
    let hole = &hole.next().unwrap()["logical"];
    assert_eq!(
        (number(hole, "start"), number(hole, "end")),
        (guest, guest + 64 * KIB)
    );

    let svg = stack.path("map.svg");
    let text = map(&["--svg", svg.to_str().unwrap()]);
    assert!(text.stdout.contains("\n> vm.qcow2: 32 MiB"), "{text}");
    assert_eq!(bars_and_words(&svg).0, 4);
    let refused = run(extant()
        .args(["image", "map", "--svg"])
        .arg(&svg)
        .arg(&path));
    refused.refused(2, &["--through"]);
}

#[test]
fn vol_info_shows_the_layers_below_volumes_on_the_host_and_in_an_image() {
    needs!("mke2fs");
    let stack = Stack::new();
    let pool = stack.path("pool");
    fs::create_dir(&pool).unwrap();
    let svg = stack.path("volume.svg");
    let info = |pool: &Path, volume: &str, more: &[&str]| {
        let words = [&[volume, "--through"], more].concat();
        command(&["vol", "info"], pool, &words)
    };
    command(&["vol", "create"], &pool, &["web.raw", "4MiB"]);
    command(&["vol", "create"], &pool, &["vm.qcow2", "4MiB"]);
    let below = stack.below().to_str().unwrap();
    let raw = info(&pool, "web.raw", &["--json"]);
    assert_eq!(raw.text("/name"), "web.raw");
    assert_eq!(raw.text("/layers/0/layer"), below, "{raw}");
    let device = stack.device().display().to_string();
    assert_eq!(raw.text("/devices/0/name"), device);
    let picture = ["--svg", svg.to_str().unwrap(), "--json"];
    let qcow2 = info(&pool, "vm.qcow2", &picture);
    assert!(qcow2.text("/layers/0/layer").ends_with("/pool/vm.qcow2"));
    assert_eq!(qcow2.number("/layers/0/written_bytes"), 4 * MIB, "{qcow2}");
    assert_eq!(qcow2.text("/layers/1/layer"), below);
    assert_eq!(bars_and_words(&svg).0, 4);
    let words = info(&pool, "vm.qcow2", &[]);
    assert!(
        words.stdout.contains(&format!("device    {device} (loop)")),
        "{words}"
    );

    let image = stack.path("pool.img");
    fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    must(tool("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image));
    command(&["vol", "create"], &image, &["web.raw", "4MiB"]);
    let inside = info(&image, "web.raw", &["--json"]);
    assert_eq!(inside.text("/layers/0/layer"), image.to_str().unwrap());
    assert_eq!(
        inside.number("/layers/0/written_bytes"),
        4 * MIB,
        "{inside}"
    );
    assert_eq!(inside.text("/layers/1/layer"), below);
    assert_eq!(inside.text("/devices/0/layer"), image.to_str().unwrap());
}

#[test]
fn probe_shows_the_abilities_of_each_layer() {
    needs!();
    let stack = Stack::new();
    let directory = stack.path("");
    let probe = command(&["probe", "--through", "--json"], &directory, &[]);
    let layers = probe.json()["layers"].clone();
    let layers = layers.as_array().unwrap();
    assert_eq!(layers.len(), 3, "{probe}");
    assert_eq!(layers[1]["layer"], stack.below().to_str().unwrap());
    for (depth, layer) in layers.iter().enumerate() {
        assert_eq!(layer["depth"], depth, "{probe}");
        assert_eq!(layer["allocate"]["is_supported"], true, "{probe}");
        assert_eq!(layer["can_assign"], true, "{probe}");
        assert_eq!(layer["map_source"], "fiemap", "{probe}");
    }
    assert_eq!(
        probe.text("/devices/0/name"),
        stack.device().display().to_string()
    );
    assert_eq!(
        probe.json()["devices"][0]["fast_zeroing"]["is_supported"],
        false
    );
    let words = command(&["probe", "--through"], &directory, &[]);
    let row = format!("device    {} (loop)", stack.device().display());
    assert!(words.stdout.contains(&row), "{words}");
    assert!(words.stdout.contains("zeroing   not fast: "), "{words}");
    let plain = command(&["probe", "--json"], &directory, &[]);
    assert_eq!(plain.json().get("layers"), None);

    let btrfs = Filesystem::Btrfs;
    require!(btrfs.requirement());
    let scratch = Scratch::new(btrfs, btrfs.size_bytes_min());
    let probe = command(&["probe", "--through", "--json"], scratch.path(), &[]);
    assert_eq!(probe.json()["layers"][0]["can_assign"], false, "{probe}");
    assert!(probe.text("/devices/0/reason").contains("no places"));
}

#[test]
fn end_of_the_known_layers_is_shown_with_its_reason() {
    require!(requires::root());
    let btrfs = Filesystem::Btrfs;
    require!(btrfs.requirement());
    let scratch = Scratch::new(btrfs, btrfs.size_bytes_min());
    let path = scratch.path().join("file");
    fs::write(&path, "data").unwrap();
    let map = command(&["map", "--through", "--json"], &path, &[]);
    assert_eq!(map.text("/files/0/devices/0/name"), "btrfs", "{map}");
    assert_eq!(map.text("/files/0/devices/0/kind"), "unknown");
    assert!(map.text("/files/0/devices/0/reason").contains("no places"));
}
