//! Wipes that are interrupted and go on.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use extant_pool::{JobId, JobOptions, OnStop, Operation, Pool, Wipe, WipeMethod};
use extant_space::{CancelToken, Control, ErrorKind, Phase, Progress};
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::stand::{MIB, assert_at_rest, in_memory, name, pool_at};

/// More than a piece of a wipe.
const SIZE: u64 = 320 * MIB;
/// What is durable at once.
const PIECE: u64 = 256 * MIB;

struct Stand {
    pool: Pool,
    path: PathBuf,
    _scratch: Scratch,
}

impl Stand {
    /// A volume with content, whose wipe was interrupted in its second piece.
    fn interrupted() -> (Self, JobId) {
        let scratch = in_memory(Filesystem::Ext4, 512 * MIB);
        let stand = Self {
            pool: pool_at(scratch.path()),
            path: scratch.path().join("a"),
            _scratch: scratch,
        };
        let mut file = File::create(&stand.path).unwrap();
        for _ in 0..SIZE / MIB {
            file.write_all(&vec![7; MIB as usize]).unwrap();
        }
        drop(file);
        let wipe = Operation::Wipe(Wipe {
            volume: name("a"),
            method: WipeMethod::Zero,
            force: false,
        });
        // Slow enough for a stop in the middle.
        let options = JobOptions {
            rate: NonZeroU64::new(512 * MIB),
            ..JobOptions::default()
        };
        let job = stand.pool.submit(wipe, options).unwrap();
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
        assert!(!is_zeros(&stand.path));
        (stand, id)
    }

    /// Resumes the wipe; where its first progress was.
    fn resume(&self, id: JobId) -> u64 {
        let first = Cell::new(None);
        let progress = |progress: Progress| {
            if progress.phase == Phase::Write && first.get().is_none() {
                first.set(Some(progress.done_bytes));
            }
        };
        let job = self.pool.resume(id).unwrap();
        job.run(OnStop::Cancel, Control::new(&CancelToken::new(), &progress))
            .unwrap();
        assert!(is_zeros(&self.path));
        assert_at_rest(&self.pool);
        first.get().expect("progress")
    }
}

fn is_zeros(path: &Path) -> bool {
    let mut file = File::open(path).unwrap();
    let (mut piece, zeros) = (vec![7; MIB as usize], vec![0; MIB as usize]);
    (0..SIZE / MIB).all(|_| {
        file.read_exact(&mut piece).unwrap();
        piece == zeros
    })
}

#[test]
fn interrupted_wipe_goes_on_where_it_was_durable() {
    require!(Filesystem::Ext4.requirement());
    let (stand, id) = Stand::interrupted();
    let first = stand.resume(id);
    assert!((PIECE..SIZE).contains(&first), "{first}");
}

#[test]
fn wipe_begins_anew_when_somebody_has_written_to_what_was_wiped() {
    require!(Filesystem::Ext4.requirement());
    let (stand, id) = Stand::interrupted();
    // Longer than the job's own last writes may take.
    sleep(Duration::from_millis(1500));
    let file = File::options().write(true).open(&stand.path).unwrap();
    file.write_all_at(b"secret", 12 * MIB).unwrap();
    drop(file);
    assert!(stand.resume(id) < PIECE);
}

#[test]
fn wipe_begins_anew_when_what_was_told_is_lost() {
    require!(Filesystem::Ext4.requirement());
    let (stand, id) = Stand::interrupted();
    let run = stand.path.with_file_name(format!(".extant/jobs/{id}.run"));
    let length = fs::metadata(&run).unwrap().len();
    fs::write(&run, vec![0; length as usize]).unwrap();
    assert!(stand.resume(id) < PIECE);
}
