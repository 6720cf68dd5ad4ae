//! A pool, open.

use std::fmt;
use std::path::PathBuf;

use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::accounting::Space;
use crate::definition::{Definition, PoolKind};
use crate::folder::Folder;
use crate::limits::Limits;
use crate::name::{PoolName, VolumeName};
use crate::state::State;
use crate::storage::{DirectoryStorage, Purpose, Storage};

/// A pool whose directory is open.
#[derive(Debug)]
pub struct Pool {
    definition: Definition,
    folder: Folder,
}

/// What is told of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolInfo {
    /// Its name; `None` for a directory without definition.
    pub name: Option<PoolName>,
    /// What holds the volumes.
    pub kind: PoolKind,
    /// Where they are.
    pub path: String,
    /// What it may promise.
    pub limits: Limits,
    /// What it has and has promised.
    #[serde(flatten)]
    pub space: Space,
    /// Jobs that wait or are at work.
    pub jobs: usize,
}

impl Pool {
    /// Opens the pool of a definition, whose directory must exist.
    ///
    /// # Errors
    /// `NotFound` also when the directory is there and the pool's own state is not: its file system is not mounted.
    pub fn open(definition: Definition) -> Result<Self> {
        let folder = Folder::open(definition.path())?;
        let pool = Self { definition, folder };
        if let Some(identifier) = pool.definition.identifier() {
            match pool.state() {
                Ok(state) => pool.check_identity(state.as_ref(), identifier)?,
                // Who may only look cannot see it.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pool)
    }

    /// Prepares the directory of a definition that is to be kept, made if need be.
    pub fn build(definition: Definition) -> Result<Self> {
        let path = definition.path();
        std::fs::create_dir_all(path).map_err(|source| Error::from(source).at(path))?;
        let folder = Folder::open(path)?;
        if let Some(identifier) = definition.identifier() {
            State::make(&folder)?.set_identifier(identifier)?;
        }
        Ok(Self { definition, folder })
    }

    fn check_identity(&self, state: Option<&State>, identifier: &str) -> Result<()> {
        let found = match state {
            Some(state) => state.identifier()?,
            None => None,
        };
        let detail = match found {
            Some(found) if found == identifier => return Ok(()),
            Some(_) => "the directory belongs to another definition of a pool",
            None => "the directory is not the one that the pool was defined with",
        };
        Err(Error::new(ErrorKind::NotFound)
            .at(self.folder.path())
            .detail(detail)
            .advice("mount its file system, or delete the definition and define the pool anew"))
    }

    /// What it was opened by.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// What it has and has promised.
    pub fn info(&self) -> Result<PoolInfo> {
        let state = match self.state() {
            Ok(state) => state,
            // Who may only look cannot see the jobs.
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
            path: self.folder.path().display().to_string(),
            limits: self.definition.limits().clone(),
            space: Space::of(self, &*storage, state.as_ref())?,
            jobs: jobs.iter().filter(|job| !job.state.has_ended()).count(),
        })
    }

    /// What holds the volumes, for one operation. To be opened before the pool's lock is taken.
    pub(crate) fn storage(&self, _: Purpose) -> Result<Box<dyn Storage + '_>> {
        Ok(Box::new(DirectoryStorage::new(&self.folder)))
    }

    /// Where a volume is, for messages.
    pub(crate) fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.folder.path().join(name.as_str())
    }

    /// Numbers that no other pool of this host has.
    pub(crate) fn identity(&self) -> Result<(u64, u64)> {
        self.folder.identity()
    }

    /// The pool's own state; `None` where nothing was ever kept.
    pub(crate) fn state(&self) -> Result<Option<State>> {
        State::open(&self.folder)
    }

    /// The pool's own state, made where there is none.
    pub(crate) fn make_state(&self) -> Result<State> {
        State::make(&self.folder)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.definition.name() {
            Some(name) => f.pad(name.as_str()),
            None => f.pad(&self.folder.path().display().to_string()),
        }
    }
}
