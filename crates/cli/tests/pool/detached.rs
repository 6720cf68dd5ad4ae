//! Jobs in processes of their own.

use std::fs;
use std::path::Path;

use extant_testkit::require;
use extant_testkit::scratch::Filesystem;
use extant_testkit::workdir::Workdir;
use rustix::process::Signal;

use crate::stand::{
    create_slowly, has_begun, in_memory, make_twelve_where_four_fit, say, signal_worker, words,
};
use crate::support::{Answer, MIB, Running, assert_names, extant, run, wait_until};

#[track_caller]
fn job(command: &str, pool: &Path, id: &str, more: &[&str]) -> Answer {
    say("job", command, pool, &[&[id], more].concat())
}

#[test]
fn detached_job_answers_at_once_and_is_watched_waited_for_and_cancelled() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    let id = create_slowly(pool, "a");
    assert_eq!(id, "1");
    let watch = Running::start(&mut words("job", "watch", pool, &[&id, "--json"]));
    let wait = Running::start(&mut words("job", "wait", pool, &[&id]));
    wait_until("the job's progress", || has_begun(pool, &id));
    assert_names(pool, &[".extant"]);
    job("cancel", pool, &id, &[]).success();
    assert_names(pool, &[".extant"]);
    assert_eq!(wait.wait().code, Some(130));
    let watched = watch.wait();
    assert_eq!(watched.code, Some(130), "{watched}");
    let states: Vec<serde_json::Value> = watched
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        states.iter().any(|line| line["state"] == "running"),
        "{watched}"
    );
    assert_eq!(states.last().unwrap()["state"], "cancelled", "{watched}");
    job("cancel", pool, &id, &[]).refused(4, &["has ended already"]);
}

#[test]
fn volume_that_is_made_written_may_be_looked_at_and_read() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    let thin = ["--preallocation", "off"];
    say("vol", "create", pool, &[&["a", "8MiB"][..], &thin].concat()).success();
    let image = ["b", "8MiB", "--format", "qcow2"];
    say("vol", "create", pool, &[&image[..], &thin].concat()).success();
    for volume in ["a", "b"] {
        let slow = [volume, "--rate", "4MiB", "--detach"];
        let answer = say("vol", "materialize", pool, &slow).success();
        let id = answer.stdout.trim();
        wait_until("the job's progress", || has_begun(pool, id));
        for _ in 0..5 {
            let listed = say("vol", "list", pool, &["--json"]).success().json();
            assert_eq!(listed["volumes"][1]["format"], "qcow2", "{listed}");
            say("vol", "info", pool, &[volume]).success();
        }
        let shown = job("show", pool, id, &["--json"]).success().json();
        assert_eq!(shown["state"], "running", "{shown}");
        // A process that keeps a raw volume open may write to it; writers of an image lock it.
        let opened = fs::File::open(pool.join(volume)).unwrap();
        let waited = job("wait", pool, id, &[]);
        let wanted = if volume == "a" { 4 } else { 0 };
        assert_eq!(waited.code, Some(wanted), "{waited}");
        drop(opened);
        say("vol", "materialize", pool, &[volume]).success();
        let info = say("vol", "info", pool, &[volume, "--json"]).success();
        assert_eq!(info.number("/written_bytes"), 8 * MIB, "{info}");
    }
}

#[test]
fn failed_job_is_an_error_of_its_watchers() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let (pool, config) = (scratch.path().join("pool"), scratch.path().join("config"));
    let config = ["--config-dir", config.to_str().unwrap()];
    let mut define = extant();
    define.args(["pool", "define", "one"]).arg(&pool);
    run(define.args(["--jobs", "1"]).args(config)).success();
    let on_pool = |group: &str, command: &str, more: &[&str]| {
        let mut words = extant();
        words.args([group, command, "one"]).args(more).args(config);
        words
    };
    let slow = ["a", "64MiB", "--rate", "16M", "--detach"];
    run(&mut on_pool("vol", "create", &slow)).success();
    let source = scratch.path().join("source");
    fs::write(&source, "content").unwrap();
    let waiting = ["b", source.to_str().unwrap(), "--detach"];
    run(&mut on_pool("vol", "upload", &waiting)).success();
    fs::remove_file(&source).unwrap();
    let watchers = [
        ("watch", &["2"][..]),
        ("wait", &["2"]),
        ("watch", &["2", "--json"]),
        ("wait", &["2", "--json"]),
    ];
    let watchers =
        watchers.map(|(command, more)| Running::start(&mut on_pool("job", command, more)));
    run(&mut on_pool("job", "cancel", &["1"])).success();
    let [watched, waited, watched_json, waited_json] = watchers.map(Running::wait);
    for answer in [watched, waited] {
        answer.refused(4, &["source", "no such file"]);
    }
    for answer in [watched_json, waited_json] {
        assert_eq!(answer.code, Some(4), "{answer}");
        let error: serde_json::Value = serde_json::from_str(&answer.stderr).unwrap();
        assert_eq!(error["event"], "error", "{answer}");
        assert_eq!(error["kind"], "not-found", "{answer}");
        assert_eq!(error["exit_status"], 4, "{answer}");
        assert!(answer.stdout.contains("failed"), "{answer}");
    }
}

#[test]
fn killed_worker_leaves_a_job_that_another_process_resumes() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    // Terminated, as when the machine is shut down, it leaves the job as a kill does.
    for (name, signal) in [("a", Signal::KILL), ("b", Signal::TERM)] {
        let id = create_slowly(pool, name);
        wait_until("the job's progress", || has_begun(pool, &id));
        signal_worker(&pool.join(".extant"), &id, signal);
        let interrupted = || job("show", pool, &id, &["--json"]).text("/state") == "interrupted";
        wait_until("the end of the worker", interrupted);
        job("wait", pool, &id, &[]).refused(1, &["interrupted", "resume"]);
        let refreshed = say("pool", "refresh", pool, &["--json"]).success();
        refreshed.valid_json("pool refresh");
        assert_eq!(refreshed.number("/interrupted/0/job").to_string(), id);
        assert!(refreshed.number("/interrupted/0/allocated_bytes") > 0);
        let resumed = job("resume", pool, &id, &["--detach", "--json"]).success();
        resumed.valid_json("job resume");
        assert_eq!(resumed.number("/job").to_string(), id);
        job("wait", pool, &id, &[]).success();
        let info = say("vol", "info", pool, &[name, "--json"]).success();
        assert_eq!(info.number("/written_bytes"), 64 * MIB);
    }
    assert_names(pool, &[".extant", "a", "b"]);
}

#[test]
fn all_interrupted_jobs_of_a_pool_are_resumed_also_if_one_fails() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path();
    let resume_all = || {
        let mut resume = extant();
        run(resume.args(["job", "resume", "--all"]).arg(pool))
    };
    assert_eq!(resume_all().success().stdout, "");
    let work = Workdir::new();
    let source = work.path().join("all-source");
    fs::write(&source, vec![7; 4 * MIB as usize]).unwrap();
    let mut upload = extant();
    upload
        .args(["vol", "upload"])
        .arg(pool)
        .arg("lost")
        .arg(&source);
    let upload = run(upload.args(["--rate", "512K", "--detach"])).success();
    let lost = upload.stdout.trim().to_owned();
    let ids = [lost, create_slowly(pool, "a"), create_slowly(pool, "b")];
    for id in &ids {
        wait_until("the job's progress", || has_begun(pool, id));
    }
    for id in &ids {
        signal_worker(&pool.join(".extant"), id, Signal::KILL);
        let interrupted = || job("show", pool, id, &["--json"]).text("/state") == "interrupted";
        wait_until("the end of the worker", interrupted);
    }
    // The first of them cannot continue.
    fs::remove_file(&source).unwrap();
    let answer = resume_all();
    assert_eq!(answer.code, Some(4), "{answer}");
    assert!(answer.stderr.contains("all-source"), "{answer}");
    for name in ["a", "b"] {
        let info = say("vol", "info", pool, &[name, "--json"]).success();
        assert_eq!(info.number("/written_bytes"), 64 * MIB);
    }
}

#[test]
fn of_processes_that_do_not_all_fit_exactly_those_that_fit_succeed() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(256 * MIB);
    let pool = scratch.path().join("pool");
    let config = scratch.path().join("config");
    let mut define = extant();
    define.args(["pool", "define", "small"]).arg(&pool);
    run(define
        .args(["--total", "35MiB", "--config-dir"])
        .arg(&config))
    .success();
    make_twelve_where_four_fit(&config);
    let mut list = extant();
    list.args(["vol", "list", "small", "--json", "--config-dir"])
        .arg(&config);
    let volumes = run(&mut list).success().json();
    let volumes = volumes["volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 4);
    assert!(
        volumes
            .iter()
            .all(|volume| volume["allocated_bytes"] == 8 * MIB)
    );
}
