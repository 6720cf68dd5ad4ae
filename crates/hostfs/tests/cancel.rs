//! A cancel at every possible point: nothing leaks, nothing is lost.
//!
//! The token is cancelled from inside the progress callback, at the first call,
//! then at the second, and so on, until a run gets through: every point where an
//! operation reports progress is a point where it is stopped once.

use std::cell::Cell;
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use extant_hostfs::{CreateOptions, MaterializeOptions, OnFailure, Pace, create, materialize};
use extant_space::{CancelToken, Control, ErrorKind, Phase, Progress, Result};
use extant_testkit::faulty::{Faults, Faulty};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{oracle, require, requires};

/// Slow enough that progress is reported dozens of times.
const PACE: Pace = Pace::Limit(NonZeroU64::new(200 << 20).unwrap());

/// Runs `operation` with a token that is cancelled at the `point`-th progress, 0 being before
/// the start.
fn run_until<T>(point: usize, operation: impl Fn(Control<'_>) -> Result<T>) -> Result<T> {
    let cancel = CancelToken::new();
    let seen = Cell::new(0);
    if point == 0 {
        cancel.cancel();
    }
    let sink = |_: Progress| {
        seen.set(seen.get() + 1);
        if seen.get() == point {
            cancel.cancel();
        }
    };
    operation(Control::new(&cancel, &sink))
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

#[test]
fn create_cancelled_at_any_point_leaves_nothing() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Tmpfs] {
        require!(requires::root(), filesystem.requirement());
        let scratch = Scratch::new(filesystem, 512 << 20);
        let path = scratch.path().join("file");
        let mut options = CreateOptions::new(24 << 20);
        options.pace = PACE;
        let points = (0..)
            .find(
                |&point| match run_until(point, |control| create(&path, &options, control)) {
                    Ok(_) => true,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                        assert_eq!(entries(scratch.path()), [""; 0], "after point {point}");
                        false
                    }
                },
            )
            .unwrap();
        assert!(points > 4, "{filesystem}: only {points} points were tried");
        assert_eq!(entries(scratch.path()), ["file"]);
    }
}

#[test]
fn create_cancelled_and_kept_resumes_where_it_stopped() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 512 << 20);
    let path = scratch.path().join("file");
    let mut options = CreateOptions::new(24 << 20);
    options.pace = PACE;
    options.on_failure = OnFailure::KeepPartial;
    let error = run_until(4, |control| create(&path, &options, control)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(entries(scratch.path()), [".file.extant-partial"]);
    let report = run_until(usize::MAX, |control| create(&path, &options, control)).unwrap();
    assert!(report.resumed_bytes > 0);
    assert_eq!(report.resumed_bytes + report.written_bytes, 24 << 20);
    assert_eq!(entries(scratch.path()), ["file"]);
    assert!(oracle::filefrag(&path).is_extant());
}

#[test]
fn materialize_cancelled_at_any_point_keeps_data_and_resumes() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 512 << 20);
    let path = scratch.path().join("file");
    let file = File::create(&path).unwrap();
    file.set_len(24 << 20).unwrap();
    for index in 0..12u64 {
        file.write_all_at(&[index as u8 + 1; 100_000], ((index * 2) << 20) + 777)
            .unwrap();
    }
    drop(file);
    let before = oracle::sha256(&path);
    let options = MaterializeOptions {
        pace: PACE,
        ..MaterializeOptions::default()
    };
    let mut zeroed_before = 0;
    for point in 0.. {
        let result = run_until(point, |control| materialize(&path, &options, control));
        assert_eq!(oracle::sha256(&path), before, "after point {point}");
        match result {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
            Ok(report) => {
                assert!(report.already_written_bytes >= zeroed_before);
                break;
            }
        }
        zeroed_before = oracle::filefrag(&path).bytes(extant_space::ExtentState::Written);
    }
    assert!(oracle::filefrag(&path).is_extant());
}

#[test]
fn cancel_is_answered_while_the_disk_is_slow_to_sync() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(
        64 << 20,
        Faults {
            sync_latency: Duration::from_secs(30),
            ..Faults::default()
        },
    );
    let path = fuse.path().join("file");
    let cancel = CancelToken::new();
    let sink = |progress: Progress| {
        if progress.phase == Phase::Sync {
            let cancel = cancel.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(200));
                cancel.cancel();
            });
        }
    };
    let started = Instant::now();
    let control = Control::new(&cancel, &sink);
    let mut options = CreateOptions::new(1 << 20);
    // FUSE keeps the inode locked during a sync, so a removal would wait.
    options.on_failure = OnFailure::KeepPartial;
    let error = create(&path, &options, control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(entries(fuse.path()), [".file.extant-partial"]);
}
