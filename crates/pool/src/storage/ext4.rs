//! An ext4 file-system image or disk, driven by the engine: no mount, no root.
//!
//! Volumes are the regular files of one directory in it. Unfinished files are in the subdirectory
//! `.extant/work`, as on the host, and are renamed in the engine's journal; the next opening after
//! a crash replays it. Every reported change is committed first.
//!
//! A short operation keeps the image open from start to end. A job holds it per call and releases
//! it between calls if other processes wait (`open_image.rs`). Steps that belong together, such as
//! finding a directory and making a name in it, are one call.

mod engine;
mod ext4_file;
mod image_lock;
mod location;
mod names;
mod open_image;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use extant_ext4::{FileType, InodeNumber, NewKind, Node, RenameMode};
use extant_hostfs::{Access, Pace};
use extant_provision::Provisioner;
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, Preallocation, Result, SyncMode,
};

use super::{
    Checkpoint, Done, Existing, FileStat, NewFile, Peek, Storage, VolumeFile, WorkFile, is_own,
};
use crate::name::VolumeName;
use crate::state_directory::STATE_DIRECTORY;
use engine::Engine;
use ext4_file::Ext4File;
use names::{child_directory, find, make_directory, new_node};
use open_image::LockAccess;

pub(crate) use image_lock::ImageWaiter;
pub(crate) use location::{Ext4Image, Opening};
pub(crate) use open_image::Pin;

const WORK: &str = "work";

/// An image, for one operation.
pub(crate) struct Ext4Storage {
    hold: LockAccess,
}

impl Ext4Storage {
    /// Has the image until it is dropped.
    pub(crate) fn new(pin: Pin) -> Self {
        Self {
            hold: LockAccess::Exclusive(Arc::new(pin)),
        }
    }

    /// Holds the image per call and yields to other processes between calls. A call that waits for
    /// the image ends when the token is cancelled.
    pub(crate) fn of_job(pin: &Pin, cancel: &CancelToken) -> Self {
        Self {
            hold: LockAccess::PerCall(Arc::clone(pin.image()), cancel.clone()),
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.hold.image().path_of(name)
    }

    fn work_place(&self, name: &str) -> PathBuf {
        self.work_path().join(name)
    }

    /// The directory of unfinished files; `None` if it does not exist.
    fn find_work(&self, inside: &Engine) -> Result<Option<Node>> {
        let own = child_directory(inside.directory(), STATE_DIRECTORY);
        let found = own.and_then(|own| match own {
            Some(own) => child_directory(&own, WORK),
            None => Ok(None),
        });
        found.map_err(|error| error.at(self.work_path()))
    }

    fn make_work(&self, inside: &Engine) -> Result<Node> {
        make_directory(inside.directory(), STATE_DIRECTORY)
            .and_then(|own| make_directory(&own, WORK))
            .map_err(|error| error.at(self.work_path()))
    }

    /// Renames an unfinished file, durably.
    fn rename_work(&self, from: &str, to: &str) -> Result<()> {
        let inside = self.hold.enter()?;
        let work = self.make_work(&inside)?;
        work.rename(from.as_bytes(), &work, to.as_bytes(), RenameMode::NoReplace)
            .map_err(|error| error.at(self.work_place(to)))?;
        inside.sync()
    }

    fn file(&self, inside: &Engine, node: &Node, path: PathBuf) -> Result<Box<dyn VolumeFile>> {
        let file = Ext4File::open(&self.hold, inside, node, path)?;
        Ok(Box::new(file))
    }

    /// The names in a directory, without its own two.
    fn names(&self, directory: &Node) -> Result<Vec<(Vec<u8>, InodeNumber)>> {
        let mut names = Vec::new();
        let listed = directory.list(0, &mut |listed| {
            if !matches!(listed.name, b"." | b"..") {
                names.push((listed.name.to_vec(), listed.inode));
            }
            ControlFlow::Continue(())
        });
        listed.map_err(|error| error.at(self.hold.image().path()))?;
        Ok(names)
    }
}

impl Peek for Box<dyn VolumeFile> {
    fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        (**self).attribute(name).ok()?
    }

    fn read(&self, first: &mut [u8]) -> usize {
        self.read_at(first, 0).unwrap_or(0)
    }
}

impl Storage for Ext4Storage {
    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64> {
        let inside = self.hold.enter()?;
        let mut others = 0;
        for (bytes, inode) in self.names(inside.directory())? {
            let text = std::str::from_utf8(&bytes).ok();
            let name = text.and_then(|name| name.parse().ok());
            // Another thread may have removed it.
            let node = inside.filesystem().node(inode).ok();
            match (name, node) {
                (Some(name), Some(node)) if node.file_type() == FileType::Regular => {
                    visit(&name, &inside.stat(&node));
                }
                _ => others += u64::from(!is_own(&bytes)),
            }
        }
        Ok(others)
    }

    fn has_name(&self, name: &VolumeName) -> Result<bool> {
        let inside = self.hold.enter()?;
        let found = find(inside.directory(), name.as_str());
        Ok(found
            .map_err(|error| error.at(self.place(name.as_str())))?
            .is_some())
    }

    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>> {
        let place = self.place(name.as_str());
        let image = self.hold.image();
        if access != Access::Read {
            image.check_writable().map_err(|error| error.at(&place))?;
        }
        let inside = self.hold.enter()?;
        let node = inside.directory().lookup(name.as_str().as_bytes());
        self.file(&inside, &node.map_err(|error| error.at(&place))?, place)
    }

    fn peek(&self, name: &VolumeName) -> Option<Box<dyn Peek>> {
        let file = self.open(name, Access::Read).ok()?;
        Some(Box::new(file))
    }

    fn remove(&self, name: &VolumeName) -> Result<()> {
        let image = self.hold.image();
        let inside = self.hold.enter()?;
        image
            .check_writable()
            .and_then(|()| inside.directory().unlink(name.as_str().as_bytes()))
            .map_err(|error| error.at(self.place(name.as_str())))
    }

    fn sync(&self) -> Result<()> {
        self.hold.enter()?.sync()
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.hold.enter()?.free_bytes())
    }

    fn total_bytes(&self) -> Result<u64> {
        Ok(self.hold.enter()?.total_bytes())
    }

    fn work_path(&self) -> PathBuf {
        self.place(STATE_DIRECTORY).join(WORK)
    }

    fn work_files(&self) -> Result<Vec<WorkFile>> {
        let inside = self.hold.enter()?;
        let Some(work) = self.find_work(&inside)? else {
            return Ok(Vec::new());
        };
        let names = self.names(&work)?.into_iter();
        let files = names.filter_map(|(bytes, inode)| {
            let name = String::from_utf8(bytes).ok()?;
            let node = inside.filesystem().node(inode).ok()?;
            Some(WorkFile {
                name,
                allocated_bytes: node.attributes().allocated_bytes,
            })
        });
        Ok(files.collect())
    }

    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>> {
        let inside = self.hold.enter()?;
        let Some(work) = self.find_work(&inside)? else {
            return Ok(None);
        };
        let place = self.work_place(name);
        match find(&work, name).map_err(|error| error.at(&place))? {
            Some(node) => self.file(&inside, &node, place).map(Some),
            None => Ok(None),
        }
    }

    fn new_work(&self, name: &str, _: u64) -> Result<Box<dyn VolumeFile>> {
        let place = self.work_place(name);
        let inside = self.hold.enter()?;
        let made = self
            .make_work(&inside)?
            .create(name.as_bytes(), &new_node(NewKind::Regular, 0o600));
        self.file(&inside, &made.map_err(|error| error.at(&place))?, place)
    }

    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        _: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        if self.open_work(name)?.is_some() {
            return Ok(Done::default());
        }
        let partial = format!(".{name}.extant-partial");
        let filling = format!(".{name}.extant-filling");
        // Of a run that was interrupted while it wrote metadata: it is not all zeros.
        if self.open_work(&filling)?.is_some() {
            self.remove_work(&filling)?;
        }
        let file = match self.open_work(&partial)? {
            Some(file) => file,
            None => self.new_work(&partial, new.image.file_bytes())?,
        };
        pace.check(&*file, control.progress)?;
        if new.image.preallocation().space() != Preallocation::Off {
            // A process that is killed loses uncommitted changes. The space is committed first, so
            // that the next run has only to write it.
            file.resize(new.image.file_bytes())?;
            let range = ByteRange::new(0, new.image.space_bytes());
            let provisioner = Provisioner::new(&*file, range, control);
            let missing = range.len().saturating_sub(file.allocated_bytes()?);
            provisioner.check_space(missing)?;
            provisioner.allocate()?;
            file.sync(SyncMode::All)?;
        }
        let is_filling = Cell::new(false);
        let begin_filling = || {
            is_filling.set(true);
            self.rename_work(&partial, &filling)
        };
        let image = &new.image;
        image.provision_resumable(&*file, &pace, &begin_filling, control)?;
        control.cancel.check()?;
        file.set_mode(new.mode)?;
        let last = if is_filling.get() { &filling } else { &partial };
        self.rename_work(last, name).map(|()| Done::default())
    }

    fn remove_work(&self, name: &str) -> Result<()> {
        let inside = self.hold.enter()?;
        let removed = match self.find_work(&inside)? {
            Some(work) => work.unlink(name.as_bytes()),
            None => Err(Error::new(ErrorKind::NotFound)),
        };
        removed.map_err(|error| error.at(self.work_place(name)))?;
        inside.sync()
    }

    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()> {
        let mode = match existing {
            Existing::Refuse => RenameMode::NoReplace,
            Existing::Replace => RenameMode::Replace,
        };
        let inside = self.hold.enter()?;
        let target = inside.directory();
        self.make_work(&inside)?
            .rename(work.as_bytes(), target, volume.as_str().as_bytes(), mode)
            .map_err(|error| error.at(self.place(volume.as_str())))?;
        inside.sync()
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.place(name.as_str())
    }

    fn can_share(&self, _: &dyn VolumeFile) -> Result<bool> {
        // ext4 has no shared extents.
        Ok(false)
    }
}
