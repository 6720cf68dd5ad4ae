//! The list of connections, and the policy at the connection limit.
//!
//! - A client with an export keeps its slot.
//! - At the limit a new client evicts the oldest client without an export, so idle clients cannot
//!   block the server.
//! - One TCP address gets at most three quarters of the slots.
//!
//! Eviction and the mark "has an export" use the same lock: a client that was granted an export is
//! never evicted.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Shared;
use extant_nbd::socket::Socket;

pub(super) struct Connections {
    max: usize,
    open: Mutex<OpenConnections>,
    /// Signalled when a connection ends.
    ended: Condvar,
}

#[derive(Default)]
struct OpenConnections {
    /// By connection number, the oldest first.
    slots: BTreeMap<u64, Slot>,
    next: u64,
    /// Applied to new connections too.
    shutdown: Option<Shutdown>,
}

struct Slot {
    socket: Arc<Socket>,
    /// The address of a TCP client.
    address: Option<IpAddr>,
    has_export: bool,
}

impl OpenConnections {
    /// Evicts the oldest client without an export, from `address` if given; false: there is none.
    fn evict_unclaimed(&mut self, address: Option<IpAddr>) -> bool {
        let may_leave =
            |slot: &Slot| !slot.has_export && (address.is_none() || slot.address == address);
        let found = self.slots.iter().find(|(_, slot)| may_leave(slot));
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(slot) = self.slots.remove(&number) {
            slot.socket.shutdown(Shutdown::Both);
        }
        true
    }

    fn count_of(&self, address: IpAddr) -> usize {
        let slots = self.slots.values();
        slots.filter(|slot| slot.address == Some(address)).count()
    }
}

impl Connections {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            open: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lock().slots.len()
    }

    /// Shuts down all connections, and those that are added later.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let mut open = self.lock();
        open.shutdown = Some(how);
        open.slots
            .values()
            .for_each(|slot| slot.socket.shutdown(how));
    }

    /// Waits until there is no connection; `false` after `timeout`.
    pub(super) fn wait_for_none(&self, timeout: Duration) -> bool {
        let mut open = self.lock();
        self.ended
            .wait_while_for(&mut open, |open| !open.slots.is_empty(), timeout);
        open.slots.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }
}

/// Guard of a connection's entry in the list.
pub(super) struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Registered {
    /// `None` at the connection limit.
    pub(super) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Option<Self> {
        let connections = &shared.connections;
        let max = connections.max;
        let address = socket.peer_address();
        let mut open = connections.lock();
        if let Some(address) = address
            && open.count_of(address) >= max - max / 4
            && !open.evict_unclaimed(Some(address))
        {
            return None;
        }
        if open.slots.len() >= max && !open.evict_unclaimed(None) {
            return None;
        }
        if let Some(how) = open.shutdown {
            socket.shutdown(how);
        }
        let number = open.next;
        open.next += 1;
        let slot = Slot {
            socket,
            address,
            has_export: false,
        };
        open.slots.insert(number, slot);
        drop(open);
        Some(Self { shared, number })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Called before the reply that grants an export: the slot cannot be evicted from now on.
    /// Returns false if the client was evicted before.
    pub(super) fn claim_slot(&self) -> bool {
        let mut open = self.shared.connections.lock();
        match open.slots.get_mut(&self.number) {
            Some(slot) => {
                slot.has_export = true;
                true
            }
            None => false,
        }
    }

    /// The client was evicted for a newer one.
    pub(super) fn was_evicted(&self) -> bool {
        let open = self.shared.connections.lock();
        !open.slots.contains_key(&self.number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let connections = &self.shared.connections;
        let slot = connections.lock().slots.remove(&self.number);
        if let Some(slot) = slot {
            // After a panic the client would otherwise wait for a reply.
            slot.socket.shutdown(Shutdown::Both);
        }
        connections.ended.notify_all();
    }
}
