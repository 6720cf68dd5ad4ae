//! Pools, volumes and jobs: storage for virtual machines and containers that promises only what exists.
//!
//! A [`Pool`] is a directory, of the host or in an ext4 image that the engine drives without a mount. Its volumes are the
//! files in it, raw or qcow2; what the pool itself keeps lies in a hidden folder `.extant`: jobs, unfinished files, a lock. Any
//! directory is a pool; a [`Definition`] gives one a name and [`Limits`].
//!
//! Every long operation is a [`Job`]: it reserves what it needs before it starts, tells how far it is, can be
//! cancelled by anybody who may use the pool, and survives its process. What is not complete never has a volume's name.
//!
//! Definitions: `docs/design.md`, "pool".

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
