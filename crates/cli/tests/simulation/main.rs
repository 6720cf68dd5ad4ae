//! The whole system on one simulated machine under one seed.
//!
//! A disk in memory, whose power can be cut at any write, has a file system of ours, which is
//! mounted in this process. On it are two pools: a directory, and an ext4 image that the engine
//! drives. Jobs make, clone, resize, wipe and materialize raw and qcow2 volumes, are stopped,
//! resumed and cancelled; a server exports volumes to our client over a network that delays and
//! breaks connections. In each life something happens: the power fails at a write, with torn and
//! lost writes, a request of the disk fails (EIO, ENOSPC), or the file system is full. After each
//! the machine starts again, and everything that was promised is verified (`recovery`).
//!
//! The seed decides steps, faults and the state after a power cut. It does not decide the threads
//! of jobs, which write their progress by the clock, and those of the server: a run repeats its
//! steps and their results, not always the write at which the power fails.
//!
//!     EXTANT_SIMULATION_SEEDS=A..B EXTANT_SIMULATION_LIVES=N cargo test -p extant --test simulation
//!
//! runs other seeds; `EXTANT_SIMULATION_TRACE=1` prints the steps of each.
//!
//! Module layers, lowest first: `machine`, `network`, `content`; `pools`; `world`; `recovery`.

mod content;
mod machine;
mod network;
mod pools;
mod recovery;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use extant_blockdev::OperationKind;
use extant_blockdev::simulation::{Fault, FaultRule};
use extant_testkit::{require, requires, seeds};

use world::{Counts, Planted, World};

/// Steps that a failure shows.
const SHOWN: usize = 60;

/// Lives of a machine; the failure, with the last steps.
fn play(seed: u64, lives: u64, planted: Planted) -> Result<World, String> {
    let mut world = World::new(seed, planted);
    let played = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..lives {
            let was_cut = world.live()?;
            world.recover(was_cut)?;
        }
        world.empty()?;
        world.machine.turn_off();
        world.machine.assert_e2fsck_agrees();
        Ok(())
    }));
    let played: Result<(), String> = played.unwrap_or_else(|_| Err("a panic".into()));
    if std::env::var_os("EXTANT_SIMULATION_TRACE").is_some() {
        let outside = world.machine.outside().display().to_string();
        println!("{}", world.trace.join("\n").replace(&outside, "MACHINE"));
    }
    match played {
        Ok(()) => Ok(world),
        Err(error) => {
            let from = world.trace.len().saturating_sub(SHOWN);
            Err(format!("{}\n{error}", world.trace[from..].join("\n")))
        }
    }
}

macro_rules! require_machine {
    () => {
        require!(
            requires::root(),
            requires::device("/dev/fuse"),
            requires::tool("mke2fs"),
            requires::tool("e2fsck")
        )
    };
}

#[test]
fn promises_of_the_whole_system_hold_after_faults_and_power_cuts() {
    require_machine!();
    let lives = seeds::number("EXTANT_SIMULATION_LIVES", 5);
    let mut all = Vec::new();
    for seed in seeds::seeds("EXTANT_SIMULATION_SEEDS", 0..3) {
        let world = play(seed, lives, Planted::default()).unwrap_or_else(|error| {
            panic!(
                "{error}\nrepeat: EXTANT_SIMULATION_SEEDS={seed}..{} EXTANT_SIMULATION_LIVES={lives} \
                 cargo test -p extant --test simulation promises",
                seed + 1
            )
        });
        all.push(world.counts);
    }
    let sum = |count: fn(&Counts) -> u64| all.iter().map(count).sum::<u64>();
    seeds::counted(sum(|counts| counts.lives), "lives");
    seeds::counted(sum(|counts| counts.cuts), "cuts");
    eprintln!(
        "{} faults; {} jobs, {} resumed, {} cancelled; {} exports, {} broken connections",
        sum(|counts| counts.faults),
        sum(|counts| counts.jobs),
        sum(|counts| counts.resumed),
        sum(|counts| counts.cancelled),
        sum(|counts| counts.served),
        sum(|counts| counts.broken_connections),
    );
}

/// Whether one of some seeds finds the fault.
fn is_found(planted: &Planted) -> bool {
    (0..12).any(|seed| match play(seed, 4, planted.clone()) {
        Ok(_) => false,
        Err(error) => {
            println!("seed {seed}: {}", error.lines().last().unwrap_or_default());
            true
        }
    })
}

fn lost_flushes() -> Vec<FaultRule> {
    vec![FaultRule::new(Fault::Lose).on(&[OperationKind::Flush])]
}

#[test]
fn disk_that_ignores_flushes_is_found() {
    require_machine!();
    assert!(is_found(&Planted {
        disk: lost_flushes(),
        ..Planted::default()
    }));
}

#[test]
fn export_that_ignores_flushes_is_found() {
    require_machine!();
    assert!(is_found(&Planted {
        export: lost_flushes(),
        ..Planted::default()
    }));
}
