//! Pools, volumes and jobs: storage for virtual machines and containers without over-promising.
//!
//! A [`Pool`] is a directory, on the host or in an ext4 file-system image that the engine drives
//! without a mount. Its volumes are the files in it, raw or qcow2. The pool's state (jobs,
//! unfinished files, a lock) is in the hidden directory `.extant`. Any directory is a pool; a
//! [`Definition`] adds a name and [`Limits`].
//!
//! Every long operation is a [`Job`]. It reserves its space before it starts, reports progress, can
//! be cancelled by every user with access to the pool, and survives its process. An incomplete file
//! never has the name of a volume.
//!
//! Definitions: `docs/internals/pool.md`.

#![forbid(unsafe_code)]

mod accounting;
mod definition;
mod folder;
mod format;
mod job;
mod limits;
mod name;
mod operation;
mod pool;
mod refresh;
mod state;
mod storage;
mod volume;
mod xml;

pub use accounting::Space;
pub use definition::{Definition, Definitions, InImage, PoolKind};
pub use format::Format;
pub use job::{
    CloneMethod, CloneVolume, CreateVolume, Done, Download, Job, JobFailure, JobId, JobOptions,
    JobState, JobStatus, Materialize, OnStop, Operation, Priority, Resize, Upload, Wipe,
    WipeMethod,
};
pub use limits::{Limits, Overcommit};
pub use name::{PoolName, VolumeName};
pub use pool::{Pool, PoolInfo};
pub use refresh::{Interrupted, Leftovers, Refreshed};
pub use volume::{ImageFacts, ListedVolume, VolumeInfo, VolumePlace};
pub use xml::VolumeXml;
