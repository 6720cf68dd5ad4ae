//! `ext4`: the engine compared with the kernel's ext4 on the same machine, both on memory.
//!
//! The kernel's file system is mounted from a loop device on a file in memory (tmpfs). The engine
//! uses a file in memory without a mount. mke2fs makes both with the same options and a journal.
//!
//! Parts: [`fallocate2`] and [`append`] are the tests of "mballoc scalability", [`zeroes`] and
//! [`sync`] those of "Forced zeroes" (docs/background.md); [`bandwidth`] compares with the device
//! itself, [`open`] opens 64 TiB.

mod append;
mod bandwidth;
pub(super) mod fallocate2;
mod image;
mod open;
mod sync;
mod zeroes;

use anyhow::Result;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

/// The bench.
pub struct Ext4;

impl Bench for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn about(&self) -> &'static str {
        "the ext4 engine beside the kernel's: fallocate, fragmentation, zeroes, sync, bandwidth, open"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("mkfs.ext4"),
            Need::Program("e4defrag"),
            Need::Program("fio"),
            Need::Program("dd"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(fallocate2::ONE, 10.0, ""),
                Goal::at_least(fallocate2::MANY, 10.0, ""),
                Goal::at_least(fallocate2::LOWEST_RATE, 0.8, ""),
                Goal::at_most(append::EXTENTS, 8.0, ""),
                Goal::at_most(append::SCORE, 2.0, ""),
                Goal::at_most(zeroes::TIME, 50.0, "ms"),
                Goal::at_least(zeroes::OVER_DD, 100.0, ""),
                Goal::at_most(zeroes::GROWTH, 2.0, ""),
                Goal::at_least(sync::SPARSE, 1.0, ""),
                Goal::at_least(sync::UNWRITTEN, 1.0, ""),
                Goal::at_least(sync::WRITTEN, 1.0, ""),
                Goal::at_least(bandwidth::LOWEST_RATE, 0.9, ""),
                Goal::at_most(open::TIME, 100.0, "ms"),
                Goal::at_most(open::MEMORY, 64.0, "MiB"),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        11 << 30
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome {
            title: "the engine and the kernel, on files in memory".to_owned(),
            ..Outcome::default()
        };
        open::measure(context, &mut outcome)?;
        fallocate2::measure(context, &mut outcome)?;
        append::measure(context, &mut outcome)?;
        zeroes::measure(context, &mut outcome)?;
        sync::measure(context, &mut outcome)?;
        bandwidth::measure(context, &mut outcome)?;
        Ok(outcome)
    }
}
