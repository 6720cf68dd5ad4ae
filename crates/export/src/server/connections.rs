//! The list of connections.

use std::collections::HashMap;
use std::net::Shutdown;
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
    sockets: HashMap<u64, Arc<Socket>>,
    next: u64,
    /// What no new connection escapes.
    shutdown: Option<Shutdown>,
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
        self.lock().sockets.len()
    }

    /// Closes a half of all connections, and of those that are still to be added.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let mut open = self.lock();
        open.shutdown = Some(how);
        open.sockets
            .values()
            .for_each(|socket| socket.shutdown(how));
    }

    /// Waits until there is no connection; `false` when that takes longer.
    pub(super) fn wait_for_none(&self, timeout: Duration) -> bool {
        let waited = self
            .ended
            .wait_timeout_while(self.lock(), timeout, |open| !open.sockets.is_empty());
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .sockets
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
        let mut open = connections.lock();
        if open.sockets.len() >= connections.most {
            return None;
        }
        if let Some(how) = open.shutdown {
            socket.shutdown(how);
        }
        let number = open.next;
        open.next += 1;
        open.sockets.insert(number, socket);
        drop(open);
        Some(Self { shared, number })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let connections = &self.shared.connections;
        let socket = connections.lock().sockets.remove(&self.number);
        if let Some(socket) = socket {
            // After a panic the client would wait for ever.
            socket.shutdown(Shutdown::Both);
        }
        connections.ended.notify_all();
    }
}
