//! A directory as the scan of the inodes leaves it.

use extant_ondisk::ext4::{InodeNumber, InodeSeed};

use crate::mapping::Run;

/// A directory.
pub(crate) struct Directory {
    pub(crate) number: InodeNumber,
    /// The directory that has an entry for it.
    pub(crate) parent: Option<InodeNumber>,
    /// Inode named by `..`.
    pub(crate) dot_dot: Option<InodeNumber>,
    pub(crate) seed: Option<InodeSeed>,
    pub(crate) is_indexed: bool,
    /// Names are any bytes.
    pub(crate) is_encrypted: bool,
    /// Names are hashed after case folding, which is not known here.
    pub(crate) is_casefolded: bool,
    /// An orphan without links: its content is orphaned with it, and is not read.
    pub(crate) is_deleted: bool,
    pub(crate) runs: Vec<Run>,
}
