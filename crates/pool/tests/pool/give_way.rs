//! A job in an image lets others have their turn there. Two pools of one image in one process
//! behave like two processes.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use extant_pool::{
    CloneMethod, Definition, JobState, OnStop, Operation, Pool, PoolKind, Upload, WipeMethod,
};
use extant_space::{CancelToken, Control, ErrorKind, Preallocation, Silent};
use extant_testkit::require;
use extant_testkit::scratch::Filesystem as Below;
use rustix::fs::{FlockOperation, flock};

use crate::both::{SIZE, Stand};
use crate::stand::{
    KIB, MIB, at_rate, clone, create, download, name, names, perform, resize, run, submit, upload,
    wait_until_running, wipe,
};

/// The longest wait, also on a slow machine.
const SOON: Duration = Duration::from_secs(3);

fn other_pool(stand: &Stand) -> Pool {
    Pool::open(Definition::of_image(&stand.image())).unwrap()
}

/// After a failed test its job would wait without end.
struct CancelAtEnd<'a>(&'a CancelToken);

impl Drop for CancelAtEnd<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[track_caller]
fn soon<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    let took = started.elapsed();
    assert!(took < SOON, "{what} took {took:?}");
    done
}

/// Operations that take 4 s and more at 2 MiB a second, one at a time.
fn slow_operations(stand: &Stand) -> Vec<Operation> {
    let replacement = Upload {
        replace: true,
        ..upload("a", &stand.outside.join("source"))
    };
    vec![
        create("b", 8 * MIB, Preallocation::Full),
        clone("a", "copy", CloneMethod::Copy),
        Operation::Upload(replacement),
        Operation::Download(download("a", &stand.outside.join("target"))),
        resize("a", SIZE + 8 * MIB, Preallocation::Full),
        wipe("copy", WipeMethod::Zero),
    ]
}

#[test]
fn others_have_their_turn_while_a_slow_job_is_at_work() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let (pool, other) = (&stand.pool, other_pool(&stand));
    let source = fs::read(stand.outside.join("source")).unwrap();
    for operation in slow_operations(&stand) {
        let what = operation.name();
        let volume = operation.volume().clone();
        let is_new = pool.volume(&volume).is_err();
        let before = names(&other);
        let job = pool.submit(operation, at_rate(2 * MIB)).unwrap();
        let id = job.id();
        let promised = other.info().unwrap().space;
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let cancel = CancelToken::new();
                job.run(OnStop::Cancel, Control::new(&cancel, &Silent))
            });
            wait_until_running(&other, id);
            assert_eq!(soon(what, || names(&other)), before, "{what}");
            let info = soon(what, || other.info()).unwrap();
            let (now, then) = (info.space.available_bytes, promised.available_bytes);
            // Blocks of directories and trees come and go.
            assert!(now.abs_diff(then) <= 64 * KIB, "{what}: {now} was {then}");
            soon(what, || {
                perform(&other, create("new", MIB, Preallocation::Full))
            })
            .unwrap();
            soon(what, || other.volume(&name("new"))).unwrap();
            let info = soon(what, || other.info()).unwrap();
            assert_eq!(info.jobs, 1, "{what}: {info:?}");
            let found = soon(what, || other.refresh(Default::default())).unwrap();
            assert!(found.interrupted.is_empty() && found.removed_files == 0);
            // The job's volume is locked; another process gets the error at once.
            let taken = soon(what, || {
                submit(&other, resize(volume.as_str(), MIB, Preallocation::Off)).map(drop)
            });
            let taken = taken.unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::InUse, "{what}: {taken}");
            assert!(taken.to_string().contains(&format!("job {id} ")), "{taken}");
            soon(what, || other.delete(&name("new"), false)).unwrap();
            assert_eq!(other.job(id).unwrap().state, JobState::Running, "{what}");
            if !is_new {
                let locked = soon(what, || other.delete(&volume, true)).unwrap_err();
                assert_eq!(locked.kind(), ErrorKind::InUse, "{what}: {locked}");
                assert!(
                    locked.to_string().contains("works on the volume"),
                    "{locked}"
                );
            }
            worker.join().unwrap().unwrap();
        });
        stand.assert_at_rest();
    }
    assert!(fs::read(stand.outside.join("target")).unwrap() == source);
    assert!(stand.read("copy") == vec![0; SIZE as usize]);
    let grown = stand.read("a");
    assert!(grown[..source.len()] == source[..] && grown[source.len()..].iter().all(|&b| b == 0));
    for volume in ["a", "b"] {
        let info = pool.volume(&name(volume)).unwrap();
        assert!(!info.may_run_out_of_space, "{volume}");
    }
}

#[test]
fn stream_of_callers_does_not_starve_a_job() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let is_over = AtomicBool::new(false);
    let served = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (stand, is_over, served) = (&stand, &is_over, &served);
            scope.spawn(move || {
                let pool = other_pool(stand);
                let own = format!("caller{caller}");
                while !is_over.load(Ordering::Relaxed) {
                    match caller % 2 {
                        0 => drop(names(&pool)),
                        _ => {
                            perform(&pool, create(&own, MIB, Preallocation::Full)).unwrap();
                            pool.delete(&name(&own), false).unwrap();
                        }
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let started = Instant::now();
        let upload = upload("up", &stand.outside.join("source"));
        let done = perform(&stand.pool, Operation::Upload(upload)).and_then(|()| {
            perform(&stand.pool, create("b", 40 * MIB, Preallocation::Full))?;
            perform(&stand.pool, clone("up", "copy", CloneMethod::Copy))
        });
        is_over.store(true, Ordering::Relaxed);
        done.unwrap();
        let took = started.elapsed();
        assert!(took < Duration::from_secs(60), "{took:?}");
    });
    assert!(served.into_inner() > 10);
    let source = fs::read(stand.outside.join("source")).unwrap();
    assert!(stand.read("copy") == source);
    assert_eq!(names(&stand.pool), ["a", "b", "copy", "up"]);
    stand.assert_at_rest();
}

#[test]
fn jobs_of_two_processes_progress_concurrently() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let (one, other) = (&stand.pool, other_pool(&stand));
    let operation = |volume| create(volume, 24 * MIB, Preallocation::Full);
    let jobs = [
        one.submit(operation("b"), at_rate(8 * MIB)).unwrap(),
        other.submit(operation("c"), at_rate(8 * MIB)).unwrap(),
    ];
    let ids = [jobs[0].id(), jobs[1].id()];
    std::thread::scope(|scope| {
        let workers = jobs.map(|job| {
            scope.spawn(|| {
                let cancel = CancelToken::new();
                job.run(OnStop::Cancel, Control::new(&cancel, &Silent))
            })
        });
        let done = |id| {
            let status = one.job(id).unwrap();
            status.progress.map_or(0, |progress| progress.done_bytes)
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while ids.into_iter().any(|id| done(id) < 4 * MIB) {
            assert!(Instant::now() < deadline, "one of them waits");
            std::thread::sleep(Duration::from_millis(5));
        }
        for id in ids {
            assert_eq!(one.job(id).unwrap().state, JobState::Running);
        }
        // One is cancelled, the other one ends.
        assert_eq!(one.cancel(ids[1]).unwrap().state, JobState::Cancelled);
        let [first, second] = workers.map(|worker| worker.join().unwrap());
        first.unwrap();
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Cancelled);
    });
    assert_eq!(names(&other), ["a", "b"]);
    assert_eq!(stand.read("b"), vec![0; 24 * MIB as usize]);
    stand.assert_at_rest();
}

#[test]
fn threads_of_several_processes_work_in_one_image() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let others = [other_pool(&stand), other_pool(&stand)];
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let pool = [&stand.pool, &others[0], &others[1]][thread % 3];
            scope.spawn(move || {
                let own = format!("v{thread}");
                let copy = format!("copy{thread}");
                for _ in 0..3 {
                    perform(pool, create(&own, MIB, Preallocation::Full)).unwrap();
                    let job = pool.submit(clone("a", &copy, CloneMethod::Copy), at_rate(32 * MIB));
                    run(job.unwrap()).unwrap();
                    perform(pool, resize(&own, 2 * MIB, Preallocation::Full)).unwrap();
                    assert_eq!(pool.volume(&name(&own)).unwrap().written_bytes, 2 * MIB);
                    perform(pool, wipe(&copy, WipeMethod::Discard)).unwrap();
                    for volume in [&own, &copy] {
                        pool.delete(&name(volume), false).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(names(&stand.pool), ["a"]);
    assert!(stand.read("a") == fs::read(stand.outside.join("source")).unwrap());
    stand.assert_at_rest();
}

/// A process of the pool that has the image and does not give it away, as one that was stopped.
fn turn_of(stand: &Stand) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(stand.own().join("turn")).unwrap()
}

#[test]
fn job_waiting_for_a_user_that_does_not_yield_can_be_cancelled() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let other = other_pool(&stand);
    let first = submit(&other, create("b", MIB, Preallocation::Full)).unwrap();
    let second = submit(&other, create("c", MIB, Preallocation::Full)).unwrap();
    let ids = [first.id(), second.id()];
    let turn = turn_of(&stand);
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(first));
        let second = scope.spawn(|| run(second));
        std::thread::sleep(Duration::from_millis(100));
        // They wait for the image lock, also while no process watches or cancels them.
        let states = ids.map(|id| other.job(id).unwrap().state);
        assert_eq!(states, [JobState::Waiting; 2]);
        assert_eq!(other.cancel(ids[1]).unwrap().state, JobState::Cancelled);
        let cancelled = second.join().unwrap().unwrap_err();
        assert_eq!(cancelled.kind(), ErrorKind::Cancelled);
        flock(&turn, FlockOperation::Unlock).unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(names(&other), ["a", "b"]);
    stand.assert_at_rest();
}

#[test]
fn timeout_on_an_image_reports_the_job_that_owns_it() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let other = other_pool(&stand);
    let operation = create("b", 60 * MIB, Preallocation::Full);
    let job = stand.pool.submit(operation, at_rate(2 * MIB)).unwrap();
    let id = job.id();
    let cancel = CancelToken::new();
    let turn = turn_of(&stand);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| job.run(OnStop::Cancel, Control::new(&cancel, &Silent)));
        let _end = CancelAtEnd(&cancel);
        wait_until_running(&other, id);
        // Threads of one process share the image.
        assert_eq!(names(&stand.pool), ["a"]);
        perform(&stand.pool, create("c", MIB, Preallocation::Full)).unwrap();
        // The next owner of the image lock keeps it; others may own it before.
        let stuck = scope.spawn(|| flock(&turn, FlockOperation::LockExclusive).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!stuck.is_finished());
        let busy = (0..100).find_map(|_| other.volumes().err());
        let busy = busy.expect("another process keeps the image lock");
        assert!(stuck.is_finished(), "{busy}");
        assert_eq!(busy.kind(), ErrorKind::InUse);
        let words = format!("job {id} (create b)");
        assert!(busy.to_string().contains(&words), "{busy}");
        assert_eq!(other.job(id).unwrap().state, JobState::Running);
        cancel.cancel();
        flock(&turn, FlockOperation::Unlock).unwrap();
        worker.join().unwrap().unwrap_err();
    });
    assert_eq!(names(&other), ["a", "c"]);
    stand.assert_at_rest();
}
