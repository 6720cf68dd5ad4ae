//! The clients of this machine, by their numbers in the cluster.
//!
//! In the directory `clients` of the state directory each connection has a file with its number as
//! the name, locked (flock) by its process. So the client of a killed process is known as dead,
//! long before the cluster notices.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use extant_hostfs::Directory;
use extant_space::Result;
use rustix::fs::OFlags;

const NAME: &str = "clients";
/// The cluster has forgotten a dead client by then.
const AGE_MAX: Duration = Duration::from_secs(600);

/// The directory, and the file of one connection.
#[derive(Debug)]
pub(super) struct Clients {
    dir: Arc<Directory>,
    own: u64,
    /// Locked until it is dropped.
    _file: File,
}

impl Clients {
    /// Enters the connection `own`; `None` if this user may not.
    pub(super) fn enter(state: Option<&Directory>, own: u64) -> Option<Self> {
        let dir = Arc::new(state?.make_child(NAME).ok()?);
        let clients = Self::enter_in(dir, own)?;
        // Files that are left are found again.
        let _ = clients.remove_old();
        Some(clients)
    }

    fn enter_in(dir: Arc<Directory>, own: u64) -> Option<Self> {
        let file = dir
            .file(own.to_string(), OFlags::RDWR | OFlags::CREATE)
            .ok()?;
        file.try_lock().ok()?;
        Some(Self {
            dir,
            own,
            _file: file,
        })
    }

    /// Enters another connection of this process; `None` if this user may not.
    pub(super) fn enter_another(&self, number: u64) -> Option<Self> {
        Self::enter_in(Arc::clone(&self.dir), number)
    }

    /// The process of a client has ended.
    pub(super) fn is_dead(&self, number: u64) -> bool {
        let file = self.dir.file(number.to_string(), OFlags::RDWR);
        number != self.own && file.is_ok_and(|file| file.try_lock().is_ok())
    }

    fn remove_old(&self) -> Result<()> {
        let mut old = Vec::new();
        self.dir.for_each_name(|name| {
            let number = name.to_str().ok().and_then(|name| name.parse::<u64>().ok());
            old.extend(number.filter(|&number| self.is_old(number)));
        })?;
        old.into_iter()
            .try_for_each(|number| self.dir.remove(number.to_string()).map(drop))
    }

    fn is_old(&self, number: u64) -> bool {
        let file = self.dir.file(number.to_string(), OFlags::RDWR);
        let made = file.and_then(|file| Ok(file.metadata()?.modified()?));
        let age = made.ok().and_then(|made| made.elapsed().ok());
        age.is_some_and(|age| age > AGE_MAX) && self.is_dead(number)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.dir.remove(self.own.to_string());
    }
}
