//! The images of a pool for one operation: its connection, and who holds which image.
//!
//! A volume is locked on this machine by a byte of the state directory, and in the cluster by the
//! watch and the exclusive lock of its image. The watch outlives a killed process by half a minute.
//! If its client was one of [this machine](super::clients), it is known to be dead, and it is put
//! on the blocklist of the cluster, which also stops writes that are on their way.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use extant_hostfs::Directory;
use extant_rbd::{Cluster, Image, Pool, RbdAccess, RbdCache, Watcher};
use extant_space::thread::spawn;
use extant_space::{ErrorKind, Result, fnv1a};
use parking_lot::Mutex;

use super::clients::Clients;
use super::image_file::Slot;
use super::patience::Patience;
use super::survey::{Figures, Survey, survey};
use crate::cluster_place::ClusterPlace;
use crate::fair_lock::LockMode;
use crate::storage::hidden::{HiddenName, hidden};
use crate::storage::volume_locks::VolumeLocks;

/// How long a dead client is cut off; its watch ends before.
const BLOCK_TIME: Duration = Duration::from_secs(300);
/// How long the daemons take to learn of it.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an image that is to be removed may be in use: by requests of a cancelled job.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A connection, with the images that are open through it.
pub(super) struct ImagePool {
    pub(super) place: ClusterPlace,
    /// Of the definition.
    pub(super) identifier: String,
    pub(super) patience: Patience,
    pub(super) figures: Figures,
    pool: Option<Pool>,
    locks: VolumeLocks,
    clients: Option<Arc<Clients>>,
    slots: Mutex<HashMap<String, Weak<Slot>>>,
}

impl ImagePool {
    /// `own` is the state directory.
    pub(super) fn connect(
        place: &ClusterPlace,
        identifier: &str,
        patience: Patience,
        locks: VolumeLocks,
        own: Option<&Directory>,
    ) -> Result<Self> {
        let asked = place.clone();
        let pool = patience.call(move |_| {
            let mut options = asked.options();
            // A write that has ended is in the cluster then.
            options.cache = RbdCache::Off;
            let cluster = Cluster::connect(&options)?;
            let namespace = asked.namespace.as_deref().unwrap_or_default();
            Pool::open(&cluster, &asked.pool, namespace)
        });
        let pool = pool.map_err(|error| error.at(place.path()))?;
        Ok(Self {
            place: place.clone(),
            identifier: identifier.to_owned(),
            patience,
            figures: Figures::default(),
            clients: Clients::enter(own, pool.cluster().client_number()).map(Arc::new),
            pool: Some(pool),
            locks,
            slots: Mutex::default(),
        })
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("connected until it is dropped")
    }

    /// Path of an image, for messages.
    pub(super) fn path(&self, image: &str) -> PathBuf {
        self.place.image(image).to_string().into()
    }

    /// The image with an unfinished file.
    pub(super) fn hidden(&self, inner: &str) -> String {
        hidden(&self.identifier, inner)
    }

    /// The name that an image has as an unfinished file of this pool.
    pub(super) fn inner_name<'n>(&self, image: &'n str) -> Option<&'n str> {
        let hidden = HiddenName::parse(image)?;
        (hidden.identifier == self.identifier).then_some(hidden.inner)
    }

    pub(super) fn fsid(&self) -> Result<String> {
        let pool = self.pool().clone();
        self.patience.call(move |_| pool.cluster().fsid())
    }

    /// Runs a call on the pool.
    pub(super) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Pool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = self.pool().clone();
        self.patience.call(move |_| call(&pool))
    }

    pub(super) fn survey(&self) -> Result<Arc<Survey>> {
        self.figures.survey(|| {
            let (pool, own) = (self.pool().clone(), self.identifier.clone());
            let made = self.patience.call(move |steps| survey(&pool, &own, steps));
            made.map_err(|error| error.at(self.place.path()))
        })
    }

    pub(super) fn has_image(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.call(move |pool| Ok(pool.images()?.contains(&name)))
    }

    /// Opens an image for a look.
    pub(super) fn look_at(&self, name: &str) -> Result<Arc<Image>> {
        let name = name.to_owned();
        self.call(move |pool| Image::open(pool, &name, None, RbdAccess::Shared).map(Arc::new))
    }

    /// A value of an image's metadata; `None` also where there is no image.
    pub(super) fn metadata(&self, name: &str, key: &'static str) -> Result<Option<String>> {
        let name = name.to_owned();
        self.call(move |pool| match open_if_any(pool, &name)? {
            Some(image) => image.metadata(key),
            None => Ok(None),
        })
    }

    /// Locks an image on this machine and in the cluster; `None` if another process holds it.
    pub(super) fn lock(&self, name: &str, mode: LockMode) -> Result<Option<Arc<Image>>> {
        if !self.locks.try_lock(key(name), mode)? {
            return Ok(None);
        }
        match self.open_locked(name, mode) {
            Ok(image) => Ok(Some(image)),
            Err(error) => {
                self.locks.unlock(key(name));
                match error.kind() {
                    ErrorKind::InUse => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    pub(super) fn unlock(&self, name: &str) {
        self.locks.unlock(key(name));
    }

    fn open_locked(&self, name: &str, mode: LockMode) -> Result<Arc<Image>> {
        let access = match mode {
            LockMode::Shared => RbdAccess::ReadOnly,
            LockMode::Exclusive => RbdAccess::ReadWrite,
        };
        let open = || {
            let name = name.to_owned();
            self.call(move |pool| Image::open(pool, &name, None, access).map(Arc::new))
        };
        match open() {
            Err(error) if error.kind() == ErrorKind::InUse && self.block_dead_clients(name)? => {
                open()
            }
            opened => opened,
        }
    }

    /// Makes another connection of this process known, so that it is known to be dead after a kill.
    pub(super) fn enter_client(&self, number: u64) -> Option<Box<dyn Send + Sync>> {
        let client = self.clients.as_ref()?.enter_another(number)?;
        Some(Box::new(client))
    }

    /// Cuts off the clients of killed processes of this machine that watch an image; false if there
    /// were none.
    fn block_dead_clients(&self, name: &str) -> Result<bool> {
        let Some(clients) = self.clients.clone() else {
            return Ok(false);
        };
        let (name, cancel) = (name.to_owned(), self.patience.cancel().clone());
        self.call(move |pool| {
            let image = Image::open(pool, &name, None, RbdAccess::Shared)?;
            let find = || -> Result<Vec<Watcher>> {
                let watchers = image.watchers()?.into_iter();
                Ok(watchers
                    .filter(|one| clients.is_dead(one.client_number))
                    .collect())
            };
            let dead = find()?;
            for watcher in &dead {
                // A user without the right to do that waits for the end of the watch.
                if pool
                    .cluster()
                    .block_client(&watcher.address, BLOCK_TIME)
                    .is_err()
                {
                    return Ok(false);
                }
            }
            let until = Instant::now() + BLOCK_TIMEOUT;
            while !dead.is_empty() && !find()?.is_empty() {
                if Instant::now() > until {
                    return Ok(false);
                }
                cancel.sleep(POLL_INTERVAL)?;
            }
            Ok(!dead.is_empty())
        })
    }

    /// The other clients that have an image open, as text.
    pub(super) fn holders(&self, image: &Arc<Image>) -> Option<String> {
        let image = Arc::clone(image);
        let watchers = self.call(move |_| image.watchers()).ok()?;
        let own = self.pool().cluster().client_number();
        let others = watchers.into_iter().filter(|one| one.client_number != own);
        let others: Vec<String> = others
            .map(|one| format!("client.{} at {}", one.client_number, one.address))
            .collect();
        (!others.is_empty()).then(|| others.join(", "))
    }

    /// Remembers who has an image open.
    pub(super) fn enter(&self, name: &str, slot: &Arc<Slot>) {
        self.slots
            .lock()
            .insert(name.to_owned(), Arc::downgrade(slot));
    }

    /// An image that this operation has locked.
    pub(super) fn held(&self, name: &str) -> Option<Arc<Image>> {
        let slot = self.slots.lock().get(name)?.upgrade()?;
        slot.locked()
    }

    /// Closes an image that this operation holds.
    pub(super) fn release(&self, name: &str) {
        let slot = self.slots.lock().remove(name);
        if let Some(slot) = slot.and_then(|slot| slot.upgrade())
            && slot.close(&self.patience)
        {
            self.unlock(name);
        }
    }

    /// Renames an image.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let rename = || {
            let (old, new) = (from.to_owned(), to.to_owned());
            self.figures.forget();
            self.call(move |pool| pool.rename(&old, &new))
        };
        match rename() {
            Err(error)
                if error.kind() == ErrorKind::AlreadyExists
                    && self.remove_second_name(from, to)? =>
            {
                rename()
            }
            renamed => renamed,
        }
    }

    /// Takes `name` from the image `listed` or an unfinished one of this pool if it is not listed
    /// by it: a process killed within librbd's rename leaves an image with its old and its new
    /// name. False if it is no such name, or the image is in use.
    pub(super) fn remove_second_name(&self, listed: &str, name: &str) -> Result<bool> {
        let second = name.to_owned();
        let found = self.call(move |pool| {
            let Some(image) = open_if_any(pool, &second)? else {
                return Ok(None);
            };
            let identifier = image.identifier()?;
            let listed = pool.listed_name(&identifier)?;
            Ok(listed.map(|listed| (listed, identifier)))
        })?;
        let Some((image, identifier)) = found else {
            return Ok(false);
        };
        if image == name || image != listed && self.inner_name(&image).is_none() {
            return Ok(false);
        }
        let second = name.to_owned();
        let remove = || self.call(move |pool| pool.remove_second_name(&second, &identifier));
        if self.inner_name(name).is_some() || self.held(&image).is_some() {
            return remove();
        }
        // A process that renames an image holds it.
        let Some(held) = self.lock(&image, LockMode::Exclusive)? else {
            return Ok(false);
        };
        let removed = remove();
        drop(held);
        self.unlock(&image);
        removed
    }

    /// Removes an image that has no name of a volume.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.release(name);
        self.figures.forget();
        let until = Instant::now() + REMOVE_TIMEOUT;
        loop {
            let (pool, image) = (self.pool().clone(), name.to_owned());
            let removed = self
                .patience
                .call(move |steps| pool.remove(&image, &|_, _| steps.tick()));
            match removed {
                Err(error) if error.kind() == ErrorKind::InUse => {
                    match self.block_dead_clients(name) {
                        Ok(true) => continue,
                        Ok(false) => {}
                        // In the trash: another removes it, or did until half a minute ago.
                        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                        Err(error) => return Err(error),
                    }
                    if Instant::now() > until {
                        return Err(error);
                    }
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                removed => return removed,
            }
        }
    }
}

impl Drop for ImagePool {
    /// The end of a connection may wait for the cluster.
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && self.patience.has_given_up()
        {
            // Leaked where no thread can be started.
            let ended = ManuallyDrop::new((pool, self.clients.take()));
            let _ = spawn("rbd end", move || drop(ManuallyDrop::into_inner(ended)));
        }
    }
}

/// An image for a look.
pub(super) fn open_if_any(pool: &Pool, name: &str) -> Result<Option<Image>> {
    match Image::open(pool, name, None, RbdAccess::Shared) {
        Ok(image) => Ok(Some(image)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The byte of an image in the file of locks.
fn key(name: &str) -> u64 {
    fnv1a(name.as_bytes()) & ((1 << 39) - 1)
}
