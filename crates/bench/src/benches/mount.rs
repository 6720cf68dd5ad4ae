//! `mount`: `extant mount` compared with fuse2fs, the kernel's ext4, and a FUSE server without
//! work.
//!
//! All are mounted for the whole run and alternate, each on its own image in memory, which mke2fs
//! made with the same options. Ours is the installed command with default options. The *floor* is
//! the same transport with a file system that answers at once ([`floor`]): the cost of FUSE itself.
//!
//! Parts: [`fallocate2`] is the test of "mballoc scalability" (docs/background.md), [`transfer`]
//! reads and writes, [`files`] creates and removes many files, [`listing`] lists and removes a
//! hundred thousand of them, [`tree`] unpacks an archive,
//! [`database`] is SQLite, [`log`] appends and syncs. [`rates`] has the metrics of a part,
//! [`environment`] the peers.

mod database;
pub(super) mod environment;
mod fallocate2;
mod files;
pub(crate) mod floor;
mod listing;
mod log;
mod rates;
mod transfer;
mod tree;

use anyhow::Result;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;
use environment::Environments;

/// The bench.
pub struct Mount;

impl Bench for Mount {
    fn name(&self) -> &'static str {
        "mount"
    }

    fn about(&self) -> &'static str {
        "extant mount beside fuse2fs, the kernel's ext4 and a FUSE server that does nothing"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("mkfs.ext4"),
            Need::Program("e2fsck"),
            Need::Program("fuse2fs"),
            Need::Program("sqlite3"),
            Need::Program("tar"),
            Need::Program("find"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(fallocate2::ONE, 3.0, ""),
                Goal::at_least(fallocate2::EIGHT, 8.0, ""),
                Goal::at_least(fallocate2::OF_FLOOR, 0.7, ""),
                Goal::at_least(transfer::OVER_FUSE2FS, 1.0, ""),
                Goal::at_least(transfer::OF_FLOOR, 0.8, ""),
                Goal::at_least(files::OVER_FUSE2FS, 1.0, ""),
                Goal::at_least(files::OF_FLOOR, 0.8, ""),
                Goal::at_most(listing::FIND, 20.0, "us"),
                Goal::at_most(listing::REMOVE, 35.0, "us"),
                Goal::at_least(tree::OVER_FUSE2FS, 1.0, ""),
                Goal::at_least(database::OVER_FUSE2FS, 1.0, ""),
                Goal::at_least(log::OVER_FUSE2FS, 1.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        0
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome {
            title: format!(
                "images of {} in memory, mounted at the same time",
                environment::SIZE
            ),
            ..Outcome::default()
        };
        let environments = Environments::new(context)?;
        let selects = |part: &str| context.options.selects(part);
        if selects("fallocate2") {
            fallocate2::measure(context, &environments, &mut outcome)?;
        }
        transfer::measure(context, &environments, &mut outcome)?;
        if selects("files") {
            files::measure(context, &environments, &mut outcome)?;
        }
        if selects("listing") {
            listing::measure(context, &mut outcome)?;
        }
        if selects("tree") {
            tree::measure(context, &environments, &mut outcome)?;
        }
        if selects("sqlite") {
            database::measure(context, &environments, &mut outcome)?;
        }
        if selects("log") {
            log::measure(context, &environments, &mut outcome)?;
        }
        outcome.notes.extend(environments.commands());
        environments.end()?;
        Ok(outcome)
    }
}
