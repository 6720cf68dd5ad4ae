//! Clusters that stop, keys and pools that are wrong.

use std::cell::{Cell, RefCell};
use std::fs;
use std::time::{Duration, Instant};

use extant_pool::{ClusterPlace, Definition, JobState, Leftovers, OnStop, Operation, Pool};
use extant_space::{CancelToken, Control, ErrorKind, MappedProgress, Progress, Remedy, Silent};
use extant_testkit::ceph::{Ceph, CephOptions, POOL};
use extant_testkit::require;

use super::{Stand, define, full, limits, moved, noise, place};
use crate::stand::{MIB, assert_at_rest, at_rate, download, names, run, submit, upload};

/// The pool of a stand, through a configuration with short time limits.
fn impatient(stand: &Stand) -> Pool {
    let conf = stand.outside("impatient.conf");
    let text = fs::read_to_string(stand.ceph.conf()).unwrap();
    let limits = "[client]\nrados_osd_op_timeout = 3\nclient_mount_timeout = 3\n\
                  rados_mon_op_timeout = 3\n";
    fs::write(&conf, format!("{text}{limits}")).unwrap();
    let place = ClusterPlace {
        conf: Some(conf),
        ..place(stand.ceph, &stand.namespace)
    };
    define(place, &stand.outside("impatient")).unwrap()
}

#[test]
fn upload_to_a_frozen_cluster_is_cancelled_in_bounded_time() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("frozen");
    let source = stand.source(&noise(32 * MIB));
    let cancel = CancelToken::new();
    let sink = MappedProgress {
        update: |progress: Progress| {
            if moved(progress) >= 8 * MIB && !cancel.is_cancelled() {
                stand.ceph.freeze_osd(0);
                cancel.cancel();
            }
        },
        caller: &Silent,
    };
    let upload = Operation::Upload(upload("a", &source));
    let job = stand.pool.submit(upload, at_rate(32 * MIB)).unwrap();
    let id = job.id();
    let started = Instant::now();
    let stopped = job.run(OnStop::Cancel, Control::new(&cancel, &sink));
    let took = started.elapsed();
    let state = stand.pool.job(id).unwrap().state;
    stand.ceph.thaw_osd(0);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(took < Duration::from_secs(15), "{took:?}");
    // The rollback that was not possible then is done now.
    assert_eq!(state, JobState::Interrupted);
    stand.ceph.wait_for("an answer", |_| {
        stand.pool.refresh(Leftovers::Remove).is_ok()
    });
    assert!(names(&stand.pool).is_empty());
    assert_eq!(stand.pool.job(id).unwrap().state, JobState::Cancelled);
    stand.assert_at_rest();
}

#[test]
fn job_whose_cluster_stops_is_interrupted_with_the_reason_and_resumed() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("stops");
    let pool = impatient(&stand);
    let (cancel, frozen) = (CancelToken::new(), Cell::new(false));
    let sink = MappedProgress {
        update: |progress: Progress| {
            if moved(progress) >= 8 * MIB && !frozen.replace(true) {
                stand.ceph.freeze_osd(0);
            }
        },
        caller: &Silent,
    };
    let job = pool.submit(full("a", 32 * MIB), at_rate(32 * MIB)).unwrap();
    let id = job.id();
    let failed = job.run(OnStop::Cancel, Control::new(&cancel, &sink));
    stand.ceph.thaw_osd(0);
    let failed = failed.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert!(
        failed.to_string().contains("not answered within 3 s"),
        "{failed}"
    );
    assert_eq!(pool.job(id).unwrap().state, JobState::Interrupted);
    stand.ceph.wait_for("an answer", |_| pool.volumes().is_ok());
    assert!(names(&pool).is_empty());
    run(pool.resume(id).unwrap()).unwrap();
    assert_eq!(stand.used("a"), 32 * MIB);
    assert_at_rest(&pool);
}

#[test]
fn job_that_meets_a_full_cluster_is_kept_and_resumed_or_undone() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("fills");
    // A cluster without objects is never full.
    stand.put("before", &noise(16 * MIB));
    let interrupted_by_full = |volume: &str| {
        let filled = Cell::new(false);
        let sink = MappedProgress {
            update: |progress: Progress| {
                if moved(progress) >= 8 * MIB && !filled.replace(true) {
                    stand.ceph.fill();
                }
            },
            caller: &Silent,
        };
        let create = full(volume, 24 * MIB);
        let job = stand.pool.submit(create, at_rate(16 * MIB)).unwrap();
        let id = job.id();
        let cancel = CancelToken::new();
        let failed = job.run(OnStop::Cancel, Control::new(&cancel, &sink));
        let failed = failed.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace, "{failed}");
        assert_eq!(failed.remedies(), [Remedy::ResumeJob]);
        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Interrupted);
        assert!(!names(&stand.pool).contains(&volume.to_owned()));
        id
    };
    let kept = interrupted_by_full("kept");
    let still_full = run(stand.pool.resume(kept).unwrap()).unwrap_err();
    assert_eq!(still_full.kind(), ErrorKind::NoSpace, "{still_full}");
    assert_eq!(stand.pool.job(kept).unwrap().state, JobState::Interrupted);
    stand.ceph.drain();
    run(stand.pool.resume(kept).unwrap()).unwrap();
    assert_eq!(stand.used("kept"), 24 * MIB);
    let undone = interrupted_by_full("undone");
    stand.pool.cancel(undone).unwrap();
    stand.ceph.drain();
    assert_eq!(names(&stand.pool), ["before", "kept"]);
    stand.assert_at_rest();
}

#[test]
fn death_of_a_daemon_with_a_copy_left_does_not_stop_a_job() {
    require!(Ceph::requirement());
    let mut ceph = Ceph::start(CephOptions {
        osds: 2,
        copies: 2,
        manager: true,
        ..CephOptions::default()
    });
    ceph.wait_for_figures();
    let directory = tempfile::tempdir().unwrap();
    let place = ClusterPlace {
        namespace: None,
        ..place(&ceph, "")
    };
    let pool = define(place, directory.path()).unwrap();
    let source = directory.path().join("source");
    fs::write(&source, noise(24 * MIB)).unwrap();
    let dead = RefCell::new(&mut ceph);
    for (operation, osd) in [
        (Operation::Upload(upload("copy", &source)), Some(1)),
        (full("thick", 24 * MIB), None),
    ] {
        let left = Cell::new(osd);
        let sink = MappedProgress {
            update: |progress: Progress| {
                if moved(progress) >= 8 * MIB
                    && let Some(osd) = left.take()
                {
                    dead.borrow_mut().kill_osd(osd);
                }
            },
            caller: &Silent,
        };
        let job = pool.submit(operation, at_rate(16 * MIB)).unwrap();
        let cancel = CancelToken::new();
        job.run(OnStop::Cancel, Control::new(&cancel, &sink))
            .unwrap();
        assert_eq!(left.get(), None);
    }
    let target = directory.path().join("target");
    run(submit(&pool, Operation::Download(download("copy", &target))).unwrap()).unwrap();
    assert!(fs::read(target).unwrap() == noise(24 * MIB));
    assert_eq!(names(&pool), ["copy", "thick"]);
    assert_at_rest(&pool);
}

#[test]
fn frozen_monitor_is_reported_and_jobs_continue_without_it() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("monitor");
    let pool = impatient(&stand);
    let running = pool.submit(full("a", 24 * MIB), at_rate(24 * MIB)).unwrap();
    let waiting = pool.submit(full("b", 8 * MIB), at_rate(24 * MIB)).unwrap();
    let waiting_id = waiting.id();
    let cancel = CancelToken::new();
    let frozen = Cell::new(false);
    let sink = MappedProgress {
        update: |progress: Progress| {
            if moved(progress) >= 8 * MIB && !frozen.replace(true) {
                stand.ceph.freeze_monitor();
            }
        },
        caller: &Silent,
    };
    // It has its connections.
    let ran = running.run(OnStop::Cancel, Control::new(&cancel, &sink));
    let refused = pool.submit(full("c", MIB), at_rate(MIB)).map(drop);
    // A job that needs a new one is reported, and its cancel does not wait.
    let started = Instant::now();
    let cancelled = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            cancel.cancel();
        });
        waiting.run(OnStop::Interrupt, Control::new(&cancel, &Silent))
    });
    let took = started.elapsed();
    let reported = pool.resume(waiting_id).map(drop);
    stand.ceph.thaw_monitor();
    ran.unwrap();
    let refused = refused.unwrap_err();
    assert!(
        refused.to_string().contains("no monitor has answered"),
        "{refused}"
    );
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let reported = reported.unwrap_err();
    assert!(
        reported.to_string().contains("no monitor has answered"),
        "{reported}"
    );
    assert_eq!(pool.job(waiting_id).unwrap().state, JobState::Interrupted);
    stand.ceph.wait_for("an answer", |_| pool.volumes().is_ok());
    run(pool.resume(waiting_id).unwrap()).unwrap();
    assert_eq!(names(&pool), ["a", "b"]);
    assert_at_rest(&pool);
}

#[test]
fn wrong_pool_key_and_configuration_are_refused_when_the_pool_is_defined() {
    require!(Ceph::requirement());
    let stand = Stand::new("wrong");
    let right = || place(stand.ceph, "wrong");
    let keyring = stand.outside("keyring");
    fs::write(
        &keyring,
        "[client.admin]\nkey = AQAAAAAAAAAAABAAc29tZSBvdGhlciBrZXkuLi4=\n",
    )
    .unwrap();
    for (place, kind, word) in [
        (
            ClusterPlace {
                pool: "none".to_owned(),
                ..right()
            },
            ErrorKind::NotFound,
            "no pool none",
        ),
        (
            ClusterPlace {
                keyring: Some(keyring),
                ..right()
            },
            ErrorKind::PermissionDenied,
            "refuse client.admin",
        ),
        (
            ClusterPlace {
                conf: Some(stand.outside("none.conf")),
                ..right()
            },
            ErrorKind::NotFound,
            "none.conf",
        ),
    ] {
        let refused = define(place, &stand.outside("refused")).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(refused.to_string().contains(word), "{refused}");
    }
    for name in ["", "a/b", "a@b"] {
        let place = ClusterPlace {
            pool: name.to_owned(),
            ..right()
        };
        let refused = Definition::on_cluster(
            "x".parse().unwrap(),
            place,
            &stand.outside("refused"),
            limits(),
        );
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(right().pool, POOL);
}
