//! Holes and unwritten parts of a volume become written.

use extant_hostfs::Access;
use extant_space::{Control, Result};

use crate::job::{Materialize, Work};
use crate::storage::MakeWritten;
use crate::volume::lock_alone;

pub(super) fn perform(
    work: &Work<'_>,
    materialize: &Materialize,
    control: Control<'_>,
) -> Result<()> {
    let file = work.storage.open(&materialize.volume, Access::ReadWrite)?;
    let _locked = lock_alone(&*file)?;
    let wanted = MakeWritten {
        range: None,
        unshare: materialize.unshare,
        is_unknown_to_others: false,
        pace: work.pace(),
    };
    file.make_written(&wanted, control)
}
