//! Destination and name of the file: paths, names, permissions.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::support::{MIB, as_nobody, create, create_command, extant, names, run, through};

fn mode_of(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o7777
}

#[test]
fn mode_is_exact_whatever_the_umask() {
    require!(requires::tool("sh"));
    let work = Workdir::new();
    for (mode, umask) in [
        ("0600", "000"),
        ("0666", "077"),
        ("4711", "022"),
        ("0", "0"),
    ] {
        let file = work.path().join(format!("f{mode}-{umask}"));
        let inner = create_command(&file, "64k", &["--mode", mode]);
        let script = format!("umask {umask}; exec \"$@\"");
        run(&mut through(&["sh", "-c", &script, "sh"], &inner)).success();
        assert_eq!(mode_of(&file), u32::from_str_radix(mode, 8).unwrap());
    }
}

#[test]
fn mode_without_option_follows_the_umask() {
    require!(requires::tool("sh"));
    let work = Workdir::new();
    for (umask, left) in [("000", 0o666), ("027", 0o640), ("077", 0o600), ("0777", 0)] {
        let file = work.path().join(umask);
        let script = format!("umask {umask}; exec \"$@\"");
        let inner = create_command(&file, "64k", &[]);
        run(&mut through(&["sh", "-c", &script, "sh"], &inner)).success();
        assert_eq!(mode_of(&file), left, "umask {umask}");
    }
}

#[test]
fn partial_file_is_private_whatever_the_mode() {
    use crate::support::{Running, partial_of, wait_until};
    let work = Workdir::new();
    let file = work.path().join("a");
    let mut command = create_command(&file, "64MiB", &["--mode", "0666", "--rate", "8M"]);
    let running = Running::start(&mut command);
    wait_until("the partial file", || partial_of(&file).exists());
    assert_eq!(mode_of(&partial_of(&file)), 0o600);
    drop(running);
}

#[test]
fn relative_paths_are_relative_to_the_working_directory() {
    let work = Workdir::new();
    let inner = work.directory("inner");
    for path in ["plain", "./dotted", "../above", "down/../plain2"] {
        fs::create_dir_all(inner.join("down")).unwrap();
        run(create_command(Path::new(path), "64k", &[]).current_dir(&inner)).success();
        assert_eq!(fs::metadata(inner.join(path)).unwrap().len(), 64 << 10);
    }
    assert_eq!(
        names(&inner),
        ["dotted", "down", "plain", "plain2"].map(OsStr::new)
    );
}

#[test]
fn directory_that_is_a_link_is_followed() {
    let work = Workdir::new();
    let dir = work.directory("real");
    std::os::unix::fs::symlink(&dir, work.path().join("link")).unwrap();
    create(&work.path().join("link/a"), "64k", &[]).success();
    assert_eq!(names(&dir), ["a"].map(OsStr::new));
}

#[test]
fn name_of_255_bytes_is_made_and_one_of_256_is_refused() {
    let work = Workdir::new();
    let dir = work.directory("long");
    let longest = "n".repeat(255);
    create(&dir.join(&longest), "1MiB", &[]).success();
    // Distinct from its neighbour although the partial name cannot hold either in full.
    let other = format!("{}m", "n".repeat(254));
    create(&dir.join(&other), "1MiB", &[]).success();
    let too_long = create(&dir.join("n".repeat(256)), "1MiB", &[]);
    too_long.refused(2, &["name is too long"]);
    assert_eq!(names(&dir), [OsStr::new(&other), OsStr::new(&longest)]);
}

#[test]
fn name_that_is_not_utf8_is_made_exactly() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 32 * MIB);
    let name = OsStr::from_bytes(b"caf\xe9 \xff");
    let answer = create(&scratch.path().join(name), "64k", &[]).success();
    assert!(answer.stdout.contains("caf"), "{answer}");
    assert_eq!(names(scratch.path()), [name]);
}

#[test]
fn name_that_is_not_utf8_gives_json_in_success_and_failure() {
    let work = Workdir::new();
    let dir = work.directory("names");
    let file = dir.join(OsStr::from_bytes(b"caf\xe9"));
    let answer = create(&file, "64k", &["--json"]).success();
    assert!(answer.text("/path").ends_with("/caf\u{fffd}"), "{answer}");
    assert_eq!(answer.number("/capacity_bytes"), 64 << 10);

    let again = create(&file, "64k", &["--progress", "json"]);
    assert_eq!(again.code, Some(4), "{again}");
    let line: serde_json::Value = serde_json::from_str(&again.stderr).expect(&again.stderr);
    assert_eq!(line["kind"], "already-exists");
    assert!(line["path"].as_str().unwrap().ends_with("/caf\u{fffd}"));
}

#[test]
fn probe_and_map_of_a_place_that_is_not_utf8_give_json() {
    let work = Workdir::new();
    let dir = work.path().join(OsStr::from_bytes(b"d\xe9"));
    fs::create_dir(&dir).unwrap();
    create(&dir.join("a"), "64k", &[]).success();
    let probe = run(extant().args(["probe", "--json"]).arg(&dir)).success();
    assert!(probe.text("/directory").ends_with("/d\u{fffd}"), "{probe}");
    let map = run(extant().args(["map", "--json"]).arg(dir.join("a"))).success();
    assert!(map.text("/files/0/path").ends_with("/d\u{fffd}/a"), "{map}");
}

#[test]
fn name_with_a_newline_stays_on_one_line() {
    let work = Workdir::new();
    let dir = work.directory("names");
    let file = dir.join("a\nb");
    let answer = create(&file, "64k", &[]).success();
    let first = answer.stdout.lines().next().unwrap();
    assert!(first.contains("a\\nb"), "{answer}");
    create(&file, "64k", &[]).refused(4, &["a\\nb"]);
}

#[test]
fn probe_of_a_place_that_is_not_there_is_an_error() {
    let work = Workdir::new();
    let probe = |name: &str| run(extant().args(["probe", name]).current_dir(work.path()));
    probe("none").refused(4, &["none", "no such file"]);
    probe("none/deeper").refused(4, &["none/deeper", "no such file"]);
    fs::write(work.path().join("file"), "").unwrap();
    for place in ["file", "."] {
        let answer = probe(place).success();
        assert!(answer.stdout.contains("create"), "{answer}");
    }
}

#[test]
fn name_with_a_leading_dash_is_created_after_two_dashes() {
    let work = Workdir::new();
    let dir = work.directory("names");
    let mut command = extant();
    command.args(["create", "--", "--json", "64k"]);
    run(command.current_dir(&dir)).success();
    assert_eq!(names(&dir), ["--json"].map(OsStr::new));
}

#[test]
fn sizes_of_people_are_understood() {
    let work = Workdir::new();
    for (size, bytes) in [
        ("1k", 1024),
        ("1KB", 1000),
        ("0.5MiB", 1 << 19),
        ("0x10", 16),
    ] {
        let file = work.path().join(size);
        create(&file, size, &[]).success();
        assert_eq!(fs::metadata(&file).unwrap().len(), bytes, "{size}");
    }
}

#[test]
fn user_creates_in_a_directory_of_his_own() {
    require!(requires::root(), requires::tool("setpriv"));
    require!(Filesystem::Ext4.requirement());
    let work = Workdir::new();
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let file = scratch.user_directory(65534).join("a");
    let answer = run(&mut as_nobody(
        &create_command(&file, "8MiB", &["--json"]),
        &work,
    ));
    assert_eq!(answer.success().number("/map/extant_bytes"), 8 * MIB);
    let owner = command::text(command::tool("stat").args(["-c", "%u:%g"]).arg(&file));
    assert_eq!(owner.unwrap().trim(), "65534:65534");
}
