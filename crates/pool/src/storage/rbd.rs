//! A pool of a Ceph cluster: volumes are RBD images.
//!
//! Model: the name of an image is the only truth about a volume. An unfinished volume is an image
//! with a [hidden name](super::hidden) of this definition; publication is one rename, which the
//! cluster refuses if the name is taken. So of two machines at most one gets a name. A volume is
//! removed by a rename to a hidden name first: no name ever has a part of its content.
//!
//! Jobs, their reservations and the locks between processes of this machine are in the state
//! directory on the host. What other machines do is seen in the cluster: images, watches, locks,
//! and the metadata of unfinished thick images, which says what they will still take.

mod clients;
mod clones;
mod image_file;
mod image_pool;
mod patience;
mod survey;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use extant_hostfs::{Access, Directory, Existing, Pace};
use extant_rbd::{Image, ImageLayout, PoolStatistics, RbdAccess, RbdDevice};
use extant_space::{ByteRange, ByteSize, Control, Error, ErrorKind, Preallocation, Remedy, Result};

use super::hidden::{is_replaced, removed, replaced_by};
use super::volume_locks::VolumeLocks;
use super::{
    Caller, Checkpoint, Done, Feature, FileStat, NewFile, Peek, PeekedRaw, Purpose, Storage, Store,
    VolumeDevice, VolumeFile, WorkFile, write_place,
};
use crate::cluster_place::ClusterPlace;
use crate::name::VolumeName;
use image_file::{RbdFile, file_stat};
use image_pool::{ImagePool, open_if_any};
use patience::Patience;
use survey::RESERVED;

/// The file of the state directory with the identifier of the cluster.
const CLUSTER: &str = "cluster";
/// The metadata of a replaced volume, and of the one that replaces it: the name of the former.
const REPLACED: &str = "extant.replaced";
/// The metadata of an image that gets the name of a volume, or loses it: that name.
const VOLUME: &str = "extant.volume";

/// The pool of a cluster.
#[derive(Debug)]
pub(crate) struct RbdStore {
    place: ClusterPlace,
    identifier: String,
}

impl RbdStore {
    pub(crate) fn new(place: &ClusterPlace, identifier: &str) -> Self {
        Self {
            place: place.clone(),
            identifier: identifier.to_owned(),
        }
    }

    fn connect(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        caller: Caller<'_>,
    ) -> Result<ImagePool> {
        let locks = VolumeLocks::new(own, purpose)?;
        let patience = Patience::of(caller);
        ImagePool::connect(&self.place, &self.identifier, patience, locks, own)
    }
}

impl Store for RbdStore {
    fn open(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        caller: Caller<'_>,
    ) -> Result<Box<dyn Storage + '_>> {
        let pool = self.connect(purpose, own, caller)?;
        if let Some(known) = own.map(|own| own.read(CLUSTER, 64)).transpose()?.flatten()
            && pool.fsid()?.as_bytes() != known
        {
            return Err(Error::new(ErrorKind::NotFound)
                .at(self.place.path())
                .detail("the cluster is another one than the pool was made in")
                .advice("name its configuration file, or delete the definition and define the pool again"));
        }
        Ok(Box::new(RbdStorage {
            pool: Arc::new(pool),
        }))
    }

    fn build(&self, own: &Directory, has_jobs: bool) -> Result<()> {
        let pool = self.connect(Purpose::Look, None, Caller::Short)?;
        // Missing rights are reported now.
        pool.call(|pool| pool.images())?;
        write_place(own, CLUSTER, pool.fsid()?.as_bytes(), has_jobs)
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.place.image(name.as_str()).to_string().into()
    }
}

/// Notes the name of a volume that an image gets or loses, before the rename. A full cluster may
/// refuse that, but removes volumes all the same.
fn note_volume(image: &Image, name: &str) {
    let _ = image.set_metadata(VOLUME, name);
}

/// A random part of a name.
fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|errno| Error::from(io::Error::from(errno)))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The pool, for one operation.
struct RbdStorage {
    pool: Arc<ImagePool>,
}

impl RbdStorage {
    fn statistics(&self) -> Result<PoolStatistics> {
        let ask = || self.pool.call(|pool| pool.statistics());
        let statistics = self.pool.figures.statistics(ask);
        statistics.map_err(|error| error.at(self.pool.place.path()))
    }

    fn create(&self, image: &str, size_bytes: u64) -> Result<()> {
        let name = image.to_owned();
        self.pool.figures.forget();
        self.pool
            .call(move |pool| pool.create(&name, size_bytes, &ImageLayout::default()))
    }

    /// The image `inner`, which an earlier process may have made. Killed meanwhile, it leaves the
    /// name of an image that does not exist.
    fn make_hidden(&self, inner: &str, size_bytes: u64) -> Result<RbdFile> {
        let image = self.pool.hidden(inner);
        let open = || RbdFile::open_hidden(&self.pool, &image);
        match self.create(&image, size_bytes) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.and_then(|()| open()),
        }
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.remove_image(&image)?;
                self.create(&image, size_bytes)?;
                open()
            }
            opened => opened,
        }
    }

    /// Fails if unfinished thick images of other machines and this one, which is among the images
    /// by now, do not fit together. Of two that do not, both may fail.
    fn check_others_fit(&self, file: &RbdFile, bytes: u64) -> Result<()> {
        self.pool.figures.forget();
        let free_bytes = self.free_bytes()?;
        let survey = self.pool.survey()?;
        let own = survey.images.iter().find(|image| image.name == file.name());
        let missing = bytes.saturating_sub(own.map_or(0, |image| image.allocated_bytes));
        if missing <= free_bytes {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace).detail(format!(
            "no space: {} wanted, {} available besides what others are making, {} missing",
            ByteSize(missing),
            ByteSize(free_bytes),
            ByteSize(missing - free_bytes)
        )))
    }

    /// Removes the volume that `inner` names as replaced, or gives its name back.
    fn settle(&self, inner: &str) -> Result<()> {
        let image = self.pool.hidden(inner);
        let Some(name) = self.pool.metadata(&image, REPLACED)? else {
            return Ok(());
        };
        match self.pool.rename(&image, &name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // A process killed before it lost its name.
                if self.pool.remove_second_name(&name, &image)? {
                    return Ok(());
                }
                let replacing = self.pool.metadata(&name, REPLACED)?;
                if replacing.as_deref() == Some(image.as_str()) && self.pool.has_image(&name)? {
                    return self.remove_image(&image);
                }
                Err(error.about(self.pool.path(&image)).advice(
                    "the name was given to another volume meanwhile; rbd mv gives this one another",
                ))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// Removes an image, its record as a clone, and the name of a volume that a process killed
    /// within a rename left it.
    fn remove_image(&self, image: &str) -> Result<()> {
        let name = image.to_owned();
        let (source, second) = self.pool.call(move |pool| {
            let Some(image) = open_if_any(pool, &name)? else {
                return Ok((None, None));
            };
            let volume = image.metadata(VOLUME)?;
            let identifier = volume.is_some().then(|| image.identifier()).transpose()?;
            Ok((clones::source_of(&image)?, volume.zip(identifier)))
        })?;
        self.pool.remove(image)?;
        self.pool.call(move |pool| {
            clones::forget_source(pool, source.as_deref());
            if let Some((volume, identifier)) = second {
                pool.remove_second_name(&volume, &identifier)?;
            }
            Ok(())
        })
    }

    /// Repeats the removal of an image that no longer opens.
    fn finish_removal(&self, inner: &str) -> Result<()> {
        let image = self.pool.hidden(inner);
        let name = image.clone();
        match self.pool.call(move |pool| open_if_any(pool, &name))? {
            Some(_) => Ok(()),
            None => self.pool.remove(&image),
        }
    }

    /// An image that this operation has locked.
    fn held(&self, image: &str) -> Result<Arc<Image>> {
        let held = self.pool.held(image);
        held.ok_or_else(|| Error::new(ErrorKind::InUse).at(self.pool.path(image)))
    }

    /// Gives the volume `name`, which this operation has locked, the hidden name `inner`.
    fn hide(&self, name: &str, inner: &str) -> Result<String> {
        let (volume, image) = (name.to_owned(), self.pool.hidden(inner));
        let held = self.held(name)?;
        self.pool.call(move |_| {
            clones::check_no_snapshots(&held)?;
            note_volume(&held, &volume);
            Ok(())
        })?;
        self.pool.rename(name, &image)?;
        Ok(image)
    }
}

impl Storage for RbdStorage {
    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::Unwritten => Some(
                "RBD reserves no space without writing it: preallocation falloc is not for pools of kind rbd",
            ),
            Feature::Qcow2 => Some(
                "a pool of kind rbd has raw volumes only: RBD has snapshots, clones and thin images itself",
            ),
            Feature::Permissions => Some("an image of a cluster has no permissions"),
            Feature::Attributes => {
                Some("a pool of kind rbd keeps no unknown elements of libvirt's XML")
            }
            Feature::Sparse | Feature::SharedSpace => None,
        }
    }

    fn check_name(&self, name: &VolumeName) -> Result<()> {
        if name.as_str().contains('@') {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("names of images have no @: it begins the name of a snapshot"));
        }
        Ok(())
    }

    fn cluster_statistics(&self) -> Result<Option<PoolStatistics>> {
        self.statistics().map(Some)
    }

    /// The cluster has become full, by other clients: there was space when the job began. Errors
    /// of this program have no error number.
    fn keeps_work_after(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::NoSpace && error.os_errno().is_some()
    }

    fn device_of(&self, name: &VolumeName, access: Access) -> Result<Option<VolumeDevice>> {
        let access = match access {
            Access::Read => RbdAccess::ReadOnly,
            _ => RbdAccess::ReadWrite,
        };
        let image = self.pool.place.image(name.as_str());
        // A connection of its own, which lives longer than this operation.
        let options = self.pool.place.options();
        let device = self
            .pool
            .call(move |_| RbdDevice::open_by(&image, access, &options))?;
        let number = device.image().pool().cluster().client_number();
        Ok(Some(VolumeDevice {
            _lock: self.pool.enter_client(number),
            device: Arc::new(device),
        }))
    }

    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64> {
        let survey = self.pool.survey()?;
        let mut others = survey.unreadable.len() as u64;
        for image in &survey.images {
            match image.name.parse::<VolumeName>() {
                Ok(name) => visit(&name, &file_stat(image.size_bytes, image.allocated_bytes)),
                Err(_) => others += u64::from(self.pool.inner_name(&image.name).is_none()),
            }
        }
        Ok(others)
    }

    fn has_name(&self, name: &VolumeName) -> Result<bool> {
        self.pool.has_image(name.as_str())
    }

    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>> {
        Ok(Box::new(RbdFile::open(&self.pool, name.as_str(), access)?))
    }

    fn peek(&self, _: &VolumeName) -> Option<Box<dyn Peek>> {
        Some(Box::new(PeekedRaw))
    }

    fn remove(&self, name: &VolumeName) -> Result<()> {
        let hidden = self.hide(name.as_str(), &removed(random()?));
        let image = hidden.map_err(|error| error.about(self.path_of(name)))?;
        self.pool.release(name.as_str());
        self.remove_image(&image).map_err(|error| {
            error
                .about(self.path_of(name))
                .advice("its name is free")
                .remedy(Remedy::RefreshPool)
        })
    }

    fn sync(&self) -> Result<()> {
        // Every call is durable.
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        let statistics = self.statistics()?;
        let survey = self.pool.survey()?;
        // The monitors' figures are some seconds old, but their sum is not.
        let total = statistics.stored_bytes + statistics.available_bytes;
        let used = statistics.stored_bytes.max(survey.allocated_bytes());
        let free = total.saturating_sub(used);
        Ok(free.saturating_sub(survey.reserved_elsewhere_bytes()))
    }

    fn total_bytes(&self) -> Result<u64> {
        let statistics = self.statistics()?;
        Ok(statistics.stored_bytes + statistics.available_bytes)
    }

    fn work_path(&self) -> PathBuf {
        // Names of unfinished images are in no directory of their own.
        self.pool.path(&self.pool.hidden(""))
    }

    fn work_files(&self) -> Result<Vec<WorkFile>> {
        let survey = self.pool.survey()?;
        let images = survey.images.iter();
        let images = images.map(|image| (&image.name, image.allocated_bytes));
        let unreadable = survey.unreadable.iter().chain(&survey.in_removal);
        let unreadable = unreadable.map(|name| (name, 0));
        let hidden = images
            .chain(unreadable)
            .filter_map(|(name, allocated_bytes)| {
                Some(WorkFile {
                    name: self.pool.inner_name(name)?.to_owned(),
                    allocated_bytes,
                })
            });
        Ok(hidden.collect())
    }

    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>> {
        match RbdFile::open_hidden(&self.pool, &self.pool.hidden(name)) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn new_work(&self, name: &str, size_bytes: u64) -> Result<Box<dyn VolumeFile>> {
        Ok(Box::new(self.make_hidden(name, size_bytes)?))
    }

    /// A client has the size that the image had when it was opened, until it asks again.
    fn grows_in_steps(&self) -> bool {
        false
    }

    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        _: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let size_bytes = new.image.file_bytes();
        let file = self.make_hidden(name, size_bytes)?;
        if new.image.preallocation().space() != Preallocation::Full {
            return Ok(Done::default());
        }
        let bytes = new.image.allocation_bytes().unwrap_or(size_bytes);
        file.set_metadata(RESERVED, &bytes.to_string())?;
        self.check_others_fit(&file, bytes)?;
        file.make_thick(Some(ByteRange::new(0, bytes)), &pace, control)
    }

    fn remove_work(&self, name: &str) -> Result<()> {
        if is_replaced(name) {
            self.settle(name)?;
            return self.finish_removal(name);
        }
        self.settle(&replaced_by(name))?;
        self.remove_image(&self.pool.hidden(name))
    }

    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()> {
        let (from, to) = (self.pool.hidden(work), volume.as_str());
        let inner = replaced_by(work);
        let replaced = self.pool.hidden(&inner);
        if existing == Existing::Replace && self.has_name(volume)? {
            let (new, old) = (self.held(&from)?, self.held(to)?);
            let name = to.to_owned();
            self.pool.call(move |_| {
                new.set_metadata(REPLACED, &replaced)?;
                old.set_metadata(REPLACED, &name)
            })?;
            self.hide(to, &inner)?;
            self.pool.release(to);
        }
        if let Some(new) = self.pool.held(&from) {
            let name = to.to_owned();
            self.pool.call(move |_| {
                note_volume(&new, &name);
                Ok(())
            })?;
        }
        self.pool.release(&from);
        if let Err(error) = self.pool.rename(&from, to) {
            // Otherwise a rollback does it.
            let _ = self.settle(&inner);
            return Err(error.about(self.path_of(volume)));
        }
        // The next refresh removes what is left.
        let _ = self.settle(&inner);
        Ok(())
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.pool.path(name.as_str())
    }

    fn can_share(&self, _: &dyn VolumeFile) -> Result<bool> {
        Ok(true)
    }
}
