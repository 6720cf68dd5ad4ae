//! Jobs: cancelled at any point, interrupted, resumed, found.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use extant_pool::{
    CloneMethod, Job, JobId, JobOptions, JobState, Leftovers, OnStop, Operation, PoolKind, Priority,
};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, FallocateMode, Preallocation, Progress, Result,
    Silent,
};
use extant_testkit::scratch::Filesystem;
use extant_testkit::{command, require};

use crate::both::{KINDS, Stand};
use crate::stand::{
    MIB, assert_at_rest, at_rate, clone, create, name, names, perform, resize, run, submit,
};

/// Runs `job` with a token that is cancelled at the `point`-th progress.
pub fn run_until(point: usize, job: Job<'_>, on_stop: OnStop) -> Result<()> {
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
    job.run(on_stop, Control::new(&cancel, &sink))
}

#[test]
fn job_cancelled_at_any_point_leaves_the_pool_as_before() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        for (operation, done) in stand.operations() {
            for point in 0.. {
                let job = submit(&stand.pool, operation.clone()).unwrap();
                let id = job.id();
                match run_until(point, job, OnStop::Cancel) {
                    Ok(()) => {
                        assert!(point > 1, "{operation:?} reports nothing");
                        assert_eq!(names(&stand.pool), done, "{operation:?}");
                        break;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{operation:?}: {error}");
                        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Cancelled);
                        stand.assert_as_before();
                    }
                }
            }
            stand.reset();
        }
    }
}

#[test]
fn job_interrupted_at_any_point_is_resumed_to_the_same_end() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        for (operation, done) in stand.operations() {
            for point in 0.. {
                let job = submit(&stand.pool, operation.clone()).unwrap();
                let id = job.id();
                let is_last = match run_until(point, job, OnStop::Interrupt) {
                    Ok(()) => true,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Interrupted);
                        let found = stand.pool.refresh(Leftovers::Keep).unwrap();
                        assert_eq!(found.interrupted.len(), 1);
                        assert_eq!(found.interrupted[0].job.id, id);
                        run(stand.pool.resume(id).unwrap()).unwrap();
                        false
                    }
                };
                assert_eq!(stand.pool.job(id).unwrap().state, JobState::Done);
                assert_eq!(names(&stand.pool), done, "{operation:?}");
                check_result(&stand, &operation);
                stand.assert_at_rest();
                stand.reset();
                if is_last {
                    break;
                }
            }
        }
    }
}

#[track_caller]
fn check_result(stand: &Stand, operation: &Operation) {
    let source = fs::read(stand.outside.join("source")).unwrap();
    match operation {
        Operation::Clone(_) | Operation::Upload(_) => {
            assert!(stand.read("b") == source);
        }
        Operation::Download(_) => {
            assert!(fs::read(stand.outside.join("target")).unwrap() == source)
        }
        Operation::Create(create) => {
            let info = stand.pool.volume(&create.volume).unwrap();
            assert_eq!(info.written_bytes, create.capacity_bytes);
        }
        Operation::Resize(resize) => {
            let info = stand.pool.volume(&resize.volume).unwrap();
            assert_eq!(info.written_bytes, resize.capacity_bytes);
        }
        _ => {}
    }
}

#[test]
fn interrupted_job_is_resumed_by_the_same_operation_and_cancelled_by_others() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let pool = &stand.pool;
        let wanted = create("b", 8 * MIB, Preallocation::Full);
        let first = submit(pool, wanted.clone()).unwrap();
        let id = first.id();
        run_until(3, first, OnStop::Interrupt).unwrap_err();
        let other = submit(pool, create("b", 9 * MIB, Preallocation::Full)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::InUse);
        assert!(other.to_string().contains(&format!("job {id}")), "{other}");
        let urgent = JobOptions {
            priority: Priority::High,
            ..JobOptions::default()
        };
        let again = pool.submit(wanted.clone(), urgent).unwrap();
        assert_eq!(again.id(), id);
        assert_eq!(pool.job(id).unwrap().options, urgent);
        run(again).unwrap();
        stand.reset();

        let second = submit(pool, wanted).unwrap();
        let id = second.id();
        run_until(3, second, OnStop::Interrupt).unwrap_err();
        assert_eq!(pool.cancel(id).unwrap().state, JobState::Cancelled);
        stand.assert_as_before();
        assert_eq!(
            pool.cancel(id).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            pool.resume(id).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            pool.cancel(JobId(999)).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}

#[test]
fn job_without_record_after_a_crash_leaves_an_unowned_file() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let pool = &stand.pool;
        let first = submit(pool, create("b", 8 * MIB, Preallocation::Full)).unwrap();
        let id = first.id();
        run_until(3, first, OnStop::Interrupt).unwrap_err();
        let jobs = stand.own().join("jobs");
        let record = jobs.join(format!("{id}.json"));
        // The files on disk before the record has its name.
        fs::rename(&record, jobs.join(format!("{id}.json.new"))).unwrap();
        assert_eq!(pool.job(id).unwrap_err().kind(), ErrorKind::NotFound);
        // Another number, so that the file of the first is not taken for its own.
        let second = submit(pool, create("b", 9 * MIB, Preallocation::Full)).unwrap();
        assert!(second.id() > id);
        run(second).unwrap();
        assert_eq!(pool.volume(&name("b")).unwrap().written_bytes, 9 * MIB);
        let found = pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!(found.removed_files, 1, "{kind:?}: {found:?}");
        assert_at_rest(pool);
        let left = fs::read_dir(&jobs).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with(&format!("{id}."))
        });
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn refresh_cancels_interrupted_jobs_on_request() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        for (operation, _) in stand.operations() {
            let job = submit(&stand.pool, operation).unwrap();
            let id = job.id();
            run_until(1, job, OnStop::Interrupt).unwrap_err();
            let found = stand.pool.refresh(Leftovers::Remove).unwrap();
            assert_eq!(found.cancelled, [id]);
            stand.assert_as_before();
        }
    }
}

#[test]
fn files_without_a_job_are_reported_and_removed() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        perform(&stand.pool, create("b", MIB, Preallocation::Off)).unwrap();
        stand.write(".extant/work/77.copy", &vec![1; MIB as usize]);
        fs::write(stand.own().join("jobs/78.run"), "").unwrap();
        let found = stand.pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!((found.removed_files, found.removed_bytes), (1, MIB));
        stand.assert_at_rest();
        assert_eq!(stand.work_names(), 0);
    }
}

#[test]
fn job_at_work_is_cancelled_by_another_and_its_volume_is_locked_meanwhile() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let pool = &stand.pool;
        for (operation, _) in stand.operations() {
            let job = pool.submit(operation.clone(), at_rate(4 * MIB)).unwrap();
            let id = job.id();
            std::thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    job.run(
                        OnStop::Interrupt,
                        Control::new(&CancelToken::new(), &Silent),
                    )
                });
                let begun = |status: &extant_pool::JobStatus| {
                    let progress = status.progress;
                    status.state == JobState::Running
                        && progress.is_some_and(|it| it.done_bytes > 0)
                };
                while !begun(&pool.job(id).unwrap()) {
                    assert!(!pool.job(id).unwrap().state.has_ended(), "{operation:?}");
                    std::thread::sleep(Duration::from_millis(2));
                }
                let busy = pool.resume(id).unwrap_err();
                assert_eq!(busy.kind(), ErrorKind::InUse);
                if !matches!(operation, Operation::Download(_)) {
                    let busy = submit(pool, operation.clone()).unwrap_err();
                    assert_eq!(busy.kind(), ErrorKind::InUse, "{busy}");
                }
                let started = Instant::now();
                assert_eq!(pool.cancel(id).unwrap().state, JobState::Cancelled);
                eprintln!("cancel of {}: {:?}", operation.name(), started.elapsed());
                assert_eq!(
                    worker.join().unwrap().unwrap_err().kind(),
                    ErrorKind::Cancelled
                );
            });
            stand.assert_as_before();
        }
    }
}

#[test]
fn job_handed_over_is_never_without_a_worker() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let pool = &stand.pool;
        let job = submit(pool, create("b", MIB, Preallocation::Full)).unwrap();
        let id = job.id();
        let lock = job.hand_over();
        assert_eq!(pool.job(id).unwrap().state, JobState::Waiting);
        assert_eq!(pool.resume(id).unwrap_err().kind(), ErrorKind::InUse);
        let wrong = fs::File::open("/dev/null").unwrap();
        assert_eq!(
            pool.take_over(id, wrong).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        run(pool.take_over(id, lock).unwrap()).unwrap();
        assert_eq!(names(pool), ["a", "b"]);
    }
}

#[test]
fn jobs_that_ended_long_ago_are_forgotten_and_numbers_are_not_used_again() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    for round in 1..=70 {
        let job = submit(&stand.pool, create("b", MIB, Preallocation::Off)).unwrap();
        assert_eq!(job.id(), JobId(round));
        run(job).unwrap();
        stand.pool.delete(&name("b"), false).unwrap();
    }
    let jobs = stand.pool.jobs().unwrap();
    assert!((64..=65).contains(&jobs.len()), "{}", jobs.len());
    assert_eq!(jobs.last().unwrap().id, JobId(70));
}

#[test]
fn resumed_copy_follows_a_changed_source() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let operation = clone("a", "b", CloneMethod::Copy);
        let job = submit(&stand.pool, operation.clone()).unwrap();
        run_until(5, job, OnStop::Interrupt).unwrap_err();
        stand.with_file("a", |file| {
            file.write_at(b"changed", 0).unwrap();
            let hole = ByteRange::new(MIB, 2 * MIB);
            file.fallocate(FallocateMode::PunchHole, hole).unwrap();
        });
        perform(&stand.pool, operation).unwrap();
        let same = stand.read("a") == stand.read("b");
        assert!(same, "the clone is of the source as it is");
    }
}

#[test]
fn lost_run_file_is_created_again() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let job = submit(&stand.pool, create("b", 8 * MIB, Preallocation::Full)).unwrap();
        let id = job.id();
        run_until(3, job, OnStop::Interrupt).unwrap_err();
        fs::remove_file(stand.own().join(format!("jobs/{id}.run"))).unwrap();
        let found = stand.pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!(found.interrupted.len(), 1);
        run(stand.pool.resume(id).unwrap()).unwrap();
        assert_eq!(names(&stand.pool), ["a", "b"]);
        stand.assert_at_rest();
    }
}

#[test]
fn interrupted_resize_of_a_volume_that_is_gone_is_cancelled() {
    require!(Filesystem::Ext4.requirement());
    for kind in KINDS {
        let stand = Stand::new(kind);
        let job = submit(&stand.pool, resize("a", 16 * MIB, Preallocation::Full)).unwrap();
        let id = job.id();
        run_until(1, job, OnStop::Interrupt).unwrap_err();
        stand.remove("a");
        assert_eq!(stand.pool.cancel(id).unwrap().state, JobState::Cancelled);
        stand.assert_at_rest();
    }
}

#[test]
fn data_that_others_write_to_the_new_part_meanwhile_is_kept() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    let path = stand.pool.path_of(&name("a"));
    let size = 60 * MIB;
    let operation = resize("a", size, Preallocation::Full);
    let job = stand.pool.submit(operation, at_rate(16 * MIB)).unwrap();
    thread::scope(|scope| {
        let job = scope.spawn(|| run(job));
        let before = fs::metadata(&path).unwrap().len();
        while fs::metadata(&path).unwrap().len() == before && !job.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"data", size - 4).unwrap();
        job.join().unwrap().unwrap();
    });
    let info = stand.pool.volume(&name("a")).unwrap();
    assert_eq!((info.capacity_bytes, info.written_bytes), (size, size));
    assert!(stand.read("a").ends_with(b"data"));
    stand.assert_at_rest();
}

#[test]
fn resize_that_waits_cuts_off_nothing_that_was_added_meanwhile() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    let path = stand.pool.path_of(&name("a"));
    let job = submit(&stand.pool, resize("a", 20 * MIB, Preallocation::Full)).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(b"data", 30 * MIB)
        .unwrap();
    let refused = run(job).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("has grown"), "{refused}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 30 * MIB + 4);
}

#[test]
fn cancelled_resize_cuts_off_nothing_in_use() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    let path = stand.pool.path_of(&name("a"));
    let before = fs::metadata(&path).unwrap().len();
    let operation = resize("a", 40 * MIB, Preallocation::Full);
    let job = stand.pool.submit(operation, at_rate(16 * MIB)).unwrap();
    let id = job.id();
    run_until(6, job, OnStop::Interrupt).unwrap_err();
    let grown = fs::metadata(&path).unwrap().len();
    assert!(grown > before);
    let mut user = command::tool("sleep")
        .arg("60")
        .stdin(fs::File::open(&path).unwrap())
        .spawn()
        .unwrap();
    let refused = stand.pool.cancel(id).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    assert_eq!(fs::metadata(&path).unwrap().len(), grown);
    assert_eq!(stand.pool.job(id).unwrap().state, JobState::Interrupted);
    user.kill().unwrap();
    user.wait().unwrap();
    assert_eq!(stand.pool.cancel(id).unwrap().state, JobState::Cancelled);
    assert_eq!(fs::metadata(&path).unwrap().len(), before);
    stand.assert_at_rest();
}

#[test]
fn reserved_volume_is_reported_as_whole() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    let job = submit(&stand.pool, create("b", 8 * MIB, Preallocation::Falloc)).unwrap();
    let id = job.id();
    run(job).unwrap();
    let progress = stand.pool.job(id).unwrap().progress.unwrap();
    assert_eq!(
        (progress.done_bytes, progress.total_bytes),
        (8 * MIB, 8 * MIB)
    );
}

#[test]
fn growth_that_does_not_fit_leaves_no_space_behind_the_end() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new(PoolKind::Dir);
    let path = stand.pool.path_of(&name("a"));
    let blocks = || fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    for preallocation in [Preallocation::Full, Preallocation::Falloc] {
        let job = submit(&stand.pool, resize("a", 40 * MIB, preallocation)).unwrap();
        let id = job.id();
        // Taken by others since the job was admitted.
        let filler = stand.scratch.path().join("filler");
        let free = rustix::fs::statvfs(stand.scratch.path()).unwrap();
        let length = free.f_bavail * free.f_frsize - 12 * MIB;
        let mut fill = command::tool("fallocate");
        command::must(fill.args(["-l", &length.to_string()]).arg(&filler));
        let refused = run(job).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        fs::remove_file(&filler).unwrap();
        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Failed);
        // A block of the extent tree may stay.
        assert!(blocks() <= before + 8, "{preallocation:?}");
    }
    stand.assert_at_rest();
}
