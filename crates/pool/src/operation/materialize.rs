//! Holes and unwritten parts of a volume become written.

use extant_hostfs::{MaterializeOptions, Shared, materialize_file};
use extant_space::{Control, Result};
use rustix::fs::OFlags;

use crate::job::{Materialize, Work};
use crate::volume::lock_alone;

pub(super) fn perform(
    work: &Work<'_>,
    materialize: &Materialize,
    control: Control<'_>,
) -> Result<()> {
    let file = work.pool.open_volume(&materialize.volume, OFlags::RDWR)?;
    let _locked = lock_alone(&file)?;
    let options = MaterializeOptions {
        shared: match materialize.unshare {
            true => Shared::Unshare,
            false => Shared::Refuse,
        },
        pace: work.pace(),
        ..MaterializeOptions::default()
    };
    materialize_file(&file, &options, control).map(|_| ())
}
