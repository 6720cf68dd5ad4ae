//! Every case on both mounts.

use std::fs;
use std::path::Path;

use extant_testkit::{require, requires};

use crate::cases::{Case, Expect, all};
use crate::mounts::{Ours, Theirs, needs};
use crate::notes::Notes;

const MEBIBYTES: u64 = 64;

fn run(case: &Case, mount: &Path) -> Vec<String> {
    let directory = mount.join(case.name.replace(' ', "-"));
    fs::create_dir(&directory).unwrap();
    let mut notes = Notes::new(directory);
    (case.run)(&mut notes);
    notes.lines()
}

/// Differences, line by line.
fn difference(ours: &[String], theirs: &[String]) -> String {
    let mut shown = String::new();
    for index in 0..ours.len().max(theirs.len()) {
        let none = String::from("(nothing)");
        let (a, b) = (
            ours.get(index).unwrap_or(&none),
            theirs.get(index).unwrap_or(&none),
        );
        if a != b {
            shown.push_str(&format!("  ours:   {a}\n  kernel: {b}\n"));
        }
    }
    shown
}

fn compare(options: &str, is_written_back: bool) {
    let [a, b, c, d, e, f] = needs();
    require!(
        a,
        b,
        c,
        d,
        e,
        f,
        requires::tool("perl"),
        requires::tool("setfacl"),
        requires::tool("setfattr")
    );
    let ours = Ours::new(MEBIBYTES, options);
    let theirs = Theirs::new(MEBIBYTES);
    let only = std::env::var("EXTANT_MOUNT_CASE").ok();
    let mut wrong = String::new();
    for case in all() {
        if only.as_ref().is_some_and(|only| only != case.name) {
            continue;
        }
        ours.progress();
        let (a, b) = (run(case, ours.path()), run(case, theirs.path()));
        let shown = difference(&a, &b);
        let may_differ = match case.expect {
            Expect::Same => false,
            Expect::Limit => true,
            Expect::LimitOfWriteback => is_written_back,
        };
        match (may_differ, shown.is_empty()) {
            (false, false) => wrong.push_str(&format!("{}:\n{shown}", case.name)),
            (true, true) => wrong.push_str(&format!("{}: a limit that is none\n", case.name)),
            _ => {}
        }
    }
    ours.end();
    assert!(
        wrong.is_empty(),
        "with {options}:\n{wrong}(one case alone: EXTANT_MOUNT_CASE=\"NAME\")"
    );
}

#[test]
fn calls_answer_as_those_of_the_kernel_with_a_writeback_cache() {
    compare("allow_other,suid,dev,writeback", true);
}

#[test]
fn calls_answer_as_those_of_the_kernel_without_a_writeback_cache() {
    compare("allow_other,suid,dev,no_writeback", false);
}
