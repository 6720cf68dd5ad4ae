//! `extant fs stats` of a mount, and the allocator's options at the mount and by a remount.

use std::fs::File;
use std::path::Path;

use extant_testkit::require;
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;

use crate::image::Image;
use crate::stand::{Stand, can_mount};
use crate::support::{Answer, extant, run};

const KIB: u64 = 1024;

fn stats(directory: &Path) -> Value {
    let mut command = extant();
    command.args(["fs", "stats", "--json"]).arg(directory);
    run(&mut command).success().json()
}

#[track_caller]
fn number(stats: &Value, pointer: &str) -> u64 {
    let value = stats.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no number {pointer}: {stats:#}"))
}

fn remount(options: &str, words: &[&Path]) -> Answer {
    let mut command = extant();
    command.args(["mount", "-o", options]).args(words);
    run(&mut command)
}

/// Groups that the criteria considered, and those that were scanned.
fn groups(stats: &Value) -> (u64, u64) {
    let considered = [
        "p2_aligned",
        "goal_fast",
        "best_avail",
        "goal_slow",
        "any_free",
    ]
    .map(|criterion| {
        number(
            stats,
            &format!("/mballoc/cr_{criterion}_stats/groups_considered"),
        )
    });
    (
        considered.iter().sum(),
        number(stats, "/mballoc/groups_scanned"),
    )
}

/// A stand with 8 groups, half of which are full.
fn half_full(options: &str) -> Stand {
    let stand = Stand::of(Image::of("-t ext4 -b 1024 -J size=4", 64));
    stand.mount(&["-o", options]).success();
    let large = File::create(stand.path("large")).unwrap();
    fallocate(&large, FallocateFlags::empty(), 0, 32 << 20).unwrap();
    stand
}

/// Groups that allocations of new files add to those considered and scanned. Files of consecutive
/// numbers begin their search at every stream goal.
fn searches(stand: &Stand, name: &str) -> (u64, u64) {
    let before = groups(&stats(&stand.directory));
    for index in 0..8 {
        let file = File::create(stand.path(format!("{name}{index}"))).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 64 * KIB).unwrap();
    }
    let after = groups(&stats(&stand.directory));
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn linear_scan_considers_more_groups_than_it_scans_until_a_remount() {
    require!(can_mount());
    let stand = half_full("mb_optimize_scan=0");
    assert_eq!(number(&stats(&stand.directory), "/mb_optimize_scan"), 0);
    let (considered, scanned) = searches(&stand, "linear");
    assert!(considered > scanned, "{considered} of {scanned}");
    remount("remount,mb_optimize_scan=1", &[&stand.directory]).success();
    assert_eq!(number(&stats(&stand.directory), "/mb_optimize_scan"), 1);
    let (considered, scanned) = searches(&stand, "indexed");
    assert!(scanned > 0);
    assert_eq!(considered, scanned);
    remount(
        "remount,mb_optimize_scan=0",
        &[&stand.image.path, &stand.directory],
    )
    .success();
    let (considered, scanned) = searches(&stand, "again");
    assert!(considered > scanned, "{considered} of {scanned}");
    stand.end();
}

#[test]
fn file_that_grows_gets_reserved_space_as_the_option_says() {
    require!(can_mount());
    for (options, first, then, second) in [
        ("noreservation", false, "reservation", true),
        ("reservation", true, "noreservation", false),
    ] {
        let stand = Stand::mounted(64, &["-o", options]);
        let grows = |name: &str| {
            let before = number(&stats(&stand.directory), "/mballoc/preallocated");
            let file = File::create(stand.path(name)).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, 4 * KIB).unwrap();
            number(&stats(&stand.directory), "/mballoc/preallocated") > before
        };
        assert_eq!(stats(&stand.directory)["reservation"], first, "{options}");
        assert_eq!(grows("one"), first, "{options}");
        remount(&format!("remount,{then}"), &[&stand.directory]).success();
        assert_eq!(stats(&stand.directory)["reservation"], second, "{then}");
        assert_eq!(grows("two"), second, "{then}");
        stand.end();
    }
}

#[test]
fn counters_are_what_was_done() {
    require!(can_mount());
    let stand = Stand::mounted(64, &[]);
    let opened = stats(&stand.directory);
    let file = File::create(stand.path("file")).unwrap();
    for block in 0..20 {
        fallocate(&file, FallocateFlags::empty(), block * 4 * KIB, 4 * KIB).unwrap();
    }
    for _ in 0..3 {
        file.set_modified(std::time::SystemTime::now()).unwrap();
        file.sync_all().unwrap();
    }
    let done = stats(&stand.directory);
    let more = |pointer: &str| number(&done, pointer) - number(&opened, pointer);
    assert_eq!(more("/mballoc/reqs"), 20);
    assert_eq!(more("/mballoc/success"), 20);
    assert_eq!(more("/mballoc/allocated"), 20);
    assert!(more("/jbd2/transactions") >= 1);
    assert!(more("/jbd2/requested") <= more("/jbd2/transactions"));
    assert!(more("/jbd2/handles") >= 20);
    assert!(more("/jbd2/blocks_logged") > more("/jbd2/blocks"));
    assert!(number(&done, "/jbd2/log_used_blocks") <= number(&done, "/jbd2/log_blocks"));
    assert!(more("/cache/hits") > 0);
    assert_eq!(number(&done, "/mballoc/groups"), 1);

    let mut command = extant();
    let text = run(command.args(["fs", "stats"]).arg(&stand.directory)).success();
    for line in [
        "options: mb_optimize_scan=1,reservation",
        "mballoc:",
        "\treqs: 20",
        "\tcr_p2_aligned_stats:",
        "\tbuddies_generated: 1/1",
        "\t\thits: ",
        "average:",
        "cache:",
    ] {
        let has = text.stdout.lines().any(|found| found.starts_with(line));
        assert!(has, "no {line:?}: {text}");
    }
    let transactions = number(&stats(&stand.directory), "/jbd2/transactions");
    let line = format!("{transactions} transactions (");
    assert!(text.stdout.contains(&line), "{line}: {text}");
    drop(file);
    stand.umount().success();
    stand.mount(&["-o", "ro"]).success();
    assert_eq!(stats(&stand.directory)["jbd2"], Value::Null);
    stand.end();
}

#[test]
fn wrong_options_and_places_are_refused_by_name() {
    require!(can_mount());
    let stand = Stand::new(32);
    stand
        .mount(&["-o", "mb_optimize_scan=2"])
        .refused(2, &["`mb_optimize_scan=2`", "0 or 1"]);
    let work = stand.image.work.path();
    remount("remount,mb_optimize_scan=0", &[work]).refused(5, &["not on a mount of extant mount"]);
    stand.mount(&[]).success();
    let directory = stand.directory.as_path();
    for (options, word) in [
        ("remount,mb_optimize_scan=yes", "`mb_optimize_scan=yes`"),
        ("remount,nosuch", "`nosuch`"),
        ("remount,mb_optimize_scan=0,ro", "`ro`"),
    ] {
        remount(options, &[directory]).refused(2, &[word]);
    }
    assert_eq!(number(&stats(directory), "/mb_optimize_scan"), 1);
    remount("ro", &[directory]).refused(2, &["DIR"]);
    run(extant().args(["fs", "stats"]).arg(work)).refused(5, &["not on a mount of extant mount"]);
    let json = run(extant().args(["fs", "stats", "--json"]).arg(work));
    json.refused_json(5, "unsupported");
    stand.end();
}
