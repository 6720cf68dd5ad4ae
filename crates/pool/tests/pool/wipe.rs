//! Wipes that are interrupted and resumed.

use std::cell::Cell;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use extant_pool::{JobId, OnStop, PoolKind, WipeMethod};
use extant_space::{CancelToken, Control, ErrorKind, Phase, Progress};
use extant_testkit::require;
use extant_testkit::scratch::Filesystem;

use crate::both::{KINDS, Stand};
use crate::stand::{MIB, at_rate, wipe};

/// More than a piece of a wipe.
const SIZE: u64 = 320 * MIB;
/// Bytes made durable at a time.
const PIECE: u64 = 256 * MIB;

/// A volume `w` with content; its wipe was interrupted in the second piece; `mkfs` is for an image.
fn interrupted(kind: PoolKind, mkfs: &[&str]) -> (Stand, JobId) {
    let stand = Stand::with_room(kind, 448 * MIB, mkfs);
    stand.write("w", &vec![7; SIZE as usize]);
    let wipe = wipe("w", WipeMethod::Zero);
    // Slow enough for a stop in the middle.
    let job = stand.pool.submit(wipe, at_rate(512 * MIB)).unwrap();
    let id = job.id();
    let stop = CancelToken::new();
    let progress = |progress: Progress| {
        if progress.phase == Phase::Write && progress.done_bytes > PIECE {
            stop.cancel();
        }
    };
    let error = job
        .run(OnStop::Interrupt, Control::new(&stop, &progress))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(!is_wiped(&stand));
    (stand, id)
}

/// Resumes the wipe; where its first progress was.
#[track_caller]
fn resume(stand: &Stand, id: JobId) -> u64 {
    let first = Cell::new(None);
    let progress = |progress: Progress| {
        if progress.phase == Phase::Write && first.get().is_none() {
            first.set(Some(progress.done_bytes));
        }
    };
    let job = stand.pool.resume(id).unwrap();
    job.run(OnStop::Cancel, Control::new(&CancelToken::new(), &progress))
        .unwrap();
    assert!(is_wiped(stand));
    stand.assert_at_rest();
    first.get().expect("progress")
}

fn is_wiped(stand: &Stand) -> bool {
    stand.with_file("w", |file| {
        let (mut piece, zeros) = (vec![7; MIB as usize], vec![0; MIB as usize]);
        (0..SIZE / MIB).all(|number| {
            let read = file.read_at(&mut piece, number * MIB).unwrap();
            read == piece.len() && piece == zeros
        })
    })
}

/// Longer than the clock resolution of the volume's file system, and than a killed job may continue
/// to write.
fn wait_for_another_time(kind: PoolKind) {
    sleep(match kind {
        PoolKind::Ext4 => Duration::from_millis(30),
        _ => Duration::from_millis(1500),
    });
}

#[test]
fn interrupted_wipe_resumes_at_its_durable_position() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let (stand, id) = interrupted(kind, &[]);
        let first = resume(&stand, id);
        assert!((PIECE..SIZE).contains(&first), "{kind:?}: {first}");
    }
}

#[test]
fn wipe_restarts_after_a_write_to_its_wiped_part() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let (stand, id) = interrupted(kind, &[]);
        wait_for_another_time(kind);
        stand.with_file("w", |file| file.write_at(b"secret", 12 * MIB).unwrap());
        let first = resume(&stand, id);
        assert!(first < PIECE, "{kind:?}: {first}");
    }
}

#[test]
fn wipe_restarts_without_its_recorded_progress() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let (stand, id) = interrupted(kind, &[]);
        let run = stand.own().join(format!("jobs/{id}.run"));
        let length = fs::metadata(&run).unwrap().len();
        fs::write(&run, vec![0; length as usize]).unwrap();
        let first = resume(&stand, id);
        assert!(first < PIECE, "{kind:?}: {first}");
    }
}

#[test]
fn wipe_restarts_if_times_are_whole_seconds() {
    require!(Filesystem::Ext4.requirement());
    let (stand, id) = interrupted(PoolKind::Ext4, &["-I", "128"]);
    let first = resume(&stand, id);
    assert!(first < PIECE, "{first}");
}
