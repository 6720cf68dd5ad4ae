//! Fixture of the tests: directories for pools, and commands on them.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use extant_testkit::command;
use extant_testkit::scratch::{Filesystem, Scratch};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Answer, Running, extant, run};

/// A file system in memory: these tests do not test the disk.
pub fn in_memory(bytes: u64) -> Scratch {
    Scratch::builder(Filesystem::Ext4, bytes)
        .memory(2 * bytes)
        .build()
}

/// An ext4 image of `bytes` at `path`.
pub fn make_image(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
    let mut make = command::tool("mke2fs");
    command::must(make.args(["-q", "-F", "-t", "ext4"]).arg(path));
}

/// `extant GROUP COMMAND POOL` with further arguments.
pub fn words(group: &str, command: &str, pool: &Path, more: &[&str]) -> Command {
    let mut words = extant();
    words.args([group, command]).arg(pool).args(more);
    words
}

/// Runs that.
#[track_caller]
pub fn say(group: &str, command: &str, pool: &Path, more: &[&str]) -> Answer {
    run(&mut words(group, command, pool, more))
}

/// Starts the creation of a volume that takes seconds; the number of its job.
#[track_caller]
pub fn create_slowly(pool: &Path, name: &str) -> String {
    let more = [name, "64MiB", "--rate", "16M", "--detach"];
    let answer = say("vol", "create", pool, &more).success();
    answer.stdout.trim().to_owned()
}

/// The job is at work, and has done something.
#[track_caller]
pub fn has_begun(pool: &Path, id: &str) -> bool {
    let shown = say("job", "show", pool, &[id, "--json"]).success().json();
    shown["state"] == "running" && shown["progress"]["done_bytes"].as_u64() > Some(0)
}

/// Sends `signal` to the process that holds the lock of a job in the pool whose state directory is
/// `own`.
#[track_caller]
pub fn signal_worker(own: &Path, id: &str, signal: Signal) {
    let holders = extant_hostfs::holders(&own.join(format!("jobs/{id}.run")));
    let worker = holders.first().expect("a worker").pid as i32;
    kill_process(Pid::from_raw(worker).expect("a process"), signal).unwrap();
}

/// Volumes that twelve processes make at once in the pool `small`, where four of them fit: those
/// do, and the others are refused.
#[track_caller]
pub fn make_twelve_where_four_fit(config: &Path) {
    let running: Vec<Running> = (0..12)
        .map(|number| {
            let mut create = extant();
            create.args(["vol", "create", "small", &format!("v{number}"), "8MiB"]);
            Running::start(create.arg("--config-dir").arg(config))
        })
        .collect();
    let answers: Vec<Answer> = running.into_iter().map(Running::wait).collect();
    let count = |code: i32| {
        let those = answers.iter().filter(|answer| answer.code == Some(code));
        those.count()
    };
    assert_eq!((count(0), count(3)), (4, 8), "{answers:?}");
}
