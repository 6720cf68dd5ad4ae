//! Pools of kind `rbd` through the command: definition, `kill -9` at random moments, serving.
//!
//! After each kill every name has its whole content by Ceph's own tools, and a resumed or cancelled
//! job leaves no image. `EXTANT_KILLS` is the number of kills.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use extant_testkit::ceph::{Ceph, POOL};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, seeds};
use rustix::process::Signal;

use crate::support::{Answer, MIB, Random, Running, extant, noise, run};

const SIZE: u64 = 12 * MIB;

struct Stand {
    ceph: &'static Ceph,
    namespace: String,
    work: Workdir,
    content: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Clone,
    Share,
    Upload,
    Replace,
    Grow,
    Wipe,
    Delete,
}

const ALL: [Operation; 8] = [
    Operation::Create,
    Operation::Clone,
    Operation::Share,
    Operation::Upload,
    Operation::Replace,
    Operation::Grow,
    Operation::Wipe,
    Operation::Delete,
];

impl Stand {
    fn new(namespace: &str) -> Self {
        let ceph = Ceph::shared_with_figures();
        let words = [
            "namespace",
            "create",
            "--pool",
            POOL,
            "--namespace",
            namespace,
        ];
        ceph.ask_rbd(&words);
        let stand = Self {
            ceph,
            namespace: namespace.to_owned(),
            work: Workdir::new(),
            content: noise(7, SIZE as usize),
        };
        stand.define(&[]).success();
        fs::write(stand.source(), &stand.content).unwrap();
        fs::write(stand.short(), &stand.content[..MIB as usize]).unwrap();
        stand
    }

    fn define(&self, more: &[&str]) -> Answer {
        let mut define = extant();
        define.args([
            "pool",
            "define",
            "cloud",
            "--kind",
            "rbd",
            "--ceph-pool",
            POOL,
        ]);
        define.args(["--namespace", &self.namespace]).args(more);
        define.arg("--conf").arg(self.ceph.conf());
        define.arg("--state").arg(self.work.path().join("state"));
        run(self.configured(&mut define))
    }

    fn source(&self) -> PathBuf {
        self.work.path().join("source")
    }

    fn short(&self) -> PathBuf {
        self.work.path().join("short")
    }

    fn configured<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.arg("--config-dir").arg(self.work.path())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = extant();
        command.args(&words[..2]).arg("cloud").args(&words[2..]);
        self.configured(&mut command);
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Answer {
        run(&mut self.command(words))
    }

    fn rbd(&self, words: &[&str]) -> String {
        let place = ["--pool", POOL, "--namespace", &self.namespace];
        self.ceph.ask_rbd(&[words, &place[..]].concat())
    }

    /// `data` and `old` have content, and there is no other volume.
    fn reset(&self) {
        // A clone before its source.
        for image in self.rbd(&["ls"]).lines().rev() {
            self.run(&["vol", "delete", image]).success();
        }
        for (volume, file) in [("data", self.source()), ("old", self.short())] {
            self.run(&["vol", "upload", volume, file.to_str().unwrap()])
                .success();
        }
    }

    /// The content of a volume, by `rbd export`.
    fn read(&self, volume: &str) -> Option<Vec<u8>> {
        let target = self.work.path().join("exported");
        let mut export = self.ceph.rbd();
        export.args(["export", "--no-progress", "--pool", POOL, "--namespace"]);
        export.args([&self.namespace, volume]).arg(&target);
        let exported = command::run(&mut export);
        let content = exported.is_ok().then(|| fs::read(&target).unwrap());
        let _ = fs::remove_file(target);
        content
    }

    fn start(&self, operation: Operation) -> Running {
        let source = self.source();
        let source = source.to_str().unwrap();
        let words: Vec<&str> = match operation {
            Operation::Create => vec!["vol", "create", "new", "12MiB", "--verify", "full"],
            Operation::Clone => vec!["vol", "clone", "data", "new", "--method", "copy"],
            Operation::Share => vec!["vol", "clone", "data", "new", "--method", "reflink"],
            Operation::Upload => vec!["vol", "upload", "new", source],
            Operation::Replace => vec!["vol", "upload", "old", source, "--force"],
            Operation::Grow => vec!["vol", "resize", "old", "13MiB"],
            Operation::Wipe => vec!["vol", "wipe", "data"],
            Operation::Delete => vec!["vol", "delete", "data"],
        };
        let mut command = self.command(&words);
        if !matches!(operation, Operation::Delete | Operation::Share) {
            command.args(["--rate", "48M"]);
        }
        Running::start(&mut command)
    }

    #[track_caller]
    fn check_nothing_is_half(&self, operation: Operation, is_done: bool) {
        let zeros = vec![0; SIZE as usize];
        let read = |volume: &str| self.read(volume);
        let is_whole = |volume: &str, content: &[u8]| {
            let found = read(volume);
            found.is_none() && !is_done || found.as_deref() == Some(content)
        };
        let short = &self.content[..MIB as usize];
        let is_right = match operation {
            Operation::Create => is_whole("new", &zeros),
            Operation::Clone | Operation::Share | Operation::Upload => {
                is_whole("new", &self.content)
            }
            Operation::Replace => {
                // For a moment it has neither name; the job gives it the new one, or the old.
                let old = read("old");
                old.as_deref() == Some(&self.content)
                    || !is_done && old.is_none_or(|old| old == short)
            }
            Operation::Grow => {
                let mut grown = short.to_vec();
                grown.resize(13 * MIB as usize, 0);
                let old = read("old").unwrap();
                !is_done && old == short || old == grown
            }
            Operation::Wipe => !is_done || read("data") == Some(zeros),
            Operation::Delete => {
                let data = read("data");
                data.is_none() || !is_done && data.as_ref() == Some(&self.content)
            }
        };
        assert!(is_right, "{operation:?}, done: {is_done}");
        if !matches!(operation, Operation::Wipe | Operation::Delete) {
            assert!(
                read("data").as_ref() == Some(&self.content),
                "{operation:?}"
            );
        }
    }
}

#[test]
fn process_killed_at_any_moment_leaves_no_half_image() {
    require!(Ceph::requirement());
    let kills = seeds::number("EXTANT_KILLS", 8) as usize;
    let mut random = Random::seeded("--test pool rbd");
    let stand = Stand::new("killed");
    let mut interrupted = 0;
    for round in 0..kills {
        stand.reset();
        let operation = ALL[round % ALL.len()];
        let running = stand.start(operation);
        sleep(Duration::from_millis(match operation {
            Operation::Delete | Operation::Share => random.below(120),
            _ => 60 + random.below(400),
        }));
        let (answer, _) = running.stop(Signal::KILL);
        let was_killed = answer.signal.is_some();
        assert!(was_killed || answer.code == Some(0), "{answer}");
        stand.check_nothing_is_half(operation, !was_killed);
        let found = stand.run(&["pool", "refresh", "--json"]).success();
        let jobs = found.json()["interrupted"].as_array().unwrap().len();
        assert!(jobs <= usize::from(was_killed), "{found}");
        interrupted += jobs;
        if jobs == 1 && random.below(2) == 0 {
            let id = found.number("/interrupted/0/job").to_string();
            stand.run(&["job", "resume", &id]).success();
            stand.check_nothing_is_half(operation, true);
        } else if jobs == 1 {
            stand.run(&["pool", "refresh", "--cancel"]).success();
            stand.check_nothing_is_half(operation, false);
            assert!(stand.read("old").is_some(), "{operation:?}");
        }
        stand.run(&["pool", "refresh"]).success();
        let images = stand.rbd(&["ls"]);
        assert!(
            images.lines().all(|name| !name.starts_with('.')),
            "{images}"
        );
        let info = stand.run(&["pool", "info", "--json"]).success();
        assert_eq!(info.number("/jobs"), 0, "{info}");
        assert_eq!(info.number("/space/reserved_bytes"), 0, "{info}");
    }
    // The watch of a killed client lasts half a minute, and keeps an image in the trash.
    let until = Instant::now() + Duration::from_secs(90);
    while !stand.rbd(&["trash", "ls", "--all"]).trim().is_empty() {
        assert!(Instant::now() < until, "a removal is not repeated");
        sleep(Duration::from_secs(1));
        stand.run(&["pool", "refresh"]).success();
    }
    eprintln!("{interrupted} jobs were interrupted");
    assert!(interrupted > 0, "no job was killed at work");
}

#[test]
fn cluster_is_defined_with_its_words_and_its_volumes_are_served() {
    require!(Ceph::requirement());
    let stand = Stand::new("served");
    stand.reset();
    let info = stand.run(&["pool", "info"]).success();
    for word in ["cloud: rbd, 2 volumes", "rbd:rbd/served", "in 1 copy"] {
        assert!(info.stdout.contains(word), "{info}");
    }
    let info = stand.run(&["pool", "info", "--json"]).success();
    assert_eq!(info.number("/cluster/copies"), 1, "{info}");
    let refused = stand.run(&["vol", "create", "a", "1MiB", "--preallocation", "falloc"]);
    assert!(refused.stderr.contains("preallocation falloc"), "{refused}");
    for words in [
        &["pool", "define", "x", "--kind", "rbd"][..],
        &["pool", "define", "x", "--ceph-pool", POOL],
        &["pool", "define", "x", "/srv", "--kind", "rbd"],
        &[
            "pool",
            "define",
            "x",
            "--kind",
            "rbd",
            "--ceph-pool",
            POOL,
            "--adopt",
        ],
    ] {
        let refused = run(stand.configured(extant().args(words)));
        assert_eq!(refused.code, Some(2), "{refused}");
    }
    let socket = stand.work.path().join("socket");
    let mut serve = extant();
    serve.args(["serve", "--pool", "cloud", "data", "--socket"]);
    let running = Running::start(stand.configured(serve.arg(&socket)));
    crate::support::wait_until("the socket", || socket.exists());
    let uri = format!("nbd+unix:///data?socket={}", socket.display());
    let mut write = command::tool("qemu-io");
    write.args(["-f", "raw", "-c", "write -P 5 1M 64k", "-c", "flush"]);
    command::must(write.arg(&uri));
    let refused = stand.run(&["vol", "wipe", "data"]);
    assert!(refused.stderr.contains("client."), "{refused}");
    stand.run(&["vol", "create", "new", "1MiB"]).success();
    let (answer, _) = running.stop(Signal::TERM);
    assert_eq!(answer.code, Some(0), "{answer}");
    let data = stand.read("data").unwrap();
    let at = MIB as usize;
    assert!(data[at..at + 65536].iter().all(|&byte| byte == 5));
    assert!(data[..at] == stand.content[..at]);
    stand.run(&["vol", "delete", "data", "--wipe"]).success();
    assert_eq!(
        stand.rbd(&["ls"]).lines().collect::<Vec<_>>(),
        ["new", "old"]
    );
}

#[test]
fn job_is_cancelled_by_another_process_and_leaves_no_image() {
    require!(Ceph::requirement());
    let stand = Stand::new("stopped");
    let mut create = stand.command(&["vol", "create", "big", "256MiB", "--rate", "8M"]);
    let running = Running::start(&mut create);
    let listed = || stand.run(&["job", "list", "--json"]).success();
    crate::support::wait_until("the job at work", || {
        listed().stdout.contains("\"running\"")
    });
    sleep(Duration::from_millis(300));
    let started = Instant::now();
    stand.run(&["job", "cancel", "1"]).success();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let (answer, _) = running.stop(Signal::TERM);
    assert_ne!(answer.code, Some(0), "{answer}");
    assert_eq!(stand.rbd(&["ls"]).trim(), "");
}

#[test]
fn source_of_a_killed_copy_is_free_at_once() {
    require!(Ceph::requirement());
    let stand = Stand::new("readers");
    stand.reset();
    let words = ["vol", "clone", "data", "new", "--method", "copy"];
    let running = Running::start(stand.command(&words).args(["--rate", "6M"]));
    crate::support::wait_until("the copy", || {
        let status = stand.rbd(&["status", "data"]);
        status.contains("watcher=")
    });
    sleep(Duration::from_millis(500));
    running.stop(Signal::KILL);
    let found = stand.run(&["pool", "refresh", "--json"]).success();
    let id = found.number("/interrupted/0/job").to_string();
    stand.run(&["job", "resume", &id]).success();
    assert_eq!(stand.read("new").as_ref(), Some(&stand.content));
    stand.run(&["vol", "delete", "data"]).success();
}

#[test]
fn volume_of_a_killed_server_is_free_at_once() {
    require!(Ceph::requirement());
    let stand = Stand::new("servers");
    stand.reset();
    let mut serve = extant();
    serve.args(["serve", "--pool", "cloud", "data", "--socket"]);
    serve.arg(stand.work.path().join("socket"));
    let running = Running::start(stand.configured(&mut serve));
    crate::support::wait_until("the server", || stand.work.path().join("socket").exists());
    let refused = stand.run(&["vol", "delete", "data"]);
    assert!(refused.stderr.contains("client."), "{refused}");
    running.stop(Signal::KILL);
    stand.run(&["vol", "delete", "data"]).success();
    assert_eq!(stand.rbd(&["ls"]).trim(), "old");
}
