//! The list of connections, and who gets a place when there are as many as there may be.
//!
//! A client that has an export keeps its place. One that has not chosen yet makes way for a newer one, the oldest first, so that idle
//! clients shut nobody out. One TCP address has three quarters of the places, so that it leaves some to others. Which client makes way is
//! decided under the lock under which a client is marked as having an export: who was told that it has one is not cut off.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use crate::socket::Socket;

pub(super) struct Connections {
    most: usize,
    open: Mutex<Open>,
    /// One has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Open {
    /// By number, the oldest first.
    places: BTreeMap<u64, Place>,
    next: u64,
    /// What no new connection escapes.
    shutdown: Option<Shutdown>,
}

struct Place {
    socket: Arc<Socket>,
    /// Of a TCP client.
    address: Option<IpAddr>,
    has_export: bool,
}

impl Open {
    /// Makes the oldest client without an export leave, of those from `address` if one is given; false: there is none.
    fn make_way(&mut self, address: Option<IpAddr>) -> bool {
        let may_leave =
            |place: &Place| !place.has_export && (address.is_none() || place.address == address);
        let found = self.places.iter().find(|(_, place)| may_leave(place));
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(place) = self.places.remove(&number) {
            place.socket.shutdown(Shutdown::Both);
        }
        true
    }

    fn count_of(&self, address: IpAddr) -> usize {
        let places = self.places.values();
        places
            .filter(|place| place.address == Some(address))
            .count()
    }
}

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lock().places.len()
    }

    /// Closes a half of all connections, and of those that are still to be added.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let mut open = self.lock();
        open.shutdown = Some(how);
        open.places
            .values()
            .for_each(|place| place.socket.shutdown(how));
    }

    /// Waits until there is no connection; `false` when that takes longer.
    pub(super) fn wait_for_none(&self, timeout: Duration) -> bool {
        let waited = self
            .ended
            .wait_timeout_while(self.lock(), timeout, |open| !open.places.is_empty());
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .places
            .is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is in the list as long as this lives.
pub(super) struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Registered {
    /// `None` when there are as many as there may be.
    pub(super) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Option<Self> {
        let connections = &shared.connections;
        let most = connections.most;
        let address = socket.peer_address();
        let mut open = connections.lock();
        if let Some(address) = address
            && open.count_of(address) >= most - most / 4
            && !open.make_way(Some(address))
        {
            return None;
        }
        if open.places.len() >= most && !open.make_way(None) {
            return None;
        }
        if let Some(how) = open.shutdown {
            socket.shutdown(how);
        }
        let number = open.next;
        open.next += 1;
        let place = Place {
            socket,
            address,
            has_export: false,
        };
        open.places.insert(number, place);
        drop(open);
        Some(Self { shared, number })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The client is about to be told that it has an export, and keeps its place from now on; false: it made way before.
    pub(super) fn keep_place(&self) -> bool {
        let mut open = self.shared.connections.lock();
        match open.places.get_mut(&self.number) {
            Some(place) => {
                place.has_export = true;
                true
            }
            None => false,
        }
    }

    /// The client made way for another.
    pub(super) fn has_left(&self) -> bool {
        let open = self.shared.connections.lock();
        !open.places.contains_key(&self.number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let connections = &self.shared.connections;
        let place = connections.lock().places.remove(&self.number);
        if let Some(place) = place {
            // After a panic the client would wait for ever.
            place.socket.shutdown(Shutdown::Both);
        }
        connections.ended.notify_all();
    }
}
