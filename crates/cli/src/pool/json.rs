//! Pools, volumes and jobs as JSON documents.
//!
//! The library's own types are serialised as in records; these have the names of
//! `docs/formats/json.md`.

use extant_image::{Format, Preallocation, Qcow2Info};
use extant_pool::{
    Interrupted, JobFailure, JobId, JobState, JobStatus, Limits, ListedVolume, Operation, Pool,
    PoolInfo, PoolKind, Priority, Refreshed, VolumeInfo,
};
use extant_rbd::PoolStatistics;
use extant_space::{ExtentState, MapSummary, Progress};
use serde::Serialize;
use serde_json::{Value, json};

/// A pool, in `pool info` and in lists.
#[derive(Serialize)]
pub struct PoolJson<'a> {
    name: Option<&'a str>,
    kind: PoolKind,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<&'a str>,
    space: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_gap_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Value>,
    jobs: usize,
    limits: Value,
}

impl<'a> From<&'a PoolInfo> for PoolJson<'a> {
    fn from(info: &'a PoolInfo) -> Self {
        let space = &info.space;
        Self {
            name: info.name.as_ref().map(|name| name.as_str()),
            kind: info.kind,
            path: &info.path,
            directory: info.directory.as_deref(),
            space: json!({
                "total_bytes": space.total_bytes,
                "allocated_bytes": space.allocated_bytes,
                "promised_bytes": space.promised_bytes,
                "reserved_bytes": space.reserved_bytes,
                "available_bytes": space.available_bytes,
                "volumes": space.volumes,
            }),
            largest_gap_bytes: info.largest_gap_bytes,
            cluster: info.cluster.as_ref().map(cluster),
            jobs: info.jobs,
            limits: limits(&info.limits),
        }
    }
}

fn cluster(statistics: &PoolStatistics) -> Value {
    json!({
        "stored_bytes": statistics.stored_bytes,
        "available_bytes": statistics.available_bytes,
        "quota_bytes": statistics.quota_bytes,
        "objects": statistics.objects,
        "copies": statistics.copies,
        "nearfull_ratio": statistics.nearfull_ratio,
        "full_ratio": statistics.full_ratio,
        "is_nearfull": statistics.is_nearfull,
        "is_full": statistics.is_full,
    })
}

fn limits(limits: &Limits) -> Value {
    json!({
        "total_bytes": limits.total_bytes,
        "overcommit": limits.overcommit,
        "rate_bytes_per_second": limits.rate,
        "jobs_max": limits.jobs_max,
        "preallocation": limits.preallocation,
    })
}

/// A volume in a list.
#[derive(Serialize)]
pub struct ListedJson {
    pub pool: String,
    name: String,
    format: Option<Format>,
    capacity_bytes: u64,
    allocated_bytes: u64,
}

impl ListedJson {
    pub fn new(pool: &Pool, volume: &ListedVolume) -> Self {
        Self {
            pool: pool.to_string(),
            name: volume.name.to_string(),
            format: volume.format,
            capacity_bytes: volume.capacity_bytes,
            allocated_bytes: volume.allocation_bytes,
        }
    }
}

/// A volume.
#[derive(Serialize)]
pub struct VolumeJson<'a> {
    pool: String,
    name: &'a str,
    path: String,
    format: Option<Format>,
    capacity_bytes: u64,
    size_bytes: u64,
    allocated_bytes: u64,
    written_bytes: u64,
    preallocation: Option<Preallocation>,
    may_run_out_of_space: bool,
    map: &'a MapSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    qcow2: Option<&'a Qcow2Info>,
    mode: String,
    uid: u32,
    gid: u32,
}

impl<'a> VolumeJson<'a> {
    pub fn new(pool: &Pool, info: &'a VolumeInfo) -> Self {
        Self {
            pool: pool.to_string(),
            name: info.name.as_str(),
            path: info.path.display().to_string(),
            format: info.format,
            capacity_bytes: info.capacity_bytes,
            size_bytes: info.file_bytes,
            allocated_bytes: info.allocation_bytes,
            written_bytes: info.written_bytes,
            preallocation: preallocation(info),
            may_run_out_of_space: info.may_run_out_of_space,
            map: &info.map,
            qcow2: info.image.as_ref().map(|image| &image.qcow2),
            mode: octal(info.mode),
            uid: info.uid,
            gid: info.gid,
        }
    }
}

/// The least that holds for all of the disk.
fn preallocation(info: &VolumeInfo) -> Option<Preallocation> {
    let there = |state| info.map.bytes(state);
    let (unwritten, written) = (there(ExtentState::Unwritten), there(ExtentState::Written));
    match (&info.image, info.format) {
        (Some(image), _) => Some(image.preallocation),
        (None, Some(Format::Raw)) if unwritten + written < info.file_bytes => {
            Some(Preallocation::Off)
        }
        (None, Some(Format::Raw)) if unwritten > 0 => Some(Preallocation::Falloc),
        (None, Some(Format::Raw)) => Some(Preallocation::Full),
        (None, _) => None,
    }
}

/// A job.
#[derive(Serialize)]
pub struct JobJson<'a> {
    job: JobId,
    pool: String,
    operation: &'static str,
    volume: String,
    state: JobState,
    options: JobOptionsJson,
    request: Value,
    progress: Option<Progress>,
    created: String,
    ended: Option<String>,
    failure: Option<&'a JobFailure>,
}

#[derive(Serialize)]
struct JobOptionsJson {
    priority: Priority,
    background: bool,
    background_percent: Option<f64>,
    rate_bytes_per_second: Option<u64>,
}

impl<'a> JobJson<'a> {
    pub fn new(pool: &Pool, job: &'a JobStatus) -> Self {
        Self {
            job: job.id,
            pool: pool.to_string(),
            operation: job.operation.name(),
            volume: job.operation.volume().to_string(),
            state: job.state,
            options: JobOptionsJson {
                priority: job.options.priority,
                background: job.options.background,
                background_percent: job.options.background_share.map(f64::from),
                rate_bytes_per_second: job.options.rate.map(u64::from),
            },
            request: request(&job.operation),
            progress: job.progress,
            created: moment(job.created),
            ended: job.ended.map(moment),
            failure: job.failure.as_ref(),
        }
    }
}

/// Request of a job, without the volume.
fn request(operation: &Operation) -> Value {
    match operation {
        Operation::Create(create) => json!({
            "format": create.format,
            "capacity_bytes": create.capacity_bytes,
            "preallocated_bytes": create.allocation_bytes,
            "preallocation": create.preallocation,
            "mode": octal(create.mode),
            "uid": create.owner.uid,
            "gid": create.owner.gid,
        }),
        Operation::Clone(clone) => json!({
            "source": clone.source,
            "method": clone.method,
            "mode": octal(clone.mode),
        }),
        Operation::Resize(resize) => json!({
            "capacity_bytes": resize.capacity_bytes,
            "preallocation": resize.preallocation,
            "shrink": resize.shrink,
        }),
        Operation::Wipe(wipe) => json!({ "method": wipe.method, "force": wipe.force }),
        Operation::Materialize(materialize) => json!({ "unshare": materialize.unshare }),
        Operation::Upload(upload) => json!({
            "source": upload.source.display().to_string(),
            "format": upload.format,
            "replace": upload.replace,
            "mode": octal(upload.mode),
        }),
        Operation::Download(download) => json!({
            "target": download.target.display().to_string(),
            "replace": download.replace,
        }),
        _ => json!({}),
    }
}

/// Report of a refresh.
pub fn refreshed(pool: &Pool, found: &Refreshed) -> Value {
    let interrupted = |interrupted: &Interrupted| {
        let mut job = json!(JobJson::new(pool, &interrupted.job));
        job["allocated_bytes"] = interrupted.allocated_bytes.into();
        job
    };
    json!({
        "interrupted": found.interrupted.iter().map(interrupted).collect::<Vec<_>>(),
        "cancelled": found.cancelled,
        "completed": found.completed,
        "removed_files": found.removed_files,
        "removed_bytes": found.removed_bytes,
        "other_names": found.other_names,
    })
}

/// Permissions.
fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

/// A time of a job as RFC 3339, in UTC.
pub fn moment(seconds: u64) -> String {
    match jiff::Timestamp::from_second(seconds as i64) {
        Ok(time) => time.to_string(),
        Err(_) => format!("{seconds} s after 1970"),
    }
}
