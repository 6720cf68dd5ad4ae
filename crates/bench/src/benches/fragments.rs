//! `fragments`: what fragmentation of an image costs a client of the server, the question of
//! "posix_fallocate" (docs/background.md) that its thread left open.
//!
//! The same written image of 400 MiB in one extent and in 102,400 of 4 KiB, the worst case of that
//! size: on the machine's disk ([`disk`]), and on a simulated one whose head has to seek
//! ([`simulated`]), where it also matters whether the fragments are in order ([`layout`]).
//! fio's NBD engine is the client ([`load`]).

mod disk;
mod layout;
mod load;
mod seek_device;
mod simulated;

use anyhow::Result;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

const EXTENTS: &str = "extents";
const KEPT_GOAL: &str = "kept-over-qemu-nbd";
const RATE_GOAL: &str = "in-order-over-disk";
const ACCESSES_GOAL: &str = "requests-per-extent";

/// The bench.
pub struct Fragments;

impl Bench for Fragments {
    fn name(&self) -> &'static str {
        "fragments"
    }

    fn about(&self) -> &'static str {
        "an image in 1 extent and in 100,000, by NBD: on the disk beside qemu-nbd, and on a simulated disk with seeks"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("qemu-nbd"),
            Need::Program("filefrag"),
            Need::Program("mkfs.ext4"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(KEPT_GOAL, 0.9, ""),
                Goal::at_least(RATE_GOAL, 0.9, ""),
                Goal::at_most(ACCESSES_GOAL, 1.05, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        disk::disk_bytes(options)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        disk::measure(context, &mut outcome)?;
        simulated::measure(context, &mut outcome)?;
        Ok(outcome)
    }
}
