//! Images of a Ceph cluster in place of files; the oracles are `rbd` and QEMU's own driver.

use std::path::Path;
use std::time::{Duration, Instant};

use extant_testkit::ceph::Ceph;
use extant_testkit::command::tool;
use extant_testkit::require;
use rustix::process::Signal;

use crate::stand::{Stand, assert_same, qemu_io, said};
use crate::support::{Answer, MIB, Running, extant, run, through};

fn extant_with(words: &[&str]) -> Answer {
    run(extant().args(words))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `qemu-img compare` of two raw disks.
#[track_caller]
fn compare(one: &str, other: &str) {
    said(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", one, other]));
}

#[test]
fn served_image_is_that_of_the_cluster_for_reading_and_writing() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    let data = stand.data("data", 7, 24);
    ceph.ask_rbd(&["import", text(&data), "served"]);
    ceph.ask_rbd(&["snap", "create", "served@before"]);
    let name = ceph.name("served");
    let serving = stand.serve(&[&name]);
    compare(&serving.uri("served"), text(&data));
    // A second writer is refused while the first serves.
    let again = extant_with(&["image", "convert", &name, text(&stand.path("no.raw"))]);
    again.refused(4, &["rbd:rbd/served", "is locked for changes by client."]);
    let commands = [
        "write -P 7 1M 3M",
        "write -z 8M 4M",
        "discard 12M 4M",
        "flush",
    ];
    qemu_io(&serving.uri("served"), &commands);
    serving.end();
    let exported = stand.path("exported");
    ceph.ask_rbd(&["export", "served", text(&exported)]);
    let mut model = std::fs::read(&data).unwrap();
    model[MIB as usize..4 * MIB as usize].fill(7);
    model[8 * MIB as usize..12 * MIB as usize].fill(0);
    let seen = std::fs::read(&exported).unwrap();
    // Discarded data is undefined.
    assert!(seen[..12 * MIB as usize] == model[..12 * MIB as usize]);
    assert!(seen[16 * MIB as usize..] == model[16 * MIB as usize..]);
    let before = name.replace("rbd/served", "rbd/served@before");
    let serving = stand.serve(&["--read-only", &before]);
    compare(&serving.uri("served@before"), text(&data));
    serving.end();
}

#[test]
fn killed_server_loses_nothing_that_was_flushed_and_is_started_again() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    ceph.ask_rbd(&["create", "killed", "--size", "16M"]);
    let name = ceph.name("killed");
    let serving = stand.serve(&[&name]);
    qemu_io(&serving.uri("killed"), &["write -P 9 1M 2M", "flush"]);
    serving.running.stop(Signal::KILL);
    let _ = std::fs::remove_file(stand.path("s.pid"));
    let _ = std::fs::remove_file(stand.path("s"));
    // The cluster counts the dead client for half a minute.
    let held = run(&mut stand.command(&["--socket", "s", &name]));
    held.refused(4, &["the image is open in client.", "counts for 30 s"]);
    ceph.wait_for("the end of the watch", |ceph| {
        !ceph.ask_rbd(&["status", "killed"]).contains("watcher=")
    });
    let serving = stand.serve(&[&name]);
    let seen = qemu_io(&serving.uri("killed"), &["read -P 9 1M 2M"]);
    assert!(!seen.contains("verification failed"), "{seen}");
    serving.end();
}

#[test]
fn converted_image_is_the_same_in_both_directions_and_thick_if_wanted() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    let data = stand.data("half", 3, 20);
    let file = std::fs::File::options().write(true).open(&data).unwrap();
    file.set_len(40 * MIB).unwrap();
    let objects = |image: &str| {
        let used = ceph.ask_rbd(&["du", "--format", "json", image]);
        let used = used.split("\"used_size\":").nth(1).unwrap().to_owned();
        used.split([',', '}'])
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    for (image, mode, bytes) in [("thin", "off", 20 * MIB), ("full", "full", 40 * MIB)] {
        let name = ceph.name(image);
        let words = [
            "image",
            "convert",
            "--preallocation",
            mode,
            text(&data),
            &name,
        ];
        let report = extant_with(&[&words[..], &["--json"]].concat()).success();
        assert_eq!(report.number("/capacity_bytes"), 40 * MIB, "{report}");
        compare(text(&data), &name);
        assert_eq!(objects(image), bytes, "{image}");
        extant_with(&words).refused(4, &["rbd:rbd/", "has an image of this name"]);
        let back = stand.path(image);
        extant_with(&["image", "convert", &name, text(&back)]).success();
        assert_same(&back, &data);
        let map = extant_with(&["map", "--json", &name]).success();
        assert_eq!(map.number("/files/0/summary/extant_bytes"), bytes, "{map}");
        let info = extant_with(&["image", "info", "--json", &name]).success();
        assert_eq!(info.number("/capacity_bytes"), 40 * MIB);
    }
    let reserved = ["image", "convert", "--preallocation", "falloc", text(&data)];
    let name = ceph.name("reserved");
    extant_with(&[&reserved[..], &[&name]].concat()).refused(5, &["RBD reserves no space"]);
    let names = ceph.ask_rbd(&["ls"]);
    for name in ["reserved", ".thin.", ".full."] {
        assert!(!names.contains(name), "{names}");
    }
}

#[test]
fn materialized_image_has_all_its_objects_and_keeps_its_data() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    let data = stand.data("data", 11, 8);
    ceph.ask_rbd(&["import", text(&data), "thickened"]);
    ceph.ask_rbd(&["resize", "--size", "32M", "thickened"]);
    let name = ceph.name("thickened");
    let words = ["image", "materialize", "--json", &name];
    let report = extant_with(&words).success();
    assert_eq!(report.number("/already_written_bytes"), 8 * MIB, "{report}");
    assert_eq!(report.number("/zeroed_bytes"), 24 * MIB, "{report}");
    let file = std::fs::File::options().write(true).open(&data).unwrap();
    file.set_len(32 * MIB).unwrap();
    compare(text(&data), &name);
    let map = extant_with(&["map", "--json", &name]).success();
    assert_eq!(map.number("/files/0/summary/extant_bytes"), 32 * MIB);
    let again = extant_with(&words).success();
    assert_eq!(again.number("/zeroed_bytes"), 0, "{again}");
}

#[test]
fn interrupted_upload_leaves_no_name_and_the_next_one_replaces_its_rest() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    let data = stand.data("data", 5, 64);
    let name = ceph.name("upload");
    let upload = |more: &[&str]| {
        let mut command = extant();
        command
            .args(["image", "convert", text(&data), &name])
            .args(more);
        command
    };
    let is_listed = |image: &str| ceph.ask_rbd(&["ls"]).lines().any(|line| line == image);
    let hidden = ".upload.extant-partial";
    let slow = Running::start(&mut upload(&["--rate", "16M"]));
    ceph.wait_for("the hidden image", |_| is_listed(hidden));
    std::thread::sleep(Duration::from_millis(500));
    let started = Instant::now();
    let (answer, _) = slow.stop(Signal::TERM);
    assert!(answer.code.is_some_and(|code| code != 0), "{answer}");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert!(!is_listed("upload") && !is_listed(hidden));
    let slow = Running::start(&mut upload(&["--rate", "16M"]));
    ceph.wait_for("the hidden image", |_| is_listed(hidden));
    std::thread::sleep(Duration::from_millis(500));
    slow.stop(Signal::KILL);
    assert!(!is_listed("upload") && is_listed(hidden));
    ceph.wait_for("the end of the watch", |ceph| {
        !ceph.ask_rbd(&["status", hidden]).contains("watcher=")
    });
    run(&mut upload(&[])).success();
    compare(text(&data), &name);
    assert!(!is_listed(hidden));
}

#[test]
fn what_cannot_be_opened_is_named_and_a_missing_library_with_its_package() {
    require!(Ceph::requirement());
    let (ceph, stand) = (Ceph::shared(), Stand::new());
    let conf = ceph.conf();
    let conf = format!("conf={}", text(&conf));
    for (name, words) in [
        ("rbd:nowhere/a", "the cluster has no pool nowhere"),
        ("rbd:rbd/missing", "the pool rbd has no image missing"),
    ] {
        let name = format!("{name}:{conf}");
        for command in [
            &["map"][..],
            &["image", "info"],
            &["serve", "--socket", "s"],
        ] {
            let mut extant = extant();
            extant
                .args(command)
                .arg(&name)
                .current_dir(stand.work.path());
            run(&mut extant).refused(4, &[words]);
        }
    }
    let started = Instant::now();
    let alone = r"rbd:rbd/a:conf=/dev/null:mon_host=192.0.2.1:client_mount_timeout=2:key=AQBBBBBBBBBBBBAAvB2Y1hB1c7Ynb9YvZ9J3cQ==";
    extant_with(&["image", "info", alone]).refused(1, &["no monitor has answered within 2 s"]);
    assert!(started.elapsed() < Duration::from_secs(10));
    let hide = r#"for library in /usr/lib/*/librados.so.2; do
        mount --bind /dev/null "$(readlink -f "$library")" || exit 99
    done; exec "$@""#;
    let mut without = extant();
    without.args(["image", "info", "rbd:rbd/a"]);
    let without = &mut through(&["unshare", "-m", "sh", "-c", hide, "sh"], &without);
    run(without).refused(5, &["librados.so.2 cannot be loaded", "librbd1"]);
    extant_with(&["create", "rbd:rbd/a", "1MiB"]).refused(5, &["not a file of this host"]);
}
