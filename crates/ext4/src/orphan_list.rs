//! The orphans in memory: the state that the next commit writes to the disk.
//!
//! The model, the invariant and the lock order: `orphan.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use extant_ondisk::ext4::{InodeNumber, InodeSeed, PhysicalBlock};
use extant_space::Error;

use crate::inode_cell::InodeCell;
use crate::sync::lock;

#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) inner: Mutex<OrphanRecords>,
    /// The head of the list has changed since the superblock was last checkpointed.
    pub(crate) head_changed: AtomicBool,
    /// The first error of freeing blocks.
    failure: Mutex<Option<Error>>,
}

#[derive(Default)]
pub(crate) struct OrphanRecords {
    pub(crate) file: Vec<FileBlock>,
    /// Seed of the checksums of the orphan file.
    pub(crate) seed: Option<InodeSeed>,
    /// The place of each orphan's entry.
    pub(crate) places: HashMap<InodeNumber, OrphanPlace>,
    /// The inodes of the list, the first of it at the end.
    pub(crate) list: Vec<Arc<InodeCell>>,
}

pub(crate) struct FileBlock {
    pub(crate) place: PhysicalBlock,
    pub(crate) free: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum OrphanPlace {
    File { block: usize, slot: usize },
    List,
}

impl Orphans {
    /// With an orphan file of `blocks`, if there is one.
    pub(crate) fn new(blocks: &[PhysicalBlock], seed: Option<InodeSeed>) -> Self {
        let file = blocks.iter().map(|&place| FileBlock { place, free: 0 });
        Self {
            inner: Mutex::new(OrphanRecords {
                file: file.collect(),
                seed,
                ..OrphanRecords::default()
            }),
            head_changed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// Whether the first of the list may be another one in the log than in the superblock's own
    /// place; it is not from now on.
    pub(crate) fn take_head_changed(&self) -> bool {
        self.head_changed.swap(false, Ordering::Relaxed)
    }

    /// Records the reason why an orphan is kept until the file system is opened again.
    pub(crate) fn note_failure(&self, cell: &InodeCell, error: &Error) {
        let mut failure = lock(&self.failure);
        failure.get_or_insert_with(|| {
            Error::new(error.kind())
                .detail(format!(
                    "inode {}: its blocks were not freed: {error}",
                    cell.number
                ))
                .advice("check the file system")
        });
    }

    /// The first such error, once.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }

    /// Whether nothing is noted.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.inner).places.is_empty()
    }
}
