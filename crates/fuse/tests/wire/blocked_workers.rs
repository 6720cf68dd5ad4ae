//! Requests that wait in a queue whose threads are all held up, and threads that all wait for the
//! kernel.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use extant_testkit::{require, requires};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::fixture::{Fixture, can_mount, wait_for};
use crate::memory_fs::ENDLESS;

/// A program that stays on one CPU.
fn on_cpu(cpu: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), program]);
    command
}

fn first_cpu() -> usize {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .find(|&cpu| allowed.is_set(cpu))
        .unwrap()
}

/// A program that waits for its answer, at a file of its own.
fn hold_up(fixture: &Fixture, cpu: usize, number: u64) -> Child {
    let file = fixture.path(&format!("file-{number}"));
    fs::write(&file, "").unwrap();
    on_cpu(cpu, "fallocate")
        .args(["-l", &ENDLESS.to_string()])
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn request_behind_a_blocked_one_is_answered_without_further_requests() {
    require!(
        can_mount(),
        requires::tool("fallocate"),
        requires::tool("taskset")
    );
    for (options, held_up) in [("threads=1", 1), ("threads=1,no_pin", 1), ("", 3)] {
        let fixture = Fixture::new(options);
        let cpu = first_cpu();
        let mut holders: Vec<_> = (0..held_up)
            .map(|number| hold_up(&fixture, cpu, number))
            .collect();
        wait_for("the holders to be in their calls", || {
            fixture.memory_fs.waiting.load(Ordering::SeqCst) == held_up
        });
        // One request each, in the same queue, and nothing else that could wake it.
        let mut others: Vec<_> = (0..4)
            .map(|number| {
                let mut mknod = on_cpu(cpu, "mknod");
                mknod.arg(fixture.path(&format!("node-{number}"))).arg("p");
                mknod.spawn().unwrap()
            })
            .collect();
        for other in &mut others {
            assert!(other.wait().unwrap().success(), "{options}");
        }
        for holder in &mut holders {
            kill_process(Pid::from_child(holder), Signal::KILL).unwrap();
            holder.wait().unwrap();
        }
        wait_for("the server to be notified", || {
            fixture.memory_fs.waiting.load(Ordering::SeqCst) == 0
        });
        fixture.end();
    }
}

const PAGE: usize = 4096;

/// A page that is locked by a read that the server holds up, until the gate is opened.
struct HeldPage {
    reader: JoinHandle<()>,
}

impl HeldPage {
    fn new(fixture: &Fixture) -> Self {
        let path = fixture.path("held");
        fs::write(&path, [1; PAGE]).unwrap();
        let file = File::open(&path).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        fixture.memory_fs.gate.set_closed(true);
        let reader = thread::spawn(move || file.read_exact_at(&mut [0; 1], 0).unwrap());
        wait_for("the page to be locked", || {
            fixture.memory_fs.gate.waiting.load(Ordering::SeqCst) == 1
        });
        Self { reader }
    }

    /// Lets the read continue.
    fn end(self, fixture: &Fixture) {
        fixture.memory_fs.gate.set_closed(false);
        self.reader.join().unwrap();
    }
}

/// Threads that make one direct call each, on files of their own.
struct DirectCalls {
    files: Vec<File>,
    threads: Vec<JoinHandle<()>>,
    ended: Arc<AtomicU64>,
}

impl DirectCalls {
    /// Makes the files.
    fn new(fixture: &Fixture, count: u64) -> Self {
        let file = |number: u64| {
            let path = fixture.path(&format!("direct-{number}"));
            fs::write(&path, [1; PAGE]).unwrap();
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.custom_flags(OFlags::DIRECT.bits() as i32);
            options.open(path).unwrap()
        };
        Self {
            files: (0..count).map(file).collect(),
            threads: Vec::new(),
            ended: Arc::default(),
        }
    }

    fn start(&mut self, call: fn(&File)) {
        let start = |file: File| {
            let ended = Arc::clone(&self.ended);
            thread::spawn(move || {
                call(&file);
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        self.threads = std::mem::take(&mut self.files)
            .into_iter()
            .map(start)
            .collect();
    }

    fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    fn end(self) {
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn direct_write_is_answered_however_many_wait_for_an_invalidation() {
    require!(can_mount());
    let fixture = Fixture::new("no_writeback");
    // More than the kernel has in its background, which holds the read that they wait for if it is
    // one ahead.
    let (count, background) = (100, 64);
    let mut writes = DirectCalls::new(&fixture, count);
    let page = HeldPage::new(&fixture);
    writes.start(|file| file.write_all_at(&[2; PAGE], 0).unwrap());
    wait_for("all writes but those that may wait", || {
        writes.ended() > count - background
    });
    assert_eq!(fixture.memory_fs.gate.waiting.load(Ordering::SeqCst), 1);
    page.end(&fixture);
    writes.end();
    fixture.end();
}

#[test]
fn request_is_answered_however_many_wait_for_the_kernel_to_take_a_notice() {
    require!(can_mount());
    let fixture = Fixture::new("threads=1,no_writeback");
    let count = 80;
    let mut reads = DirectCalls::new(&fixture, count);
    let page = HeldPage::new(&fixture);
    reads.start(|file| file.read_exact_at(&mut [0; PAGE], 0).unwrap());
    wait_for("all reads to wait", || {
        fixture.memory_fs.gate.direct.load(Ordering::SeqCst) == count
    });
    assert_eq!(reads.ended(), 0);
    page.end(&fixture);
    reads.end();
    fixture.end();
}
