//! Words, exit codes and JSON.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use extant_testkit::requires::tool;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require};

use crate::stand::{in_memory, say};
use crate::support::{Answer, MIB, as_nobody, extant, run};

fn words(first: &str, second: &str) -> Command {
    let mut command = extant();
    command.args([first, second]);
    command
}

#[track_caller]
fn vol(command: &str, pool: &Path, more: &[&str]) -> Answer {
    say("vol", command, pool, more)
}

#[test]
fn space_of_a_deleted_volume_is_there_for_the_next_one() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    for _ in 0..20 {
        vol(
            "create",
            pool,
            &["a", "200MiB", "--preallocation", "falloc"],
        )
        .success();
        vol("delete", pool, &["a"]).success();
    }
}

#[test]
fn session_with_a_defined_pool_has_the_documented_results() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(128 * MIB);
    let work = Workdir::new();
    let config = work.directory("config");
    let config = ["--config-dir", config.to_str().unwrap()];
    let pool = scratch.path().join("vms");
    let define = |name: &str| {
        let mut command = words("pool", "define");
        command.arg(name).arg(&pool).args(config);
        run(command.args(["--total", "40MiB", "--overcommit", "1.5"]))
    };
    define("vms").success();
    define("vms").refused(4, &["vms", "defined already"]);
    let with_config = |group: &str, command: &str, more: &[&str]| {
        run(words(group, command).arg("vms").args(more).args(config))
    };
    with_config("vol", "create", &["a", "10MiB", "--json"]).success();
    let info = with_config("vol", "info", &["a", "--json"]).success();
    assert_eq!(info.number("/written_bytes"), 10 * MIB);
    assert_eq!(info.json()["may_run_out_of_space"], false);
    with_config("vol", "clone", &["a", "b"]).success();
    with_config("vol", "resize", &["b", "12MiB"]).success();
    with_config("vol", "wipe", &["b", "--method", "discard"]).success();
    with_config("vol", "materialize", &["b"]).success();
    with_config("vol", "create", &["c", "31MiB", "--preallocation", "off"]).success();
    // 60 may be promised, 53 are.
    with_config("vol", "create", &["d", "8MiB", "--preallocation", "off"]).refused(
        3,
        &[
            "8 MiB of capacity wanted",
            "7 MiB available",
            "1 MiB missing",
        ],
    );
    let list = with_config("vol", "list", &["--json"]).success().json();
    let names: Vec<&str> = list["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    with_config("vol", "delete", &["c"]).success();
    let info = with_config("pool", "info", &["--json"]).success();
    assert_eq!(info.number("/space/promised_bytes"), 22 * MIB);
    assert_eq!(info.number("/space/total_bytes"), 40 * MIB);
    let all = run(words("pool", "list").args(config).arg("--json")).success();
    assert_eq!(all.text("/pools/0/name"), "vms");
    with_config("pool", "refresh", &[]).success();
    with_config("pool", "delete", &[]).success();
    with_config("pool", "info", &[]).refused(4, &["no pool 'vms'", "./vms"]);
    assert!(pool.join("a").exists(), "volumes stay");
}

#[test]
fn images_are_volumes_like_others() {
    require!(Filesystem::Ext4.requirement(), tool("qemu-img"));
    let scratch = in_memory(128 * MIB);
    let pool = scratch.path().join("pool");
    fs::create_dir(&pool).unwrap();
    let made = vol("create", &pool, &["a.qcow2", "8MiB", "--json"]).success();
    assert_eq!(made.text("/format"), "qcow2");
    assert_eq!(made.text("/preallocation"), "full");
    assert_eq!(made.number("/written_bytes"), 8 * MIB);
    let options = ["-o", "cluster_size=4k,compat=0.10"];
    let thin = [
        &[
            "thin",
            "1GiB",
            "--format",
            "qcow2",
            "--preallocation",
            "off",
        ][..],
        &options,
    ];
    // More than there is.
    vol("create", &pool, &thin.concat()).refused(3, &["missing"]);
    let part = ["part.qcow2", "32MiB", "--allocation", "4MiB"];
    vol("create", &pool, &part).refused(2, &["--preallocation metadata, falloc or full"]);
    let said = [&part[..], &["--preallocation", "falloc"]].concat();
    let made = vol("create", &pool, &said).success();
    assert!(
        made.stdout.starts_with("part.qcow2: 32 MiB, qcow2\n"),
        "{made}"
    );
    assert!(
        made.stdout
            .contains("preallocation off, clusters of 64 KiB, compat 1.1"),
        "{made}"
    );
    assert!(made.stdout.contains("may fail"), "{made}");
    let top = [
        "top.qcow2",
        "8MiB",
        "-o",
        "backing_file=base,backing_fmt=raw",
    ];
    vol("create", &pool, &top).success();
    // No space is given, and the backing file remains visible.
    vol("resize", &pool, &["top.qcow2", "9MiB"]).success();
    let info = vol("info", &pool, &["top.qcow2"]).success();
    assert!(info.stdout.contains("base (raw), not opened"), "{info}");
    vol("resize", &pool, &["a.qcow2", "10MiB"]).success();
    let info = vol("info", &pool, &["a.qcow2", "--json"]).success();
    assert_eq!(info.number("/written_bytes"), 10 * MIB);
    assert_eq!(info.json()["may_run_out_of_space"], false);
    vol("clone", &pool, &["a.qcow2", "b"]).success();
    vol("wipe", &pool, &["b", "--method", "discard"]).success();
    vol("materialize", &pool, &["b"]).success();
    let list = vol("list", &pool, &[]).success();
    assert_eq!(list.stdout.matches("qcow2").count(), 7, "{list}");
    let out = scratch.path().join("out");
    let shown = out.to_str().unwrap();
    vol("download", &pool, &["b", shown]).success();
    vol("upload", &pool, &["c", shown]).refused(2, &["looks like a qcow2 image", "--format"]);
    vol("upload", &pool, &["c", shown, "--format", "qcow2"]).success();
    fs::copy(&out, pool.join("theirs")).unwrap();
    let list = vol("list", &pool, &[]).success();
    assert!(list.stdout.contains("unknown"), "{list}");
    vol("resize", &pool, &["theirs", "20MiB"]).refused(5, &["extant vol format"]);
    vol("format", &pool, &["theirs", "qcow2"]).success();
    vol("resize", &pool, &["theirs", "11MiB"]).success();
    for name in ["a.qcow2", "b", "c", "part.qcow2", "theirs"] {
        let mut check = command::tool("qemu-img");
        check
            .args(["check", "-q", "-f", "qcow2"])
            .arg(pool.join(name));
        command::must(&mut check);
    }
    vol(
        "create",
        &pool,
        &["raw", "1M", "--preallocation", "metadata"],
    )
    .refused(2, &["qcow2"]);
    vol("create", &pool, &["raw", "1M", "-o", "compat=1.1"])
        .refused(2, &["-o compat is for qcow2"]);
}

#[test]
fn names_and_arguments_that_cannot_be_are_refused_on_one_line() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    for (name, words) in [
        ("../a", "begins with a dot"),
        ("a/b", "slash"),
        (".a", "dot"),
        ("a\nb", "control"),
    ] {
        vol("create", &pool, &[name, "1M"]).refused(2, &[words]);
    }
    vol("create", &pool, &["a", "0"]).refused(2, &["at least 1 byte"]);
    vol("create", &pool, &["a", "1M", "--allocation", "2M"]).refused(2, &["more than the size"]);
    vol("create", &pool, &["a", "1M", "--format", "vdi"]).refused(2, &["vdi"]);
    vol("create", &pool, &["a", "1M", "--format", "vmdk"]).refused(2, &["vmdk"]);
    vol("info", &pool, &["a"]).refused(4, &["/a: no such file"]);
    vol("list", &pool.join("none"), &[]).refused(4, &["none"]);
    run(words("job", "show").arg(&pool).arg("7")).refused(4, &["no job 7"]);
    run(words("job", "show").arg(&pool).arg("x")).refused(2, &["number of a job"]);
    assert!(
        fs::read_dir(&pool)
            .unwrap()
            .all(|entry| entry.unwrap().file_name() == ".extant")
    );
}

#[test]
fn error_of_a_job_is_about_the_volume_and_json_where_progress_is() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    fs::write(pool.join("a"), "a").unwrap();
    let answer = vol("create", &pool, &["a", "1M", "--progress", "json"]);
    let line: serde_json::Value = serde_json::from_str(answer.stderr.trim()).unwrap();
    assert_eq!(line["kind"], "already-exists", "{answer}");
    assert!(
        line["path"].as_str().unwrap().ends_with("/pool/a"),
        "{answer}"
    );
}

#[test]
fn ten_thousand_volumes_are_listed() {
    require!(Filesystem::Tmpfs.requirement());
    let scratch = Scratch::new(Filesystem::Tmpfs, 256 * MIB);
    for number in 0..10_000 {
        fs::write(scratch.path().join(format!("v{number:05}")), [b'x'; 512]).unwrap();
    }
    let started = std::time::Instant::now();
    let list = vol("list", scratch.path(), &[]).success();
    eprintln!("10,000 volumes in {:?}", started.elapsed());
    assert_eq!(list.stdout.lines().count(), 10_001);
    assert!(list.stdout.ends_with("v09999\n"));
}

#[test]
fn paths_that_are_not_utf8_are_refused_before_anything_is_made() {
    let work = Workdir::new();
    let config = work.directory("config");
    let odd = work.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&odd).unwrap();
    let mut define = words("pool", "define");
    define.arg("odd").arg(&odd).arg("--config-dir").arg(&config);
    run(&mut define).refused(2, &["not UTF-8"]);
    assert_eq!(fs::read_dir(&odd).unwrap().count(), 0);
    let pool = work.directory("pool");
    vol("create", &pool, &["a", "1MiB", "--preallocation", "off"]).success();
    let file = odd.join("file");
    fs::write(&file, "content").unwrap();
    for (command, volume) in [("upload", "b"), ("download", "a")] {
        let mut transfer = words("vol", command);
        transfer.arg(&pool).arg(volume).arg(&file).arg("--force");
        run(&mut transfer).refused(2, &["not UTF-8"]);
        let mut transfer = words("vol", command);
        run(transfer.arg(&pool).args([volume, "-"])).refused(2, &["./-"]);
    }
    assert_eq!(fs::read(&file).unwrap(), b"content");
    // As any directory, it is a pool by its path.
    vol("create", &odd, &["c", "1MiB", "--preallocation", "off"]).success();
}

#[test]
fn place_has_one_definition() {
    let work = Workdir::new();
    let config = work.directory("config");
    let pool = work.directory("pool");
    let define = |name: &str| {
        let mut define = words("pool", "define");
        define.arg(name).arg(&pool).arg("--config-dir").arg(&config);
        define
    };
    let all: Vec<Answer> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| run(&mut define("one"))))
            .collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let done = all.iter().filter(|answer| answer.code == Some(0)).count();
    assert_eq!(done, 1, "{all:?}");
    run(&mut define("two")).refused(4, &["pool 'one'", "already"]);
    let info = |name: &str| {
        run(words("pool", "info")
            .arg(name)
            .arg("--config-dir")
            .arg(&config))
    };
    info("one").success();
    info("two").refused(4, &["two"]);
}

#[test]
fn volume_of_any_mode_is_made_by_every_user() {
    require!(extant_testkit::requires::root());
    let work = Workdir::new();
    let pool = work.directory("pool");
    let mut open = command::tool("chmod");
    command::must(open.arg("0777").arg(&pool));
    for mode in ["0444", "0640"] {
        let mut create = words("vol", "create");
        create.arg(&pool).args([mode, "1MiB", "--mode", mode]);
        run(&mut as_nobody(&create, &work)).success();
        let found = fs::metadata(pool.join(mode)).unwrap().permissions().mode();
        assert_eq!(format!("{:04o}", found & 0o7777), mode);
    }
}

#[test]
fn list_that_cannot_be_printed_is_a_failure() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    vol("create", &pool, &["a", "1MiB", "--preallocation", "off"]).success();
    for (group, command) in [("vol", "list"), ("job", "list"), ("pool", "info")] {
        for json in [&[][..], &["--json"]] {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let mut list = words(group, command);
            let status = list
                .arg(&pool)
                .args(json)
                .stdout(full)
                .stderr(Stdio::null())
                .status();
            assert_eq!(status.unwrap().code(), Some(1), "{group} {command}");
        }
    }
}

#[test]
fn capacity_is_changed_by_a_difference() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(64 * MIB);
    let pool = scratch.path();
    vol("create", pool, &["a", "4MiB", "--preallocation", "off"]).success();
    let resize = |more: &[&str]| vol("resize", pool, &[&["a"], more].concat());
    resize(&["+2MiB"]).success();
    assert_eq!(fs::metadata(pool.join("a")).unwrap().len(), 6 * MIB);
    resize(&["-3MiB", "--shrink"]).success();
    assert_eq!(fs::metadata(pool.join("a")).unwrap().len(), 3 * MIB);
    resize(&["-9MiB", "--shrink"]).refused(2, &["a", "3 MiB"]);
    let misspelt = resize(&["--shrnk", "1MiB"]);
    assert_eq!(misspelt.code, Some(2), "{misspelt}");
    assert!(misspelt.stderr.contains("--shrink"), "{misspelt}");
}
