//! Failing system calls: each call of a command fails once, with each error it can return.
//!
//! strace lists the calls of a run, and fails one of them in each further run ([`calls`]). A
//! command ([`scenes`]) then ends well, or with one line that says why and with everything as it
//! was; without the failure it succeeds afterwards, so nothing is left in its way.
//!
//! `EXTANT_EXHAUSTIVE=0/1` runs all; CI runs a shard, another one each day.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod scenes;

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use extant_testkit::exhaustive::{Shard, Tally, on_all_processors, repeat};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use calls::Failure;
use scenes::{SCENES, Scene};
use support::{Answer, MIB, run};

/// The share of the failures that one day's run of CI takes.
const SHARDS: usize = 40;
/// Lines of a report: defects repeat.
const REPORTED: usize = 30;

/// The defect of a run in which a call failed, if it has one.
fn defect(scene: &Scene, failure: &Failure, dir: &Path) -> Option<String> {
    (scene.prepare)(dir);
    let answer = run(&mut failure.inject(&(scene.command)(dir)));
    let panics = answer.stderr.contains("panicked");
    match answer.code {
        _ if panics => return Some(format!("a panic: {answer}")),
        Some(0) => {
            let wrong = (scene.done)(dir).err();
            return wrong.map(|wrong| format!("success, but {wrong}: {answer}"));
        }
        // The dynamic loader's.
        Some(127) if answer.stderr.contains("loading shared libraries") => return None,
        Some(1..=5) => {}
        _ => return Some(format!("no exit status of the program: {answer}")),
    }
    if let Some(wrong) = wrong_words(&answer) {
        return Some(format!("{wrong}: {answer}"));
    }
    // The call may have been the removal of a file.
    if !failure.keeps_files()
        && let (Err(changed), Err(wanted)) = ((scene.unchanged)(dir), (scene.done)(dir))
    {
        return Some(format!("{changed}, and not complete, {wanted}: {answer}"));
    }
    if (scene.done)(dir).is_ok() {
        return None;
    }
    let again = run(&mut (scene.command)(dir));
    if again.code != Some(0) {
        return Some(format!("the next run fails: {again}\nafter {answer}"));
    }
    let wrong = (scene.done)(dir).err();
    wrong.map(|wrong| format!("after the next run {wrong}: {again}\nafter {answer}"))
}

fn wrong_words(answer: &Answer) -> Option<&'static str> {
    let mut lines = answer.stderr.lines();
    let is_one = lines
        .next()
        .is_some_and(|line| line.starts_with("extant: "));
    (!is_one || lines.next().is_some()).then_some("more or less than one line of the program")
}

#[test]
fn each_call_of_a_command_fails_once_with_each_error() {
    require!(
        requires::root(),
        requires::tool("strace"),
        requires::tool("qemu-img"),
        requires::tool("mkfs.ext4")
    );
    let bytes = 256 * MIB;
    let filesystem = Scratch::builder(Filesystem::Ext4, bytes)
        .memory(2 * bytes)
        .build();
    let mut failures = Vec::new();
    for scene in SCENES {
        let dir = filesystem.path().join(scene.name);
        fs::create_dir(&dir).unwrap();
        (scene.prepare)(&dir);
        let calls = calls::of(&(scene.command)(&dir));
        (scene.done)(&dir).unwrap_or_else(|wrong| panic!("{}: {wrong}", scene.name));
        fs::remove_dir_all(&dir).unwrap();
        println!("{}: {} failures", scene.name, calls.len());
        failures.extend(calls.into_iter().map(|failure| (scene, failure)));
    }
    let numbers = Shard::wanted(SHARDS).numbers(failures.len());
    let defects = Mutex::new(Vec::new());
    let sum = on_all_processors(
        &numbers,
        Tally::default,
        |tally, number| {
            let (scene, failure) = &failures[number];
            let dir = filesystem.path().join(number.to_string());
            fs::create_dir(&dir).unwrap();
            if let Some(defect) = defect(scene, failure, &dir) {
                let words = repeat(number, failures.len());
                let defect = format!("{}, {failure}: {defect}\n{words}", scene.name);
                defects.lock().unwrap().push(defect);
            }
            fs::remove_dir_all(&dir).unwrap();
            tally.sequences += 1;
        },
        |tally| *tally,
    );
    println!(
        "failing calls: {} of {}, {:.1} s",
        sum.sequences,
        failures.len(),
        sum.took.as_secs_f64()
    );
    let defects = defects.into_inner().unwrap();
    let shown = defects.iter().take(REPORTED).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join("\n\n");
    assert!(defects.is_empty(), "{} defects:\n{shown}", defects.len());
}
