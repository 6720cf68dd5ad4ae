//! Requests that wait in a queue whose threads are all held up.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use extant_testkit::{require, requires};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::shelf::ENDLESS;
use crate::stand::{Stand, can_mount, wait_for};

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
fn hold_up(stand: &Stand, cpu: usize, number: u64) -> Child {
    let file = stand.path(&format!("file-{number}"));
    fs::write(&file, "").unwrap();
    on_cpu(cpu, "fallocate")
        .args(["-l", &ENDLESS.to_string()])
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn request_behind_one_that_never_ends_is_answered_though_nobody_asks_again() {
    require!(
        can_mount(),
        requires::tool("fallocate"),
        requires::tool("taskset")
    );
    for (options, held_up) in [("threads=1", 1), ("threads=1,no_pin", 1), ("", 3)] {
        let stand = Stand::new(options);
        let cpu = first_cpu();
        let mut holders: Vec<_> = (0..held_up)
            .map(|number| hold_up(&stand, cpu, number))
            .collect();
        wait_for("the holders to be in their calls", || {
            stand.shelf.waiting.load(Ordering::SeqCst) == held_up
        });
        // One request each, in the same queue, and nothing else that could wake it.
        let mut others: Vec<_> = (0..4)
            .map(|number| {
                let mut mknod = on_cpu(cpu, "mknod");
                mknod.arg(stand.path(&format!("node-{number}"))).arg("p");
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
        wait_for("the server to be told", || {
            stand.shelf.waiting.load(Ordering::SeqCst) == 0
        });
        stand.end();
    }
}
