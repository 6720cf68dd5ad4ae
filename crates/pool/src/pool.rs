//! A pool, open, and its operations.
//!
//! | module | operations |
//! |---|---|
//! | `volume` | on volumes, in the caller's thread |
//! | `submission` | new and resumed jobs |
//! | `queue`, `worker` | running a job |
//! | `control` | jobs of other processes |
//! | `refresh` | recovery after dead processes |

mod control;
mod queue;
mod refresh;
mod submission;
mod volume;
mod worker;

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use extant_hostfs::Directory;
use extant_image::hold::is_export;
use extant_rbd::PoolStatistics;
use extant_space::{CancelToken, Error, ErrorKind, Remedy, Result};
use serde::Serialize;

use crate::accounting::Space;
use crate::definition::{Definition, Definitions, PoolKind};
use crate::job::Stage;
use crate::limits::Limits;
use crate::name::{PoolName, VolumeName};
use crate::state::PoolState;
use crate::state_directory::STATE_DIRECTORY;
use crate::storage::{
    Caller, DirectoryStorage, DiskStore, Ext4Image, Ext4Storage, ImageWaiter, LvmStore, Opening,
    Pin, Purpose, RbdStore, Storage, Store,
};

pub use refresh::{Interrupted, Leftovers, Refreshed};
pub use volume::{ImageFacts, ListedVolume, VolumeInfo, VolumePlace};
pub use worker::{Job, OnStop};

/// Longest wait for jobs of other processes, in an image that only one process can have open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks whether they have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A longer wait is reported.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(1);

/// A pool whose directory is open or whose image exists.
#[derive(Debug)]
pub struct Pool {
    definition: Definition,
    location: PoolLocation,
    on_wait: Option<fn(&Error)>,
}

/// The storage of the volumes.
#[derive(Debug)]
enum PoolLocation {
    Directory(Directory),
    Image {
        image: Ext4Image,
        own: StatePlace,
    },
    Store {
        store: Box<dyn Store>,
        own: StatePlace,
    },
}

/// A state directory apart from the volumes.
#[derive(Debug)]
struct StatePlace {
    /// The parent directory.
    above: Directory,
    name: String,
}

impl StatePlace {
    fn new(path: &Path) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some(above), Some(name)) = (path.parent(), name) else {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .at(path)
                .detail("not the name of a directory, in UTF-8"));
        };
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        Ok(Self {
            above: Directory::open(above)?,
            name: name.to_owned(),
        })
    }
}

/// Information about a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolInfo {
    /// Its name; `None` for a directory without definition.
    pub name: Option<PoolName>,
    /// The kind of its storage.
    pub kind: PoolKind,
    /// Their location.
    pub path: String,
    /// The directory inside of that, for an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Its limits.
    pub limits: Limits,
    /// Its space and promises.
    #[serde(flatten)]
    pub space: Space,
    /// The largest volume that has a place, if not only the free space limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_gap_bytes: Option<u64>,
    /// Figures of the cluster, for a pool of one.
    #[serde(skip)]
    pub cluster: Option<PoolStatistics>,
    /// Number of waiting and running jobs.
    pub jobs: usize,
}

impl Pool {
    /// Opens the pool of a definition, whose directory or image must exist.
    ///
    /// # Errors
    /// `NotFound` also if the directory exists without the pool's state: its file system is not
    /// mounted.
    pub fn open(definition: Definition) -> Result<Self> {
        let pool = Self::at_location(definition)?;
        if let Some(identifier) = pool.definition.identifier() {
            match pool.state() {
                Ok(state) => pool.check_identity(state.as_ref(), identifier)?,
                // A reader without write permission cannot see it.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pool)
    }

    /// Prepares the directory of a new definition, creating it if necessary. A file-system image
    /// must exist.
    ///
    /// # Errors
    /// Those of creating it; `InUse` if another process uses the image, and the cause if it is not
    /// an ext4 file system.
    pub fn build(mut definition: Definition) -> Result<Self> {
        let permissions = definition.take_permissions();
        let make = |path: &Path| {
            std::fs::create_dir_all(path).map_err(|source| Error::from(source).at(path))
        };
        let make_above = |definition: &Definition| match definition.state().parent() {
            Some(above) => make(above),
            None => Ok(()),
        };
        match definition.kind() {
            PoolKind::Dir => permissions.make_directory(definition.path())?,
            PoolKind::Ext4 => {
                image_of(&definition).check()?;
                make_above(&definition)?;
            }
            PoolKind::Disk | PoolKind::Rbd | PoolKind::Lvm => make_above(&definition)?,
        }
        let pool = Self::at_location(definition)?;
        if let Some(identifier) = pool.definition.identifier() {
            let (above, name) = pool.own();
            let state = PoolState::make(above, name)?;
            match &pool.location {
                PoolLocation::Directory(_) => {}
                PoolLocation::Image { image, .. } => {
                    state.set_directory(pool.definition.directory())?;
                    let mut waiter = ImageWaiter::default();
                    pool.wait_for(OPEN_TIMEOUT, &mut || {
                        image.build(state.dir(), identifier, &mut waiter)
                    })?
                    .ok_or_else(|| pool.busy())?;
                }
                PoolLocation::Store { store, .. } => {
                    store.build(state.dir(), !state.jobs.unfinished()?.is_empty())?;
                }
            }
            state.set_identifier(identifier)?;
        }
        Ok(pool)
    }

    /// Prepares the storage of a new definition, and stores the definition under its name.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; those of [`build`](Self::build).
    ///
    /// # Panics
    /// When the definition has no name.
    pub fn define(definition: Definition, definitions: &Definitions) -> Result<Self> {
        // Before anything is made.
        definition.to_bytes()?;
        let _locked = definitions.lock()?;
        definitions.check_is_free(definition.name().expect("a new definition has a name"))?;
        definitions.check_place(&definition)?;
        let pool = Self::build(definition)?;
        definitions.add(pool.definition())?;
        Ok(pool)
    }

    fn at_location(definition: Definition) -> Result<Self> {
        let location = match definition.kind() {
            PoolKind::Dir => PoolLocation::Directory(Directory::open(definition.path())?),
            PoolKind::Ext4 => PoolLocation::Image {
                image: image_of(&definition),
                own: Self::state_beside(&definition)?,
            },
            PoolKind::Disk => PoolLocation::Store {
                store: Box::new(DiskStore::new(
                    definition.path(),
                    definition.identifier(),
                    definition.adopts_table(),
                )),
                own: Self::state_beside(&definition)?,
            },
            PoolKind::Lvm => {
                let (group, identifier) = (definition.volume_group(), definition.identifier());
                let (Some(group), Some(identifier)) = (group, identifier) else {
                    return Err(Error::new(ErrorKind::Corrupt)
                        .at(definition.path())
                        .detail("the definition names no volume group"));
                };
                PoolLocation::Store {
                    store: Box::new(LvmStore::new(group, identifier)),
                    own: StatePlace::new(&definition.state())?,
                }
            }
            PoolKind::Rbd => {
                let (place, identifier) = (definition.cluster(), definition.identifier());
                let (Some(place), Some(identifier)) = (place, identifier) else {
                    return Err(Error::new(ErrorKind::Corrupt)
                        .at(definition.path())
                        .detail("the definition names no pool of a cluster"));
                };
                PoolLocation::Store {
                    store: Box::new(RbdStore::new(place, identifier)),
                    own: StatePlace::new(&definition.state())?,
                }
            }
        };
        Ok(Self {
            definition,
            location,
            on_wait: None,
        })
    }

    /// The state directory of an image or disk.
    fn state_beside(definition: &Definition) -> Result<StatePlace> {
        let path = definition.path();
        let own = definition.state();
        let has_no_place_beside = if is_export(path) {
            own.starts_with(path.parent().unwrap_or(path))
        } else {
            let found = std::fs::metadata(path).map_err(|source| Error::from(source).at(path))?;
            found.file_type().is_block_device() && own.starts_with("/dev")
        };
        if has_no_place_beside {
            return Err(Error::new(ErrorKind::Unsupported)
                .at(path)
                .detail(
                    "the state directory of a pool cannot be next to a block device or an export",
                )
                .remedy(Remedy::DefinePool));
        }
        StatePlace::new(&own)
    }

    fn check_identity(&self, state: Option<&PoolState>, identifier: &str) -> Result<()> {
        let found = match state {
            Some(state) => state.identifier()?,
            None => None,
        };
        let detail = match (found, &self.location) {
            (Some(found), _) if found == identifier => return Ok(()),
            (Some(_), PoolLocation::Directory(_)) => {
                "the directory belongs to another definition of a pool"
            }
            (None, PoolLocation::Directory(_)) => {
                "the directory is not the one that the pool was defined with"
            }
            (Some(_), PoolLocation::Image { .. }) => {
                "the image belongs to another definition of a pool"
            }
            (Some(_), PoolLocation::Store { .. }) => {
                "the state directory belongs to another definition of a pool"
            }
            (None, PoolLocation::Image { .. } | PoolLocation::Store { .. }) => {
                "the state of the pool does not exist"
            }
        };
        let error = Error::new(ErrorKind::NotFound).detail(detail);
        Err(match &self.location {
            PoolLocation::Directory(dir) => error.at(dir.path()).advice(
                "mount its file system, or delete the definition and define the pool again",
            ),
            PoolLocation::Image { .. } | PoolLocation::Store { .. } => error
                .at(self.definition.state())
                .advice("bring it back, or delete the definition and define the pool again"),
        })
    }

    /// Calls `tell` with the blocking job, once per operation that waits long for locked volumes.
    #[must_use]
    pub fn telling_waits(mut self, tell: fn(&Error)) -> Self {
        self.on_wait = Some(tell);
        self
    }

    /// The definition that it was opened with.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Its space and promises.
    pub fn info(&self) -> Result<PoolInfo> {
        let state = match self.state() {
            Ok(state) => state,
            // A reader without write permission cannot see the jobs.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        let jobs = match &state {
            Some(state) => state.jobs.statuses()?,
            None => Vec::new(),
        };
        let storage = self.storage(Purpose::Look)?;
        Ok(PoolInfo {
            name: self.definition.name().cloned(),
            kind: self.definition.kind(),
            path: self.definition.path().display().to_string(),
            directory: match &self.location {
                PoolLocation::Directory(_) | PoolLocation::Store { .. } => None,
                PoolLocation::Image { .. } => {
                    Some(self.definition.directory().display().to_string())
                }
            },
            limits: self.definition.limits().clone(),
            space: Space::of(self.definition.limits(), &*storage, state.as_ref())?,
            largest_gap_bytes: storage.largest_gap_bytes()?,
            cluster: storage.cluster_statistics()?,
            jobs: jobs.iter().filter(|job| !job.state.has_ended()).count(),
        })
    }

    /// The storage of the volumes, for a short operation. To be opened before the pool's lock is
    /// taken.
    ///
    /// # Errors
    /// `InUse` with the job that has an image open, after a timeout.
    pub(crate) fn storage(&self, purpose: Purpose) -> Result<Box<dyn Storage + '_>> {
        match &self.location {
            PoolLocation::Directory(dir) => Ok(Box::new(DirectoryStorage::new(dir))),
            PoolLocation::Image { image, .. } => {
                let pin = self.pin(image, purpose, OPEN_TIMEOUT, &mut ImageWaiter::default())?;
                let pin = pin.ok_or_else(|| self.busy())?;
                Ok(Box::new(Ext4Storage::new(pin)))
            }
            PoolLocation::Store { store, .. } => self.open_store(&**store, purpose, Caller::Short),
        }
    }

    /// The same to undo a job. What does not answer soon is left for later.
    pub(crate) fn storage_of_rollback(&self, purpose: Purpose) -> Result<Box<dyn Storage + '_>> {
        match &self.location {
            PoolLocation::Store { store, .. } => {
                self.open_store(&**store, purpose, Caller::Rollback)
            }
            _ => self.storage(purpose),
        }
    }

    /// The same for a job, which yields to others, without waiting for it; `None` while another
    /// process owns it; then `waiter` has to try again soon. The pool's lock must not be held in
    /// its calls.
    pub(crate) fn storage_of_job(
        &self,
        purpose: Purpose,
        cancel: &CancelToken,
        waiter: &mut ImageWaiter,
    ) -> Result<Option<Box<dyn Storage + '_>>> {
        match &self.location {
            PoolLocation::Directory(dir) => Ok(Some(Box::new(DirectoryStorage::new(dir)))),
            PoolLocation::Image { image, .. } => {
                let pin = self.pin(image, purpose, Duration::ZERO, waiter)?;
                Ok(pin
                    .map(|pin| -> Box<dyn Storage> { Box::new(Ext4Storage::of_job(&pin, cancel)) }))
            }
            PoolLocation::Store { store, .. } => {
                let caller = Caller::Job(cancel);
                self.open_store(&**store, purpose, caller).map(Some)
            }
        }
    }

    fn open_store<'p>(
        &'p self,
        store: &'p dyn Store,
        purpose: Purpose,
        caller: Caller<'_>,
    ) -> Result<Box<dyn Storage + 'p>> {
        let state = self.state_for(purpose)?;
        store.open(purpose, state.as_ref().map(PoolState::dir), caller)
    }

    /// The state directory for an operation on the volumes.
    fn state_for(&self, purpose: Purpose) -> Result<Option<PoolState>> {
        match purpose {
            Purpose::Change => self.make_state().map(Some),
            Purpose::Look => match self.state() {
                // A reader without write permission takes no locks.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
                state => state,
            },
        }
    }

    /// Releases the file-system image if another process waits for it. To be called periodically
    /// while a job runs.
    pub(crate) fn give_way(&self) {
        if let PoolLocation::Image { image, .. } = &self.location {
            image.give_way();
        }
    }

    fn pin(
        &self,
        image: &Ext4Image,
        purpose: Purpose,
        patience: Duration,
        waiter: &mut ImageWaiter,
    ) -> Result<Option<Pin>> {
        let state = self.state_for(purpose)?;
        let own = state.as_ref().map(PoolState::dir);
        self.wait_for(patience, &mut || image.try_open(purpose, own, waiter))
    }

    /// Tries until it is open, or `patience` is over. Programs outside the pool are awaited as
    /// well.
    fn wait_for(
        &self,
        patience: Duration,
        open: &mut dyn FnMut() -> Result<Opening>,
    ) -> Result<Option<Pin>> {
        let started = Instant::now();
        let mut tell = self.on_wait;
        loop {
            let is_over = started.elapsed() >= patience;
            let stranger = match open() {
                Ok(Opening::Open(pin)) => return Ok(Some(pin)),
                Ok(Opening::Busy) => None,
                Err(error) if error.kind() == ErrorKind::InUse => Some(error),
                Err(error) => return Err(error),
            };
            let waited = started.elapsed();
            match stranger {
                None if is_over => return Ok(None),
                Some(error) if is_over && patience.is_zero() => return Err(error),
                Some(error) if is_over => {
                    return Err(error.remark(format_args!("waited {} s", waited.as_secs())));
                }
                stranger if waited >= REPORT_WAIT_AFTER => {
                    if let Some(tell) = tell.take() {
                        tell(&stranger.unwrap_or_else(|| self.busy()));
                    }
                }
                _ => {}
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The process that has the image open.
    fn busy(&self) -> Error {
        let error = Error::new(ErrorKind::InUse).at(self.definition.path());
        let state = self.state().ok().flatten();
        let jobs = state.as_ref().and_then(|state| state.jobs.alive().ok());
        let at_work = jobs
            .into_iter()
            .flatten()
            .find(|job| job.stage != Stage::Waiting);
        if let Some(job) = at_work {
            let (id, operation) = (job.record.id, &job.record.operation);
            return error
                .detail(format!(
                    "job {id} ({} {}) is at work in the image",
                    operation.name(),
                    operation.volume()
                ))
                .advice("wait for it, or cancel it");
        }
        match (&self.location, &state) {
            (PoolLocation::Image { image, .. }, Some(state)) => match image.holder(state.dir()) {
                Some(pid) => error.detail(format!(
                    "another process of the pool has the image open (pid {pid})"
                )),
                None => error.detail("another process of the pool has the image open"),
            },
            _ => error.detail("another process of the pool has the image open"),
        }
    }

    /// Path of a volume, for messages.
    pub fn path_of(&self, name: &VolumeName) -> PathBuf {
        match &self.location {
            PoolLocation::Directory(dir) => dir.path().join(name.as_str()),
            PoolLocation::Image { image, .. } => image.path().join(name.as_str()),
            PoolLocation::Store { store, .. } => store.path_of(name),
        }
    }

    /// Numbers that no other pool of this host has.
    pub(crate) fn identity(&self) -> Result<(u64, u64)> {
        match &self.location {
            PoolLocation::Directory(dir) => dir.identity(),
            PoolLocation::Image { .. } | PoolLocation::Store { .. } => {
                self.make_state()?.dir().identity()
            }
        }
    }

    /// The pool's own state; `None` where nothing was ever kept.
    pub(crate) fn state(&self) -> Result<Option<PoolState>> {
        let (above, name) = self.own();
        PoolState::open(above, name)
    }

    /// The pool's own state, made where there is none.
    pub(crate) fn make_state(&self) -> Result<PoolState> {
        let (above, name) = self.own();
        let state = PoolState::make(above, name)?;
        if let PoolLocation::Image { .. } = &self.location {
            state.check_directory(self.definition.directory())?;
        }
        Ok(state)
    }

    /// The parent of the state directory, and its name there.
    fn own(&self) -> (&Directory, &str) {
        match &self.location {
            PoolLocation::Directory(dir) => (dir, STATE_DIRECTORY),
            PoolLocation::Image { own, .. } | PoolLocation::Store { own, .. } => {
                (&own.above, &own.name)
            }
        }
    }
}

fn image_of(definition: &Definition) -> Ext4Image {
    Ext4Image::new(
        definition.path(),
        definition.directory(),
        definition.identifier(),
    )
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.definition.name() {
            Some(name) => f.pad(name.as_str()),
            None => f.pad(&self.definition.path().display().to_string()),
        }
    }
}
