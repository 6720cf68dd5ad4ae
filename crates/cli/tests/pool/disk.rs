//! Pools of kind `disk` through the command: definition, `kill -9` at random moments, serving.
//!
//! After each kill every name has its whole content; after a refresh sgdisk finds no problem in the
//! table; and a resumed or cancelled job leaves nothing. `EXTANT_KILLS` is the number of kills.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use extant_testkit::requires::{root, tool};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, seeds};
use rustix::process::Signal;

use crate::support::{Answer, MIB, Random, Running, extant, noise, run};

const DISK_BYTES: u64 = 96 * MIB;
const SIZE: u64 = 8 * MIB;

struct Stand {
    /// The disk, unless that is the file below.
    device: Option<LoopDevice>,
    work: Workdir,
    content: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Clone,
    Upload,
    Replace,
    Grow,
    Wipe,
    Delete,
}

const ALL: [Operation; 7] = [
    Operation::Create,
    Operation::Clone,
    Operation::Upload,
    Operation::Replace,
    Operation::Grow,
    Operation::Wipe,
    Operation::Delete,
];

impl Stand {
    fn new() -> Self {
        Self::on(|_| None)
    }

    fn on(attach: impl FnOnce(&Path) -> Option<LoopDevice>) -> Self {
        let mut stand = Self {
            device: None,
            work: Workdir::new(),
            content: noise(7, SIZE as usize),
        };
        let disk = File::create(stand.disk()).unwrap();
        disk.set_len(DISK_BYTES).unwrap();
        stand.device = attach(&stand.disk());
        let mut define = extant();
        define.args(["pool", "define", "bare", "--kind", "disk", "--path"]);
        let place = stand.device.as_ref().map(LoopDevice::path);
        let place = place.map_or_else(|| stand.disk(), Path::to_path_buf);
        run(stand.configured(define.arg(place))).success();
        // Data of earlier volumes.
        let old = vec![0xee; (DISK_BYTES - 2 * MIB) as usize];
        disk.write_all_at(&old, MIB).unwrap();
        fs::write(stand.source(), &stand.content).unwrap();
        fs::write(
            stand.work.path().join("short"),
            &stand.content[..MIB as usize],
        )
        .unwrap();
        stand
    }

    fn disk(&self) -> PathBuf {
        self.work.path().join("disk.img")
    }

    fn source(&self) -> PathBuf {
        self.work.path().join("source")
    }

    fn configured<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.arg("--config-dir").arg(self.work.path())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = extant();
        command.args(&words[..2]).arg("bare").args(&words[2..]);
        self.configured(&mut command);
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Answer {
        run(&mut self.command(words))
    }

    /// `data` and `old` have content, and there is no other volume.
    fn reset(&self) {
        let source = self.source();
        let short = self.work.path().join("short");
        if self.read("new").is_some() {
            self.run(&["vol", "delete", "new"]).success();
        }
        for (volume, file) in [("data", &source), ("old", &short)] {
            let content = fs::read(file).unwrap();
            if self.read(volume) != Some(content) {
                let file = file.to_str().unwrap();
                self.run(&["vol", "upload", volume, file, "--force"])
                    .success();
            }
        }
    }

    /// Leaves a gap with data behind `old`.
    fn make_gap(&self) {
        let mut nine = self.content.clone();
        nine.resize(9 * MIB as usize, 0xee);
        let file = self.work.path().join("nine");
        fs::write(&file, nine).unwrap();
        let file = file.to_str().unwrap();
        self.run(&["vol", "upload", "old", file, "--force"])
            .success();
        self.run(&["vol", "resize", "old", "1MiB", "--shrink"])
            .success();
    }

    /// The content of a volume, read past the pool.
    fn read(&self, volume: &str) -> Option<Vec<u8>> {
        let printed = command::text(command::tool("sgdisk").arg("-p").arg(self.disk())).unwrap();
        let rows = printed
            .lines()
            .skip_while(|line| !line.starts_with("Number"));
        let row = rows
            .skip(1)
            .find(|row| row.ends_with(&format!(" {volume}")))?;
        let sectors: Vec<u64> = row
            .split_whitespace()
            .skip(1)
            .take(2)
            .map(|word| word.parse().unwrap())
            .collect();
        let mut bytes = vec![0; ((sectors[1] - sectors[0] + 1) * 512) as usize];
        let disk = File::open(self.disk()).unwrap();
        disk.read_exact_at(&mut bytes, sectors[0] * 512).unwrap();
        Some(bytes)
    }

    fn start(&self, operation: Operation) -> Running {
        let source = self.source();
        let source = source.to_str().unwrap();
        let words: Vec<&str> = match operation {
            Operation::Create => vec!["vol", "create", "new", "8MiB", "--verify", "full"],
            Operation::Clone => vec!["vol", "clone", "data", "new"],
            Operation::Upload => vec!["vol", "upload", "new", source],
            Operation::Replace => vec!["vol", "upload", "old", source, "--force"],
            Operation::Grow => vec!["vol", "resize", "old", "9MiB"],
            Operation::Wipe => vec!["vol", "wipe", "data"],
            Operation::Delete => vec!["vol", "delete", "data"],
        };
        let mut command = self.command(&words);
        if operation != Operation::Delete {
            command.args(["--rate", "64M"]);
        }
        Running::start(&mut command)
    }

    #[track_caller]
    fn check_nothing_is_half(&self, operation: Operation, is_done: bool) {
        let zeros = vec![0; SIZE as usize];
        let (new, data, old) = (
            self.read("new"),
            self.read("data"),
            self.read("old").unwrap(),
        );
        let short = &self.content[..MIB as usize];
        match operation {
            Operation::Create => assert!(new.is_none() && !is_done || new == Some(zeros)),
            Operation::Clone | Operation::Upload => {
                assert!(new.is_none() && !is_done || new.as_ref() == Some(&self.content));
            }
            Operation::Replace => assert!(old == short && !is_done || old == self.content),
            Operation::Grow => {
                let mut grown = short.to_vec();
                grown.resize(9 * MIB as usize, 0);
                assert!(old == short && !is_done || old == grown);
            }
            Operation::Wipe if is_done => assert!(data.as_ref() == Some(&zeros)),
            Operation::Delete => {
                assert!(data.is_none() || !is_done && data.as_ref() == Some(&self.content))
            }
            Operation::Wipe => {}
        }
        if !matches!(operation, Operation::Wipe | Operation::Delete) {
            assert!(data.as_ref() == Some(&self.content), "{operation:?}");
        }
    }
}

#[test]
fn process_killed_at_any_moment_leaves_no_half_partition() {
    require!(tool("sgdisk"));
    let kills = seeds::number("EXTANT_KILLS", 60) as usize;
    let mut random = Random::seeded("--test pool disk");
    let stand = Stand::new();
    let mut interrupted = 0;
    for round in 0..kills {
        stand.reset();
        let operation = ALL[round % ALL.len()];
        if operation == Operation::Grow {
            stand.make_gap();
        }
        let running = stand.start(operation);
        sleep(Duration::from_millis(random.below(match operation {
            Operation::Delete => 20,
            _ => 220,
        })));
        let (answer, _) = running.stop(Signal::KILL);
        let was_killed = answer.signal.is_some();
        assert!(was_killed || answer.code == Some(0), "{answer}");
        stand.check_nothing_is_half(operation, !was_killed);
        let found = stand.run(&["pool", "refresh", "--json"]).success();
        let said = command::text(command::tool("sgdisk").arg("-v").arg(stand.disk())).unwrap();
        assert!(said.contains("No problems found"), "{operation:?}: {said}");
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
        }
        let info = stand.run(&["pool", "info", "--json"]).success();
        assert_eq!(info.number("/jobs"), 0, "{info}");
        assert_eq!(info.number("/space/reserved_bytes"), 0, "{info}");
        let promised = info.number("/space/promised_bytes");
        assert_eq!(info.number("/space/allocated_bytes"), promised, "{info}");
    }
    seeds::counted(kills, "kills");
    eprintln!("{interrupted} jobs were interrupted");
    assert!(interrupted > 0, "no job was killed at work");
}

#[test]
fn disk_is_defined_with_its_words_and_deleted_volumes_are_wiped() {
    require!(tool("sgdisk"));
    let stand = Stand::new();
    stand.reset();
    let info = stand.run(&["pool", "info"]).success();
    for word in ["bare: disk, 2 volumes", "largest gap"] {
        assert!(info.stdout.contains(word), "{info}");
    }
    let refused = stand.run(&["vol", "create", "a", "1MiB", "--preallocation", "falloc"]);
    assert!(refused.stderr.contains("preallocation falloc"), "{refused}");
    stand.run(&["vol", "delete", "data", "--wipe"]).success();
    let disk = fs::read(stand.disk()).unwrap();
    let start = &stand.content[..4096];
    let copies = disk.chunks(4096).filter(|chunk| *chunk == start).count();
    assert_eq!(copies, 1, "the volume old is left");
    let mut second = extant();
    second.args(["pool", "define", "second", "--kind", "disk", "--path"]);
    let state = stand.work.path().join("state");
    second.arg(stand.disk()).arg("--state").arg(&state);
    let other = stand.work.directory("other");
    let refused = run(second.arg("--config-dir").arg(other));
    assert!(refused.stderr.contains("--adopt"), "{refused}");
    let mut second = extant();
    second.args(["pool", "define", "second", "--kind", "disk", "--adopt"]);
    let refused = run(stand.configured(second.arg(stand.disk())));
    assert!(
        refused.stderr.contains("the pool 'bare' already"),
        "{refused}"
    );
    for words in [
        ["--kind", "dir", "--adopt"],
        ["--kind", "disk", "--directory=d"],
    ] {
        let mut define = extant();
        define
            .args(["pool", "define", "third"])
            .arg(stand.disk())
            .args(words);
        let refused = run(stand.configured(&mut define));
        assert_eq!(refused.code, Some(2), "{refused}");
    }
}

#[test]
fn volume_of_a_disk_is_served_and_kept_from_jobs_meanwhile() {
    require!(tool("sgdisk"), tool("qemu-img"), tool("qemu-io"));
    served_volume_is_kept_from_jobs(&Stand::new());
}

#[test]
fn volume_with_a_device_of_its_own_is_served_and_kept_from_jobs_meanwhile() {
    require!(root(), tool("sgdisk"), tool("qemu-img"), tool("qemu-io"));
    served_volume_is_kept_from_jobs(&Stand::on(|disk| Some(LoopDevice::attach(disk))));
}

#[track_caller]
fn served_volume_is_kept_from_jobs(stand: &Stand) {
    stand.reset();
    let socket = stand.work.path().join("socket");
    let mut serve = extant();
    serve
        .args(["serve", "--pool", "bare", "data", "--socket"])
        .arg(&socket);
    let running = Running::start(stand.configured(&mut serve));
    crate::support::wait_until("the socket", || socket.exists());
    let uri = format!("nbd+unix:///data?socket={}", socket.display());
    let mut write = command::tool("qemu-io");
    write
        .args(["-f", "raw", "-c", "write -P 5 1M 64k", "-c", "flush"])
        .arg(&uri);
    command::must(&mut write);
    let refused = stand.run(&["vol", "wipe", "data"]);
    assert!(refused.stderr.contains("works on the volume"), "{refused}");
    stand.run(&["vol", "create", "new", "1MiB"]).success();
    let (answer, _) = running.stop(Signal::TERM);
    assert_eq!(answer.code, Some(0), "{answer}");
    let data = stand.read("data").unwrap();
    let at = MIB as usize;
    assert!(data[at..at + 65536].iter().all(|&byte| byte == 5));
    assert!(data[..at] == stand.content[..at]);
    stand.run(&["vol", "wipe", "data"]).success();
}
