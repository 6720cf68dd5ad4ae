//! Messages of the commands of pools, volumes and jobs, other than results.

use std::path::Path;

use extant_testkit::require;
use extant_testkit::requires::{root, tool};
use extant_testkit::scratch::Filesystem;
use extant_testkit::workdir::Workdir;
use rustix::process::Signal;

use crate::stand::{create_slowly, has_begun, in_memory, say, words};
use crate::support::{Answer, MIB, Running, as_nobody, extant, run, wait_until};

/// A handler of SIGINT is set in the process.
fn catches_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
}

#[test]
fn interrupted_watch_reports_that_the_job_continues() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    let id = create_slowly(pool, "a");
    wait_until("the job's progress", || has_begun(pool, &id));
    let watch = ["watch", "wait"].map(|command| {
        let mut words = words("job", command, pool, &[&id]);
        Running::start(&mut words)
    });
    for running in watch {
        wait_until("signals to be caught", || catches_interrupts(running.pid()));
        let (answer, _) = running.stop(Signal::INT);
        let cancel = format!("extant job cancel {} 1", pool.display());
        answer.refused(130, &["job 1 continues", &cancel]);
    }
    let listed = say("job", "list", pool, &["--json"]).success();
    assert_eq!(listed.text("/jobs/0/state"), "running");
    say("job", "cancel", pool, &[&id]).success();
    // An ended job is still listed with its progress and duration.
    let listed = say("job", "list", pool, &["--json"]).success();
    assert_eq!(listed.text("/jobs/0/state"), "cancelled");
    assert!(listed.number("/jobs/0/progress/done_bytes") > 0);
    assert_eq!(listed.number("/jobs/0/request/capacity_bytes"), 64 * MIB);
    let table = say("job", "list", pool, &[]).success();
    let [headings, row] = table.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{table}")
    };
    for word in ["CAPACITY", "RATE", "TIME", "AGE"] {
        assert!(headings.contains(word), "{table}");
    }
    assert!(row.contains("64 MiB") && row.contains("%"), "{table}");
}

#[test]
fn missing_definition_is_searched_in_every_directory() {
    require!(root(), tool("setpriv"));
    let work = Workdir::new();
    let home = work.directory("home");
    let mut info = extant();
    info.args(["pool", "info", "no-such-pool-anywhere"]);
    let mut info = as_nobody(&info, &work);
    let own = home.join("extant/pools");
    let places = [own.to_str().unwrap(), "/etc/extant/pools"];
    run(info.env("XDG_CONFIG_HOME", &home)).refused(4, &places);
}

#[test]
fn lists_are_of_every_defined_pool_where_none_is_named() {
    let work = Workdir::new();
    let config = work.directory("config");
    let with_config = |words: &[&str]| {
        let mut command = extant();
        command.args(words).arg("--config-dir").arg(&config);
        run(&mut command)
    };
    for name in ["one", "two"] {
        let directory = work.directory(name);
        with_config(&["pool", "define", name, directory.to_str().unwrap()]).success();
        with_config(&["vol", "create", name, "a", "1MiB", "--preallocation", "off"]).success();
    }
    let pools = |answer: &Answer, list: &str| -> Vec<String> {
        let json = answer.json();
        let list = json[list].as_array().unwrap().iter();
        list.map(|entry| entry["pool"].as_str().unwrap().to_owned())
            .collect()
    };
    for (words, list) in [(["vol", "list"], "volumes"), (["job", "list"], "jobs")] {
        let json = with_config(&[&words[..], &["--json"]].concat()).success();
        assert_eq!(pools(&json, list), ["one", "two"]);
        let table = with_config(&words).success();
        assert!(table.stdout.starts_with("POOL"), "{table}");
        assert_eq!(table.stdout.lines().count(), 3, "{table}");
    }
    // An unusable one is reported, and does not hide others.
    std::fs::remove_dir_all(work.path().join("one")).unwrap();
    let answer = with_config(&["vol", "list", "--json"]);
    assert_eq!(answer.code, Some(4), "{answer}");
    assert_eq!(pools(&answer, "volumes"), ["two"]);
    assert!(answer.stderr.contains("one"), "{answer}");
}

#[test]
fn commands_without_output_report_their_change() {
    let work = Workdir::new();
    let (directory, config) = (work.directory("vms"), work.directory("config"));
    let shown = directory.to_str().unwrap();
    let config = ["--config-dir", config.to_str().unwrap()];
    let with_config = |words: &[&str]| run(extant().args(words).args(config));
    let made = with_config(&["pool", "define", "p", shown, "--json"]).success();
    assert_eq!(
        (made.text("/name"), made.text("/path")),
        ("p".into(), shown.into())
    );
    with_config(&["vol", "create", "p", "a", "1MiB"]).success();
    let info = with_config(&["pool", "info", "p"]).success();
    assert!(info.stdout.starts_with("p: dir, 1 volume\n"), "{info}");
    // Without its definition, by a relative path.
    let mut unnamed = extant();
    unnamed.args(["pool", "info", "."]).current_dir(&directory);
    let unnamed = run(&mut unnamed).success();
    let first = "vms: dir, 1 volume, without a definition\n";
    assert!(unnamed.stdout.starts_with(first), "{unnamed}");
    assert!(unnamed.stdout.contains(shown), "{unnamed}");
    let said = with_config(&["job", "wait", "p", "1"]).success();
    assert!(said.stdout.starts_with("job 1: create a\n"), "{said}");
    let said = with_config(&["vol", "format", "p", "a", "raw"]).success();
    assert_eq!(said.stdout, "a: raw\n");
    let said = with_config(&["vol", "format", "p", "a", "raw", "--json"]).success();
    assert_eq!(
        (said.text("/name"), said.text("/format")),
        ("a".into(), "raw".into())
    );
    let said = with_config(&["vol", "delete", "p", "a"]).success();
    assert_eq!(said.stdout, "a: deleted\n");
    with_config(&["vol", "create", "p", "b", "1MiB"]).success();
    let said = with_config(&["vol", "delete", "p", "b", "--json"]).success();
    assert_eq!(Path::new(&said.text("/path")), directory.join("b"));
    assert_eq!(said.text("/pool"), "p");
    let said = with_config(&["pool", "delete", "p"]).success();
    assert!(said.stdout.starts_with("p: "), "{said}");
    with_config(&["pool", "define", "p", shown]).success();
    let said = with_config(&["pool", "delete", "p", "--json"]).success();
    assert_eq!(
        (said.text("/name"), said.text("/path")),
        ("p".into(), shown.into())
    );
}

#[test]
fn result_of_a_job_has_the_written_bytes_and_the_method() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(64 * MIB);
    let pool = scratch.path();
    let thin = ["thin", "4MiB", "--preallocation", "off"];
    say("vol", "create", pool, &thin).success();
    for (command, words) in [
        ("create", &["full", "4MiB"][..]),
        ("materialize", &["thin"]),
    ] {
        let made = say("vol", command, pool, &[words, &["--json"]].concat()).success();
        assert_eq!(made.number("/zeroed_bytes"), 4 * MIB, "{made}");
        assert_eq!(made.text("/verified"), "extent-map", "{made}");
        assert!(made.json()["plan"]["reason"].is_string(), "{made}");
        assert!(made.json()["notes"].is_array(), "{made}");
    }
    let said = say("vol", "create", pool, &["words", "4MiB"]).success();
    for word in ["/s\n", "  how ", "  checked   the extent map"] {
        assert!(said.stdout.contains(word), "no {word:?} in {said}");
    }
}
