//! A pool to test on, and the words the tests share.

use std::path::Path;

use extant_pool::{
    CloneMethod, CloneVolume, CreateVolume, Definition, Job, JobOptions, Leftovers, Limits, OnStop,
    Operation, Pool, Resize, VolumeName,
};
use extant_space::{CancelToken, Control, Preallocation, Result, Silent};
use extant_testkit::scratch::{Filesystem, Scratch};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A file system in memory: what is tested here is not the disk.
pub fn in_memory(filesystem: Filesystem, bytes: u64) -> Scratch {
    Scratch::builder(filesystem, bytes)
        .memory(2 * bytes)
        .build()
}

pub fn name(text: &str) -> VolumeName {
    text.parse().expect("a name of a volume")
}

/// The pool that every directory is.
pub fn pool_at(path: &Path) -> Pool {
    Pool::open(Definition::of_directory(path)).expect("a pool")
}

/// A pool in `path` with limits.
pub fn pool_with(path: &Path, limits: Limits) -> Pool {
    let name = "test".parse().expect("a name of a pool");
    let definition = Definition::named(name, path, limits).expect("a definition");
    Pool::build(definition).expect("a pool")
}

/// A volume with all of its space in `preallocation`.
pub fn create(volume: &str, bytes: u64, preallocation: Preallocation) -> Operation {
    Operation::Create(CreateVolume::new(name(volume), bytes, preallocation))
}

pub fn clone(source: &str, volume: &str, method: CloneMethod) -> Operation {
    Operation::Clone(CloneVolume {
        source: name(source),
        volume: name(volume),
        method,
        mode: 0o600,
    })
}

pub fn resize(volume: &str, bytes: u64, preallocation: Preallocation) -> Operation {
    Operation::Resize(Resize {
        volume: name(volume),
        capacity_bytes: bytes,
        preallocation: preallocation.into(),
        shrink: false,
    })
}

pub fn submit(pool: &Pool, operation: Operation) -> Result<Job<'_>> {
    pool.submit(operation, JobOptions::default())
}

pub fn run(job: Job<'_>) -> Result<()> {
    job.run(OnStop::Cancel, Control::new(&CancelToken::new(), &Silent))
}

/// Submits and runs.
pub fn perform(pool: &Pool, operation: Operation) -> Result<()> {
    run(submit(pool, operation)?)
}

/// Nothing is reserved, no job is unfinished, and no unfinished file takes space.
#[track_caller]
pub fn assert_at_rest(pool: &Pool) {
    let info = pool.info().unwrap();
    assert_eq!((info.jobs, info.space.reserved_bytes), (0, 0), "{info:?}");
    let found = pool.refresh(Leftovers::Keep).unwrap();
    assert!(found.interrupted.is_empty(), "{found:?}");
    assert_eq!(found.removed_files, 0, "{found:?}");
    let volumes = pool.volumes().unwrap();
    let allocated: u64 = volumes.iter().map(|volume| volume.allocation_bytes).sum();
    assert_eq!(info.space.allocated_bytes, allocated);
}

/// The names of the pool's volumes.
pub fn names(pool: &Pool) -> Vec<String> {
    let volumes = pool.volumes().unwrap().into_iter();
    volumes.map(|volume| volume.name.to_string()).collect()
}
