//! One pool of a cluster, defined on several machines: here definitions with a state of their own.

use std::sync::Barrier;

use extant_pool::{Definition, Leftovers, Limits, OnStop, Pool, WipeMethod};
use extant_space::{CancelToken, Control, Error, ErrorKind, Preallocation, Result, Silent};
use extant_testkit::ceph::Ceph;
use extant_testkit::require;

use super::{Stand, full, noise, place};
use crate::stand::{MIB, assert_at_rest, at_rate, create, names, perform, run, wipe};

/// Runs `work` for both pools at the same time.
fn race(pools: &[Pool; 2], work: impl Fn(&Pool) -> Result<()> + Sync) -> [Result<()>; 2] {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let racers = [0, 1].map(|index| {
            let (pool, work, barrier) = (&pools[index], &work, &barrier);
            scope.spawn(move || {
                barrier.wait();
                work(pool)
            })
        });
        racers.map(|racer| racer.join().unwrap())
    })
}

#[test]
fn one_machine_gets_a_name_and_the_other_an_error() {
    require!(Ceph::requirement());
    let stand = Stand::new("names");
    let pools = [stand.elsewhere("one"), stand.elsewhere("two")];
    for round in 0..5 {
        let volume = format!("v{round}");
        let results = race(&pools, |pool| {
            perform(pool, create(&volume, MIB, Preallocation::Off))
        });
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].kind(), ErrorKind::AlreadyExists, "{}", errors[0]);
    }
    assert_eq!(names(&pools[0]).len(), 5);
    for pool in &pools {
        assert_at_rest(pool);
    }
    stand.assert_at_rest();
}

#[test]
fn at_most_one_machine_changes_a_volume() {
    require!(Ceph::requirement());
    let stand = Stand::new("changes");
    stand.put("a", &noise(24 * MIB));
    let pools = [stand.elsewhere("one"), stand.elsewhere("two")];
    let results = race(&pools, |pool| {
        // Slow enough that both are at work for longer than either waits.
        let job = pool.submit(wipe("a", WipeMethod::Zero), at_rate(12 * MIB))?;
        run(job)
    });
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(!errors.is_empty(), "both have changed it");
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(error.to_string().contains("client."), "{error}");
    }
    for pool in &pools {
        assert_at_rest(pool);
    }
}

/// Of two such volumes at most one fits into the cluster.
const LARGE: u64 = 600 * MIB;

/// Two machines, alone in the cluster and without limits.
fn unlimited(stand: &Stand) -> [Pool; 2] {
    let pools = ["one", "two"].map(|state| {
        let place = place(stand.ceph, &stand.namespace);
        let (name, state) = ("cloud".parse().unwrap(), stand.outside(state));
        let definition = Definition::on_cluster(name, place, &state, Limits::default());
        Pool::build(definition.unwrap()).unwrap()
    });
    // Images that earlier tests have removed count for some seconds.
    stand.ceph.wait_for("room", |_| {
        pools[0].info().unwrap().space.available_bytes >= LARGE
    });
    pools
}

#[test]
fn what_another_machine_makes_thick_is_not_free() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("shares");
    let [one, two] = unlimited(&stand);
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            let job = one.submit(full("a", LARGE), at_rate(8 * MIB)).unwrap();
            job.run(OnStop::Interrupt, Control::new(&cancel, &Silent))
        });
        // Its image is seen, with what it will take.
        stand
            .ceph
            .wait_for("the image", |_| stand.used_in_all() >= MIB);
        let refused = two.submit(full("b", LARGE), at_rate(8 * MIB)).map(drop);
        cancel.cancel();
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(refused.to_string().contains("missing"), "{refused}");
        let stopped = making.join().unwrap().unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Cancelled);
    });
    // The other one neither lists nor removes what is not its own.
    assert!(names(&two).is_empty());
    let found = two.refresh(Leftovers::Remove).unwrap();
    assert_eq!((found.removed_files, found.other_names), (0, 1));
    let found = one.refresh(Leftovers::Remove).unwrap();
    assert_eq!(found.cancelled.len(), 1);
    assert!(stand.images().is_empty());
    stand.assert_at_rest();
}

#[test]
fn of_two_machines_that_begin_at_once_none_makes_more_than_fits() {
    require!(Ceph::requirement());
    let stand = Stand::with_daemons("begins");
    let pools = unlimited(&stand);
    // Neither has an image yet.
    let jobs = pools.each_ref().map(|pool| {
        let job = pool.submit(full("a", LARGE), at_rate(8 * MIB));
        job.unwrap()
    });
    let cancel = CancelToken::new();
    let results = std::thread::scope(|scope| {
        let runs = jobs.map(|job| {
            scope.spawn(|| {
                let result = job.run(OnStop::Cancel, Control::new(&cancel, &Silent));
                // The other one is at work by now, or was refused as well.
                cancel.cancel();
                result
            })
        });
        runs.map(|run| run.join().unwrap().unwrap_err())
    });
    let refused = |error: &Error| error.kind() == ErrorKind::NoSpace;
    assert!(results.iter().any(refused), "{results:?}");
    for pool in &pools {
        assert_at_rest(pool);
    }
    stand.assert_at_rest();
}
