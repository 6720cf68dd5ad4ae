//! A pool for the tests, and their shared helpers.

use std::num::NonZeroU64;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use extant_pool::{
    CloneMethod, CloneVolume, CreateVolume, Definition, Download, Job, JobId, JobOptions, JobState,
    Leftovers, Limits, Materialize, OnStop, Operation, Pool, Resize, Upload, VolumeName, Wipe,
    WipeMethod,
};
use extant_space::{
    ByteRange, CancelToken, Control, ExtentState, FallocateMode, Preallocation, Result, Silent,
    SpaceFile,
};
use extant_testkit::scratch::{Filesystem, Scratch};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A file system in memory: these tests do not test the disk.
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

/// A volume with only its first bytes written.
pub fn part(volume: &str, bytes: u64, allocation_bytes: u64) -> CreateVolume {
    let mut part = CreateVolume::new(name(volume), bytes, Preallocation::Full);
    part.allocation_bytes = allocation_bytes;
    part.mode = 0o640;
    part
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

pub fn wipe(volume: &str, method: WipeMethod) -> Operation {
    Operation::Wipe(Wipe {
        volume: name(volume),
        method,
        force: false,
    })
}

pub fn materialize(volume: &str) -> Operation {
    Operation::Materialize(Materialize {
        volume: name(volume),
        unshare: false,
    })
}

/// The same, including extents shared with other volumes.
pub fn unshare(volume: &str) -> Operation {
    Operation::Materialize(Materialize {
        volume: name(volume),
        unshare: true,
    })
}

pub fn upload(volume: &str, source: &Path) -> Upload {
    Upload {
        volume: name(volume),
        source: source.to_path_buf(),
        format: None,
        allow_backing: false,
        replace: false,
        mode: 0o600,
    }
}

pub fn download(volume: &str, target: &Path) -> Download {
    Download {
        volume: name(volume),
        target: target.to_path_buf(),
        replace: false,
    }
}

/// A rate limit: slow enough that the test can act meanwhile.
pub fn at_rate(bytes: u64) -> JobOptions {
    JobOptions {
        rate: NonZeroU64::new(bytes),
        ..JobOptions::default()
    }
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

/// Waits until a job has its turn.
#[track_caller]
pub fn wait_until_running(pool: &Pool, id: JobId) {
    loop {
        let state = pool.job(id).unwrap().state;
        if state == JobState::Running {
            return;
        }
        assert_eq!(state, JobState::Waiting);
        sleep(Duration::from_millis(2));
    }
}

/// A hole, unwritten space, data, and a tail of less than a block; returns the content.
pub fn mixed(file: &dyn SpaceFile) -> Vec<u8> {
    let mut content = vec![0; (5 * MIB + 777) as usize];
    file.resize(content.len() as u64).unwrap();
    file.fallocate(FallocateMode::Allocate, ByteRange::new(MIB, 2 * MIB))
        .unwrap();
    for at in [3 * MIB, 5 * MIB - 100] {
        let data: Vec<u8> = (0..600 * KIB).map(|byte| (byte % 251) as u8 | 1).collect();
        let length = data.len().min(content.len() - at as usize);
        content[at as usize..at as usize + length].copy_from_slice(&data[..length]);
        file.write_at(&data[..length], at).unwrap();
    }
    content
}

#[track_caller]
pub fn assert_mixed(file: &dyn SpaceFile) {
    let state = |at| {
        let extents = file.extents(ByteRange::new(at, at + KIB)).unwrap();
        extents
            .first()
            .map_or(ExtentState::Hole, |extent| extent.state)
    };
    assert_eq!(state(0), ExtentState::Hole);
    assert_eq!(state(MIB + MIB / 2), ExtentState::Unwritten);
    assert_eq!(state(3 * MIB), ExtentState::Written);
}
