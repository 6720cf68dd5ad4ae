//! `--trace` as a user has it: events of the command, of servers in the background and of detached
//! jobs.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use extant_testkit::command::{self, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{mke2fs, require, requires};
use serde_json::Value;

use support::{MIB, extant, run, through, wait_until};

const SIZE: u64 = 8 * MIB;

/// An ext4 image in a directory.
fn image(work: &Workdir) -> PathBuf {
    let path = work.path().join("disk.img");
    fs::write(&path, mke2fs("-t ext4 -b 4096", 64 * MIB)).unwrap();
    path
}

/// `extant create --in IMAGE /db 8MiB`.
fn create_in(image: &Path, more: &[&str]) -> Command {
    let mut command = extant();
    command.args(["create", "--in"]).arg(image);
    command.args(["/db", "8MiB"]).args(more);
    command
}

/// Events of JSON lines.
#[track_caller]
fn events(lines: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    lines.lines().map(parse).collect()
}

/// Crates that have reported.
fn crates(events: &[Value]) -> BTreeSet<&str> {
    let targets = events.iter().map(|event| event["target"].as_str().unwrap());
    targets
        .filter_map(|target| target.split(':').next())
        .collect()
}

#[test]
fn file_in_an_image_is_reported_with_its_range_on_stderr() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    let image = image(&work);
    let answer = run(&mut create_in(&image, &["--trace", "extant_ext4=debug"]));
    assert_eq!(answer.code, Some(0), "{answer}");
    let lines: Vec<_> = answer.stderr.lines().collect();
    assert!(
        lines
            .iter()
            .all(|line| line.contains("DEBUG extant_ext4::")),
        "{answer}"
    );
    let wanted = [
        " fallocate ",
        "start_bytes=0",
        "length_bytes=8388608",
        "duration_us=",
    ];
    let is_wanted = |line: &&&str| wanted.iter().all(|word| line.contains(word));
    assert!(lines.iter().any(|line| is_wanted(&line)), "{answer}");
}

#[test]
fn json_lines_go_to_the_file_and_add_up_to_what_was_made() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    let (image, report) = (image(&work), work.path().join("report"));
    fs::write(&report, "{\"target\":\"before\"}\n").unwrap();
    let words = ["--trace=trace", "--trace-format", "json", "--trace-file"];
    let more = [&words[..], &[report.to_str().unwrap()]].concat();
    run(&mut create_in(&image, &more)).success();
    let events = events(&fs::read_to_string(&report).unwrap());
    // It is appended to.
    assert_eq!(events[0]["target"], "before");
    let events = &events[1..];
    let of = |target: &str, name: &str| -> Vec<&Value> {
        let is = |event: &&Value| {
            event["message"] == name && event["target"].as_str().unwrap().starts_with(target)
        };
        events.iter().filter(is).collect()
    };
    let sum = |events: &[&Value], field: &str| -> u64 {
        events
            .iter()
            .map(|event| event[field].as_u64().unwrap())
            .sum()
    };
    assert_eq!(sum(&of("extant_ext4", "allocate"), "length_bytes"), SIZE);
    let converted = of("extant_ext4", "convert");
    assert_eq!(sum(&converted, "length_bytes"), SIZE);
    assert!(converted.iter().all(|event| event["duration_us"].is_u64()));
    assert!(!of("extant_jbd2", "commit").is_empty());
    assert!(sum(&of("extant_jbd2", "checkpoint"), "blocks") > 0);
    assert!(!of("extant_blockdev", "flush").is_empty());
    assert_eq!(of("extant_provision", "plan").len(), 1);
}

#[test]
fn environment_stands_for_the_options_and_options_override_it() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    let image = image(&work);
    // Nothing is reported by default, nor with an empty variable.
    run(create_in(&image, &[]).env("EXTANT_TRACE", "")).success();
    let traced = |more: &[&str]| {
        let mut command = create_in(&image, &[&["--force"], more].concat());
        command.env("EXTANT_TRACE", "extant_jbd2=debug");
        command.env("EXTANT_TRACE_FORMAT", "json");
        let answer = run(&mut command);
        assert_eq!(answer.code, Some(0), "{answer}");
        events(&answer.stderr)
    };
    assert_eq!(crates(&traced(&[])), BTreeSet::from(["extant_jbd2"]));
    let other = traced(&["--trace", "extant_blockdev=debug"]);
    assert_eq!(crates(&other), BTreeSet::from(["extant_blockdev"]));
}

#[test]
fn bad_setting_is_refused_with_its_name_and_the_part_that_is_wrong() {
    let work = Workdir::new();
    let path = work.path().join("a");
    let create = |words: &[&str]| {
        let mut command = extant();
        command.args(words).arg("create").arg(&path).arg("1MiB");
        command
    };
    for (words, said) in [
        (
            &["--trace", "extant_ext4=loud"][..],
            "--trace: 'extant_ext4=loud'",
        ),
        (&["--trace", "info,deubg"], "--trace: 'deubg'"),
        (
            &["--trace-file", "/dev/null"],
            "--trace-file: needs --trace",
        ),
        (&["--trace=info", "--trace-format=xml"], "--trace-format"),
    ] {
        run(&mut create(words)).refused(2, &[said]);
    }
    run(create(&[]).env("EXTANT_TRACE", "tokio=info")).refused(2, &["EXTANT_TRACE: 'tokio=info'"]);
    run(create(&[]).arg("--trace")).refused(2, &["--trace <FILTER>"]);
    run(create(&["--trace=info", "--json"]).args(["--trace", "x"]))
        .refused_json(2, "invalid-argument");
    let nowhere = ["--trace=info", "--trace-file=/none/report"];
    run(&mut create(&nowhere)).refused(4, &["/none/report"]);
    assert!(!path.exists());
    // fallocate(1) has one status for all failures.
    let mut fallocate = extant();
    fallocate
        .args(["--trace", "loud", "fallocate", "-l", "1M"])
        .arg(&path);
    run(&mut fallocate).refused(1, &["'loud'"]);
}

#[test]
fn fallocate_takes_the_options_before_and_behind_its_name() {
    let work = Workdir::new();
    let path = work.path().join("a");
    for words in [
        ["--trace", "extant_hostfs=debug", "fallocate"],
        ["fallocate", "--trace", "extant_hostfs=debug"],
    ] {
        let answer = run(extant().args(words).args(["-l", "1M"]).arg(&path));
        assert_eq!(answer.code, Some(0), "{answer}");
        assert_eq!(answer.stderr.lines().count(), 2, "{answer}");
        assert!(answer.stderr.contains("length_bytes=1048576"), "{answer}");
    }
}

#[test]
fn server_in_the_background_reports_to_its_file() {
    require!(requires::tool("nbdinfo"));
    let work = Workdir::new();
    fs::File::create(work.path().join("a.raw"))
        .unwrap()
        .set_len(MIB)
        .unwrap();
    let mut server = extant();
    server.current_dir(work.path());
    server.args([
        "--trace",
        "extant_export=info",
        "--trace-file",
        "report",
        "serve",
    ]);
    server.args(["a.raw", "--socket", "s", "--fork", "--pid-file", "pid"]);
    run(&mut server).success();
    visit_and_end(work.path());
    let report = fs::read_to_string(work.path().join("report")).unwrap();
    for event in ["open", "close"] {
        let wanted = format!("INFO extant_export::events: {event} ");
        assert!(report.contains(&wanted), "{report}");
    }
}

#[test]
fn server_in_the_background_without_a_file_reports_to_the_log_of_the_system() {
    require!(requires::root(), requires::tool("nbdinfo"));
    let work = Workdir::new();
    fs::File::create(work.path().join("a.raw"))
        .unwrap()
        .set_len(MIB)
        .unwrap();
    let devices = work.directory("dev");
    fs::write(devices.join("null"), "").unwrap();
    let log = UnixDatagram::bind(devices.join("log")).unwrap();
    log.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let script = format!(
        "mount --bind /dev/null {0}/null; mount --rbind {0} /dev; exec \"$@\"",
        devices.display()
    );
    let mut server = extant();
    server.current_dir(work.path());
    server.args([
        "serve",
        "a.raw",
        "--socket",
        "s",
        "--fork",
        "--pid-file",
        "pid",
    ]);
    server.args(["--trace", "extant_export=info"]);
    let wrapper = ["unshare", "-m", "sh", "-ec", &script, "sh"];
    run(&mut through(&wrapper, &server)).success();
    let pid = fs::read_to_string(work.path().join("pid")).unwrap();
    visit_and_end(work.path());
    let mut buffer = [0; 4096];
    let mut lines = Vec::new();
    while !lines
        .iter()
        .any(|line: &String| line.contains("events: close "))
    {
        let length = log
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("{error}: {lines:?}"));
        lines.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert!(
        lines[0].starts_with(&format!("<31>extant[{}]: ", pid.trim())),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| line.contains("events: open ")),
        "{lines:?}"
    );
}

/// A client of the server with the socket `s` and the process number in `pid`, and its end.
#[track_caller]
fn visit_and_end(directory: &Path) {
    let socket = directory.join("s");
    let uri = format!("nbd+unix:///a.raw?socket={}", socket.display());
    command::must(tool("nbdinfo").arg(uri));
    let pid = directory.join("pid");
    let number = fs::read_to_string(&pid).unwrap();
    command::must(Command::new("kill").arg(number.trim()));
    wait_until("the server's end", || !pid.exists());
}

#[test]
fn detached_job_reports_to_the_file_of_its_command() {
    let work = Workdir::new();
    let (pool, report) = (work.directory("pool"), work.path().join("report"));
    let mut create = extant();
    create.current_dir(work.path());
    create
        .args(["vol", "create"])
        .arg(&pool)
        .args(["a", "1MiB", "--detach"]);
    create.args(["--trace", "extant_pool=info", "--trace-file", "report"]);
    run(create.args(["--trace-format", "json"])).success();
    run(extant().args(["job", "wait"]).arg(&pool).arg("1"));
    let read = || fs::read_to_string(&report).unwrap();
    wait_until("the job's last event", || read().contains("\"done\""));
    let events = events(&read());
    let states: Vec<_> = events
        .iter()
        .map(|event| event["state"].as_str().unwrap())
        .collect();
    // The first is of the command that submits it.
    assert_eq!(states, ["waiting", "running", "done"]);
    assert!(
        events
            .iter()
            .all(|event| event["job"] == 1 && event["volume"] == "a")
    );
}

#[test]
fn mount_in_the_background_reports_to_its_file() {
    require!(
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("mke2fs")
    );
    let work = Workdir::new();
    let (image, directory) = (image(&work), work.directory("mnt"));
    let mut mount = extant();
    mount.current_dir(work.path());
    mount.args([
        "mount",
        "--trace",
        "extant_ext4=debug",
        "--trace-file",
        "report",
    ]);
    let mounted = run(mount.arg(&image).arg(&directory));
    assert_eq!(mounted.code, Some(0), "{mounted}");
    let file = fs::File::create(directory.join("a")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 3 * MIB).unwrap();
    drop(file);
    run(extant().arg("umount").arg(&directory)).success();
    let report = fs::read_to_string(work.path().join("report")).unwrap();
    let is_wanted =
        |line: &str| line.contains("fallocate ") && line.contains("length_bytes=3145728");
    assert_eq!(
        report.lines().filter(|line| is_wanted(line)).count(),
        1,
        "{report}"
    );
}
