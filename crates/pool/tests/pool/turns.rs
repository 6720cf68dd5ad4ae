//! Precedence of jobs, and sharing of the rate.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Mutex;
use std::time::Duration;

use extant_pool::{CloneMethod, JobOptions, JobState, Limits, OnStop, Priority};
use extant_space::{CancelToken, Control, ErrorKind, Phase, Preallocation, Progress, Silent};
use extant_testkit::require;
use extant_testkit::scratch::Filesystem;

use crate::stand::{MIB, assert_at_rest, clone, create, in_memory, names, perform, pool_with, run};

#[test]
fn jobs_take_turns_by_priority_and_age() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let limits = Limits {
        jobs_max: NonZeroU32::MIN,
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    let priorities = [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Normal,
    ];
    let jobs: Vec<_> = priorities
        .into_iter()
        .enumerate()
        .map(|(index, priority)| {
            let options = JobOptions {
                priority,
                ..JobOptions::default()
            };
            let operation = create(&format!("v{index}"), MIB, Preallocation::Full);
            pool.submit(operation, options).unwrap()
        })
        .collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id()).collect();
    let begun = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for job in jobs {
            scope.spawn(|| {
                let id = job.id();
                // No other job runs then.
                let progress = |progress: Progress| {
                    let mut begun = begun.lock().unwrap();
                    if progress.phase != Phase::Wait && !begun.contains(&id) {
                        begun.push(id);
                    }
                };
                let cancel = CancelToken::new();
                job.run(OnStop::Cancel, Control::new(&cancel, &progress))
                    .unwrap();
            });
        }
    });
    let jobs = pool.jobs().unwrap();
    assert!(jobs.iter().all(|job| job.state == JobState::Done));
    let order = begun.into_inner().unwrap();
    // The start order of the threads is arbitrary; a waiter with a position comes before jobs
    // without one.
    assert_eq!(order, [2, 1, 3, 0].map(|index: usize| ids[index]));
    assert_at_rest(&pool);
}

#[test]
fn waiting_job_is_cancelled_without_having_begun() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let limits = Limits {
        jobs_max: NonZeroU32::MIN,
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    let first = pool
        .submit(create("a", MIB, Preallocation::Full), JobOptions::default())
        .unwrap();
    let second = pool
        .submit(create("b", MIB, Preallocation::Full), JobOptions::default())
        .unwrap();
    let id = second.id();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run(second));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(pool.job(id).unwrap().state, JobState::Waiting);
        assert_eq!(pool.cancel(id).unwrap().state, JobState::Cancelled);
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    run(first).unwrap();
    assert_at_rest(&pool);
}

#[test]
fn jobs_in_the_background_share_the_rate_of_the_pool_by_weight() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 256 * MIB);
    let limits = Limits {
        rate: NonZeroU64::new(20 * MIB),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    perform(&pool, create("source", 60 * MIB, Preallocation::Full)).unwrap();
    let submit = |volume: &str, priority| {
        let options = JobOptions {
            priority,
            background: true,
            // Otherwise each yields to the other, whatever the rate.
            background_share: Some("100%".parse().unwrap()),
            rate: None,
        };
        pool.submit(clone("source", volume, CloneMethod::Copy), options)
            .unwrap()
    };
    let jobs = [
        submit("low", Priority::Low),
        submit("normal", Priority::Normal),
    ];
    let ids = [jobs[0].id(), jobs[1].id()];
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        for job in jobs {
            scope.spawn(|| job.run(OnStop::Cancel, Control::new(&cancel, &Silent)));
        }
        let done = |index: usize| {
            let progress = pool.job(ids[index]).unwrap().progress;
            progress.map_or(0, |progress| progress.done_bytes)
        };
        let wait_for = |wanted: u64| {
            while done(1) < wanted {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        // From here on both know of each other.
        wait_for(12 * MIB);
        let before = done(0);
        wait_for(28 * MIB);
        let low = done(0) - before;
        cancel.cancel();
        // By weights of 1 and 4: 4 MiB of 16.
        assert!((MIB..=8 * MIB).contains(&low), "{low}");
    });
    assert_eq!(names(&pool), ["source"]);
    assert_at_rest(&pool);
}
