//! `mount`: `extant mount` beside fuse2fs, the kernel's ext4, and a FUSE server that does nothing.
//!
//! All are mounted for the whole run and take turns, each on an image of its own that mke2fs made with the same options, in
//! memory. Ours is the command as a user has it: a process of its own, with its default options. The *floor* is the same
//! transport with a file system behind it that answers at once ([`floor`]); it shows what FUSE itself leaves of a program's time.
//!
//! Parts: [`fallocate2`] is that of seeds/1, [`transfer`] reads and writes, [`files`] makes and removes many, [`tree`] unpacks an
//! archive, [`database`] is SQLite, [`log`] appends and syncs. The figures of a part are kept in a [`sheet`]; who is measured is
//! in [`stand`].

mod database;
mod fallocate2;
mod files;
pub(crate) mod floor;
mod log;
mod sheet;
mod stand;
mod transfer;
mod tree;

use anyhow::Result;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;
use stand::Stands;

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
            title: format!("images of {} in memory, mounted side by side", stand::SIZE),
            ..Outcome::default()
        };
        let stands = Stands::new(context)?;
        fallocate2::measure(context, &stands, &mut outcome)?;
        transfer::measure(context, &stands, &mut outcome)?;
        files::measure(context, &stands, &mut outcome)?;
        tree::measure(context, &stands, &mut outcome)?;
        database::measure(context, &stands, &mut outcome)?;
        log::measure(context, &stands, &mut outcome)?;
        outcome.notes.extend(stands.commands());
        stands.end()?;
        Ok(outcome)
    }
}
