//! The interface between a pool and the place of its volumes.
//!
//! A [`Storage`] and the files it opens live for one operation. A job's storage may be released
//! between two calls, with its open files, and is restored by the next call. Names are single
//! components. Links, directories and hidden names are never opened as volumes. Unfinished files
//! are separate from the volumes; one rename makes them volumes.
//!
//! All files are [`SpaceFile`]s. Capabilities that only some kinds have (sharing space, listing
//! processes that have a file open, attributes) have a default for the others. An operation that
//! needs a host file calls [`as_host`](VolumeFile::as_host).

mod block_file;
mod directory;
mod disk;
mod ext4;
mod hidden;
mod host_file;
mod lvm;
mod rbd;
mod volume_locks;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::Device;
use extant_hostfs::{
    Access, CreateReport, Directory, Existing, HostFile, MaterializeReport, Pace, Plan, Verified,
};
use extant_image::NewImage;
use extant_rbd::PoolStatistics;
use extant_space::{ByteRange, CancelToken, Control, Error, ErrorKind, Result, SpaceFile};

use crate::fair_lock::LockMode;
use crate::name::VolumeName;
use crate::permissions::Owner;

pub(crate) use directory::DirectoryStorage;
pub(crate) use disk::DiskStore;
pub(crate) use ext4::{Ext4Image, Ext4Storage, ImageWaiter, Opening, Pin};
pub(crate) use lvm::LvmStore;
pub(crate) use rbd::RbdStore;

/// The attribute with the format of a volume.
pub(crate) const FORMAT_ATTRIBUTE: &str = "user.extant.format";
/// Its value where volumes are nothing but their content.
const RAW: &[u8] = b"raw";
/// The bits of a mode that the owner needs to change the file.
pub(crate) const OWNER_WRITES: u32 = 0o600;
/// More than any place has.
const PLACE_BYTES_MAX: u64 = 4096;

/// Notes in the state directory `own` which disk, group or cluster the pool is on.
///
/// # Errors
/// `InUse` where unfinished jobs are of another one.
fn write_place(own: &Directory, name: &str, place: &[u8], has_jobs: bool) -> Result<()> {
    check_place(own, name, place, has_jobs)?;
    own.write(name, place)
}

/// Refuses another disk, group or cluster than that of unfinished jobs.
fn check_place(own: &Directory, name: &str, place: &[u8], has_jobs: bool) -> Result<()> {
    let found = own.read(name, PLACE_BYTES_MAX)?;
    if has_jobs && found.is_some_and(|found| found.trim_ascii() != place.trim_ascii()) {
        return Err(Error::new(ErrorKind::InUse)
            .at(own.path())
            .detail("the state directory has unfinished jobs of another disk, group or cluster")
            .advice("finish or cancel them there, or name another state directory"));
    }
    Ok(())
}

/// Access for which a storage is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nothing is changed.
    Look,
    /// Volumes, or files that become some.
    Change,
}

/// Opener of a store, which determines how long it may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller<'c> {
    /// A short operation.
    Short,
    /// A job; its cancel is not delayed.
    Job(&'c CancelToken),
    /// The rollback of a job: one that cannot be done now is left for later.
    Rollback,
}

/// A file, with the attributes of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) size_bytes: u64,
    /// On the file system.
    pub(crate) allocated_bytes: u64,
    /// Bytes of a block of the file system.
    pub(crate) block_bytes: u64,
    /// Permissions: the lowest 12 bits of the mode.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A file that is not complete, or was not when its process died.
#[derive(Debug, PartialEq)]
pub(crate) struct WorkFile {
    pub(crate) name: String,
    pub(crate) allocated_bytes: u64,
}

/// A file that is to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    pub(crate) image: NewImage,
    pub(crate) mode: u32,
    /// Copy-on-write is turned off, where there is any.
    pub(crate) nocow: bool,
}

/// How an existing file is made written.
#[derive(Clone, Debug)]
pub(crate) struct MakeWritten {
    /// `None`: all of it.
    pub(crate) range: Option<ByteRange>,
    /// Parts shared with other files get space of their own; refused otherwise.
    pub(crate) unshare: bool,
    /// Other processes are not excluded: none that has the file open knows of this range.
    pub(crate) is_unknown_to_others: bool,
    pub(crate) pace: Pace,
}

/// How space was made, with the details that the operation and the storage provide.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Zeros written in this run, bytes.
    pub zeroed_bytes: Option<u64>,
    /// How they were written.
    pub plan: Option<Plan>,
    /// The reference that verified the result.
    pub verified: Option<Verified>,
    /// Things the user should know, one line each.
    pub notes: Vec<String>,
}

impl From<CreateReport> for Done {
    fn from(report: CreateReport) -> Self {
        Self {
            zeroed_bytes: Some(report.written_bytes),
            plan: report.plan,
            // Without space there is nothing to verify.
            verified: Some(report.verified).filter(|_| report.allocation_bytes > 0),
            notes: report.notes,
        }
    }
}

impl From<MaterializeReport> for Done {
    fn from(report: MaterializeReport) -> Self {
        Self {
            zeroed_bytes: Some(report.zeroed_bytes),
            plan: report.plan,
            verified: Some(report.verified),
            notes: Vec::new(),
        }
    }
}

/// A property of volumes that some kinds of storage do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Files that have less space than their size.
    Sparse,
    /// Space that is allocated and not written.
    Unwritten,
    /// Volumes of the format qcow2.
    Qcow2,
    /// Files that share space.
    SharedSpace,
    /// Permissions of each volume.
    Permissions,
    /// Attributes, which keep foreign elements.
    Attributes,
}

/// Progress that the unfinished file of a job cannot show. The job keeps it for the process that
/// resumes it.
pub(crate) trait Checkpoint {
    /// The bytes of the object `identity` before which all is done; 0 if there is no record of it.
    fn done_bytes(&self, identity: u64) -> u64;

    /// Records that the first `bytes` of the object are done, and durable.
    fn set_done_bytes(&self, identity: u64, bytes: u64);
}

/// A new size of a raw volume.
pub(crate) struct ResizeWork<'a> {
    pub(crate) volume: &'a VolumeName,
    pub(crate) size_bytes: u64,
    /// Name of the unfinished file that may be made for it.
    pub(crate) work: &'a str,
    pub(crate) pace: &'a Pace,
    pub(crate) checkpoint: &'a dyn Checkpoint,
}

/// Opens the storage of a pool whose volumes are not files of a file system.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// For one operation. `own` is the state directory; `None` if there is none, or this user may
    /// not read it.
    fn open(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        caller: Caller<'_>,
    ) -> Result<Box<dyn Storage + '_>>;

    /// Prepares the store for a new definition, whose state directory is `own`.
    fn build(&self, own: &Directory, has_jobs: bool) -> Result<()>;

    /// Path of a volume, for messages.
    fn path_of(&self, name: &VolumeName) -> PathBuf;
}

/// The storage of a pool's volumes.
pub(crate) trait Storage: Send + Sync {
    /// Why its volumes lack a feature; `None` if they have it.
    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        let _ = feature;
        None
    }

    /// Sizes of volumes are multiples of this many bytes; others are rounded up.
    fn unit_bytes(&self) -> u64 {
        1
    }

    /// Fails if a new volume of `bytes` has no place, although there is enough free space.
    fn check_place(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Refuses the name of a new volume that the storage cannot keep.
    fn check_name(&self, name: &VolumeName) -> Result<()> {
        let _ = name;
        Ok(())
    }

    /// The largest volume that has a place; `None` if only the free space limits it.
    fn largest_gap_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Figures of the cluster about its space; `None` if the storage is in none.
    fn cluster_statistics(&self) -> Result<Option<PoolStatistics>> {
        Ok(None)
    }

    /// Whether a job that `error` stops keeps its unfinished file, as others may remove the cause.
    fn keeps_work_after(&self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// Gives a raw volume another size in one step, with the space of a larger one prepared; false
    /// if the size is that of its file, which the caller changes.
    fn resize_volume(&self, resize: &ResizeWork<'_>, control: Control<'_>) -> Result<bool> {
        let _ = (resize, control);
        Ok(false)
    }

    /// Whether written space of a larger volume is made in steps, as its size grows: where other
    /// programs open the files of volumes.
    fn grows_in_steps(&self) -> bool {
        true
    }

    /// Whether [`resize_volume`](Self::resize_volume) does it.
    fn resizes_at_once(&self) -> bool {
        false
    }

    /// The device of a volume that is no file of the host.
    fn device_of(&self, name: &VolumeName, access: Access) -> Result<Option<VolumeDevice>> {
        let _ = (name, access);
        Ok(None)
    }

    /// Visits the volumes, in no order; returns how many names are none.
    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64>;

    /// Something has the name, whatever it is.
    fn has_name(&self, name: &VolumeName) -> Result<bool>;

    /// Opens the file of a volume.
    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>>;

    /// Opens a volume for the attributes of a list; `None` if it may not be read.
    fn peek(&self, name: &VolumeName) -> Option<Box<dyn Peek>>;

    /// Removes a volume's name. Its space is freed when its last user closes it.
    fn remove(&self, name: &VolumeName) -> Result<()>;

    /// Makes removals durable; the space of the removed files is counted as free on return.
    fn sync(&self) -> Result<()>;

    /// Free space of the file system for the user of this process.
    fn free_bytes(&self) -> Result<u64>;

    /// Size of the file system as in `df`.
    fn total_bytes(&self) -> Result<u64>;

    /// Directory of the incomplete files; for messages.
    fn work_path(&self) -> PathBuf;

    /// The files that are not complete.
    fn work_files(&self) -> Result<Vec<WorkFile>>;

    /// Opens such a file to be changed; `None` where there is none.
    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>>;

    /// Makes one for content of `size_bytes`, for its owner alone. It may be empty yet.
    fn new_work(&self, name: &str, size_bytes: u64) -> Result<Box<dyn VolumeFile>>;

    /// Makes a file that gets its name when it is complete and its content durable. Work of an
    /// earlier run is not repeated.
    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        checkpoint: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done>;

    /// Removes an unfinished file. Its space is freed soon.
    fn remove_work(&self, name: &str) -> Result<()>;

    /// Gives one the name of a volume, in one step and durably.
    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()>;

    /// Path of a volume, for messages.
    fn path_of(&self, name: &VolumeName) -> PathBuf;

    /// New files can share the space of `source`.
    fn can_share(&self, source: &dyn VolumeFile) -> Result<bool>;
}

/// A volume in a list.
pub(crate) trait Peek {
    /// The value of a short extended attribute; `None` where there is none.
    fn attribute(&self, name: &str) -> Option<Vec<u8>>;

    /// Reads the first bytes; how many there were.
    fn read(&self, first: &mut [u8]) -> usize;
}

/// The device of a volume, which outlives the storage.
pub(crate) struct VolumeDevice {
    pub(crate) device: Arc<dyn Device>,
    /// Keeps others away until it is dropped, after the device.
    pub(crate) _lock: Option<Box<dyn Send + Sync>>,
}

/// One of a storage whose volumes are all raw: the format is known without the content.
struct PeekedRaw;

impl Peek for PeekedRaw {
    fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        (name == FORMAT_ATTRIBUTE).then(|| RAW.to_vec())
    }

    fn read(&self, _: &mut [u8]) -> usize {
        0
    }
}

/// Units of a copy, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyUnits {
    /// Read and written at once.
    pub(crate) piece_bytes: u64,
    /// Flushed at once, so that the final sync is short and does not delay a cancel.
    pub(crate) sync_bytes: u64,
}

/// The file of a volume, or one that is to become some.
///
/// By default it is raw, whatever it holds, and has no permissions and attributes.
pub(crate) trait VolumeFile: SpaceFile {
    /// For messages.
    fn path(&self) -> &Path;

    fn stat(&self) -> Result<FileStat>;

    /// Time of the last change (ctime) in nanoseconds since 1970, by the clock of the file system.
    /// `None` if its resolution is too coarse.
    fn changed_ns(&self) -> Result<Option<u64>>;

    /// Maximum delay of a killed process's own writes after the last ctime that it saw.
    fn last_writes(&self) -> Duration;

    /// Parts that were never written read as zeros.
    fn starts_zeroed(&self) -> bool {
        true
    }

    /// Takes a lock; false if another process holds a conflicting one.
    fn try_lock(&self, mode: LockMode) -> Result<bool>;

    /// Gives the lock back.
    fn unlock(&self);

    /// The other processes that are known to have the file open, as text.
    fn holders(&self) -> Option<String>;

    /// Sets the permissions, durably. Where there are none, submission refuses others.
    fn set_mode(&self, _mode: u32) -> Result<()> {
        Ok(())
    }

    /// Sets owner and group, durably. Where there are none, submission refuses them.
    fn set_owner(&self, _owner: Owner) -> Result<()> {
        Ok(())
    }

    /// The value of an extended attribute; `None` where there is none.
    fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok((name == FORMAT_ATTRIBUTE).then(|| RAW.to_vec()))
    }

    /// Sets an extended attribute.
    fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        if name == FORMAT_ATTRIBUTE && value == RAW {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported)
            .at(self.path())
            .detail("the volume is raw, and has no attributes"))
    }

    /// Becomes a copy of `source` that shares its space; false where that cannot be.
    fn share_space_of(&self, source: &dyn VolumeFile) -> Result<bool>;

    /// Holes and unwritten parts become written; data is kept.
    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done>;

    /// The range reads as zeros and is written, durably; data is lost.
    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()>;

    /// Written blocks are overwritten in place.
    fn overwrites_in_place(&self) -> Result<bool>;

    /// The units of a copy to it.
    fn copy_units(&self) -> CopyUnits {
        CopyUnits {
            piece_bytes: 1 << 20,
            sync_bytes: 64 << 20,
        }
    }

    /// The file of the host, where it is one.
    fn as_host(&self) -> Option<&HostFile>;
}

/// A time of a file; `None` for one before 1970.
pub(crate) fn nanoseconds(seconds: i64, and_nanoseconds: u64) -> Option<u64> {
    let seconds = u64::try_from(seconds).ok()?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(and_nanoseconds)
}

/// Names that exist in every pool.
fn is_own(name: &[u8]) -> bool {
    matches!(name, b".extant" | b"lost+found")
}
