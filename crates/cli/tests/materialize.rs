//! `extant materialize` as a user runs it: ranges, messages, figures, and a second run without
//! work.
//!
//! That data is preserved on every file system is a property test of the library
//! (crates/hostfs/tests/materialize.rs); trouble and signals have tests of their own.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use extant_space::{ByteRange, ExtentState};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle, require};
use serde_json::Value;

use support::{KIB, MIB, create, extant, materialize, noise, run};

const SIZE: u64 = 8 * MIB;

/// Data, a hole, unwritten space with data in it, and a hole up to an odd end.
fn mixed_file(file: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize + 77];
    let out = fs::File::create(file).unwrap();
    out.set_len(bytes.len() as u64).unwrap();
    let mut fallocate = command::tool("fallocate");
    let words = ["--offset", "3MiB", "--length", "2MiB"];
    command::run(fallocate.args(words).arg(file)).unwrap();
    for (start, length) in [(0, 300_000), (3_500_000, 70_001), (6_000_000, 1)] {
        let data = noise(start as u64, length);
        out.write_all_at(&data, start as u64).unwrap();
        bytes[start..start + length].copy_from_slice(&data);
    }
    out.sync_all().unwrap();
    bytes
}

#[test]
fn whole_file_is_materialized_and_keeps_bytes_size_and_owner() {
    let filesystems = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Overlay];
    for filesystem in filesystems {
        require!(filesystem.requirement());
        let scratch = Scratch::new(filesystem, filesystem.size_bytes_min().max(64 * MIB));
        let file = scratch.path().join("a");
        let bytes = mixed_file(&file);
        let before = fs::metadata(&file).unwrap();
        let written = oracle::filefrag(&file).bytes(ExtentState::Written);
        let answer = materialize(&file, &["--json"]).success();
        assert!(
            oracle::filefrag(&file).is_extant(),
            "{filesystem}: {answer}"
        );
        assert!(fs::read(&file).unwrap() == bytes, "{filesystem}");
        let after = fs::metadata(&file).unwrap();
        let facts = |found: &fs::Metadata| (found.ino(), found.len(), found.mode(), found.uid());
        assert_eq!(facts(&after), facts(&before));
        assert_eq!(answer.number("/already_written_bytes"), written, "{answer}");
        let zeroed = bytes.len() as u64 - written;
        assert_eq!(answer.number("/zeroed_bytes"), zeroed, "{answer}");
    }
}

#[test]
fn range_is_materialized_and_the_rest_unchanged() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    for (start, length) in [(MIB, 512 * KIB), (MIB + 5, 70_000), (7_999_999, MIB)] {
        let file = scratch.path().join(start.to_string());
        let bytes = mixed_file(&file);
        let before = oracle::filefrag(&file).with_holes();
        let (from, many) = (start.to_string(), length.to_string());
        materialize(&file, &["-o", &from, "-l", &many]).success();
        let range = ByteRange::new(start, (start + length).min(bytes.len() as u64));
        let after = oracle::filefrag(&file).with_holes();
        let states = |extents: &[extant_space::Extent], range: ByteRange, state| {
            let parts = extents.iter().filter(|extent| extent.state == state);
            let parts = parts.filter_map(|extent| extent.clip(range));
            parts.map(|extent| extent.logical.len()).sum::<u64>()
        };
        assert_eq!(states(&after, range, ExtentState::Written), range.len());
        // Whole blocks at the edges may have become real, and nothing else.
        let outside = [
            ByteRange::new(0, start / 4096 * 4096),
            ByteRange::new(range.end().next_multiple_of(4096).min(SIZE), SIZE),
        ];
        for part in outside {
            for state in [ExtentState::Hole, ExtentState::Unwritten] {
                assert_eq!(
                    states(&after, part, state),
                    states(&before, part, state),
                    "{state} in {part:?}"
                );
            }
        }
        assert!(fs::read(&file).unwrap() == bytes);
    }
}

#[test]
fn second_run_has_nothing_to_do() {
    let work = Workdir::new();
    let file = work.path().join("a");
    create(&file, "4MiB", &["--preallocation", "off"]).success();
    let first = materialize(&file, &["--json"]).success();
    assert_eq!(first.number("/zeroed_bytes"), 4 * MIB);
    let before = fs::metadata(&file).unwrap();
    let second = materialize(&file, &["--json"]).success();
    assert_eq!(second.number("/zeroed_bytes"), 0, "{second}");
    assert_eq!(second.number("/already_written_bytes"), 4 * MIB);
    assert_eq!(second.json()["plan"], Value::Null);
    let after = fs::metadata(&file).unwrap();
    assert_eq!(before.mtime_nsec(), after.mtime_nsec());
}

#[test]
fn empty_file_and_empty_range_have_nothing_to_do() {
    let work = Workdir::new();
    let file = work.path().join("a");
    fs::write(&file, "").unwrap();
    materialize(&file, &[]).success();
    create(&file, "1MiB", &["--force", "--preallocation", "off"]).success();
    materialize(&file, &["-o", "1MiB"]).success();
    materialize(&file, &["-o", "5MiB", "-l", "1MiB"]).success();
    materialize(&file, &["-l", "0"]).success();
    assert_eq!(oracle::allocated_bytes(&file), 0);
    assert_eq!(fs::metadata(&file).unwrap().len(), MIB);
}

#[test]
fn text_and_progress_report_the_result() {
    let work = Workdir::new();
    let file = work.path().join("a");
    create(&file, "8MiB", &["--preallocation", "falloc"]).success();
    let mut command = extant();
    command.arg("materialize").arg(&file);
    let answer = run(command.args(["--progress", "json", "--rate", "8M"]));
    assert_eq!(answer.code, Some(0), "{answer}");
    let first = answer.stdout.lines().next().unwrap();
    assert!(first.contains("8 MiB zeroed and written"), "{answer}");
    let lines: Vec<Value> = answer
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert!(lines.len() >= 4, "{answer}");
    assert!(lines.iter().all(|line| line["event"] == "progress"));
    assert!(oracle::filefrag(&file).is_extant());
}
