//! Pools, volumes and jobs: storage for virtual machines and containers without over-promising.
#![doc = include_str!("../README.md")]
//!
//! A [`Pool`] is a directory, on the host or in an ext4 file-system image that the engine drives
//! without a mount. Its volumes are the files in it, raw or qcow2; or they are the partitions of a
//! disk, logical volumes of a volume group, or images of a Ceph cluster. The pool's state (jobs,
//! unfinished files, a lock) is in the hidden directory `.extant`. Any directory is a pool; a
//! [`Definition`] adds a name and [`Limits`].
//!
//! Every long operation is a [`Job`]. It reserves its space before it starts, reports progress, can
//! be cancelled by every user with access to the pool, and survives its process. An incomplete file
//! never has the name of a volume.
//!
//! Definitions: `docs/internals/pool.md`.
//!
//! Module layers, lowest first:
//!
//! 1. `fair_lock`, `limits`, `name`, `permissions`, `cluster_place`, `state_directory`: locks
//!    between processes, values, own names
//! 2. `storage`: the place of the volumes, on the host or in an ext4 file system
//! 3. `foreign`, `format`, `volume_lock`: the attributes stored with a volume, and its lock
//! 4. `definition`, `job`: definitions of pools, records of jobs
//! 5. `state`: the state directory and the pool's lock
//! 6. `accounting`, `job_rate`: space and rate, shared by the jobs
//! 7. `work`: the environment of an operation
//! 8. `operation`: the operations of jobs
//! 9. `place`, `pool`: pools by name or path; the pool, and the jobs of this process

#![forbid(unsafe_code)]

mod accounting;
mod cluster_place;
mod definition;
mod fair_lock;
mod foreign;
mod format;
mod job;
mod job_rate;
mod limits;
mod name;
mod operation;
mod permissions;
mod place;
mod pool;
mod state;
mod state_directory;
mod storage;
mod volume_lock;
mod work;

pub use accounting::Space;
pub use cluster_place::ClusterPlace;
pub use definition::{Definition, Definitions, InImage, PoolKind};
pub use foreign::ForeignElements;
pub use format::Format;
pub use job::{
    CloneMethod, CloneVolume, CreateVolume, Download, JobFailure, JobId, JobOptions, JobState,
    JobStatus, Materialize, Operation, Priority, Resize, Upload, Verification, Wipe, WipeMethod,
};
pub use limits::{Limits, Overcommit};
pub use name::{PoolName, VolumeName};
pub use permissions::{Owner, Permissions};
pub use place::{is_path, state_for_disk, state_of_user};
pub use pool::{
    ImageFacts, Interrupted, Job, Leftovers, ListedVolume, OnStop, Pool, PoolInfo, Refreshed,
    VolumeInfo, VolumePlace,
};
pub use storage::Done;
