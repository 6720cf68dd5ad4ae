//! The table of requests in flight, in memory that survives the server: the client keeps it and
//! gives it to the next server, which finishes the requests of a killed one.
//!
//! Completion of a request takes four steps: its head is noted, it enters the used ring, it leaves
//! the table, the index of the used ring is noted. A crash between them is repaired at the next
//! start: if the two indices differ, the noted head is in the used ring and leaves the table.
//!
//! Format: "Inflight I/O tracking" of the vhost-user protocol, split virtqueues.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::volatile_memory::VolatileMemory;
use vm_memory::{Bytes, FileOffset, MmapRegion};

/// Offsets of `struct QueueRegionSplit`, and of its `struct DescStateSplit`.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const DESC: usize = 16;
const DESC_BYTES: usize = 16;
const DESC_COUNTER: usize = 8;
/// The regions of the queues are aligned to it.
const ALIGNMENT: usize = 64;
const CURRENT_VERSION: u16 = 1;

/// The shared memory of all queues.
#[derive(Clone, Debug)]
pub(crate) struct InflightMemory {
    region: Arc<MmapRegion>,
    queues: u16,
    queue_size: u16,
}

impl InflightMemory {
    /// New memory, and its file for the client.
    pub(crate) fn create(queues: u16, queue_size: u16) -> io::Result<(Self, File)> {
        let file = File::from(memfd_create("extant-inflight", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes(queues, queue_size) as u64)?;
        let memory = Self::open(file.try_clone()?, 0, queues, queue_size)?;
        Ok((memory, file))
    }

    /// The memory that a client has kept.
    pub(crate) fn open(file: File, offset: u64, queues: u16, queue_size: u16) -> io::Result<Self> {
        let region = MmapRegion::from_file(
            FileOffset::new(file, offset),
            bytes(queues, queue_size).max(1),
        )
        .map_err(io::Error::other)?;
        Ok(Self {
            region: Arc::new(region),
            queues,
            queue_size,
        })
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        bytes(self.queues, self.queue_size) as u64
    }

    /// The table of a queue; `None` if the memory has none of that size.
    pub(crate) fn of_queue(&self, queue: usize, queue_size: u16) -> Option<Inflight> {
        (queue < usize::from(self.queues) && queue_size <= self.queue_size).then(|| Inflight {
            region: self.region.clone(),
            start: queue * queue_bytes(self.queue_size),
            queue_size,
            counter: 0,
        })
    }
}

fn queue_bytes(queue_size: u16) -> usize {
    (DESC + DESC_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

fn bytes(queues: u16, queue_size: u16) -> usize {
    usize::from(queues) * queue_bytes(queue_size)
}

/// The table of one queue.
#[derive(Debug)]
pub(crate) struct Inflight {
    region: Arc<MmapRegion>,
    start: usize,
    queue_size: u16,
    /// Order of submission.
    counter: u64,
}

impl Inflight {
    /// The heads of the requests that a server before this one did not finish, oldest first, given
    /// the index of the used ring.
    pub(crate) fn recover(&mut self, used_index: u16) -> Vec<u16> {
        let is_new = self.load_u16(VERSION) != CURRENT_VERSION;
        if is_new || self.load_u16(DESC_NUM) != self.queue_size {
            (0..self.queue_size).for_each(|head| self.set(head, false));
            self.store_u16(DESC_NUM, self.queue_size);
            self.store_u16(USED_IDX, used_index);
            self.store_u16(VERSION, CURRENT_VERSION);
            return Vec::new();
        }
        if self.load_u16(USED_IDX) != used_index {
            let last = self.load_u16(LAST_BATCH_HEAD);
            if last < self.queue_size {
                self.set(last, false);
            }
            self.store_u16(USED_IDX, used_index);
        }
        let mut found: Vec<(u64, u16)> = (0..self.queue_size)
            .filter(|&head| self.load::<u8>(self.of(head)) != 0)
            .map(|head| (self.load(self.of(head) + DESC_COUNTER), head))
            .collect();
        found.sort_unstable();
        self.counter = found
            .last()
            .map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// A request is taken from the ring.
    pub(crate) fn begin(&mut self, head: u16) {
        self.store(self.of(head) + DESC_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.set(head, true);
    }

    /// The request is about to enter the used ring.
    pub(crate) fn before_used(&self, head: u16) {
        self.store_u16(LAST_BATCH_HEAD, head);
    }

    /// It is there, and this is the ring's index.
    pub(crate) fn after_used(&self, head: u16, used_index: u16) {
        self.set(head, false);
        self.store_u16(USED_IDX, used_index);
    }

    fn of(&self, head: u16) -> usize {
        DESC + DESC_BYTES * usize::from(head)
    }

    fn set(&self, head: u16, is_in_flight: bool) {
        self.store(self.of(head), u8::from(is_in_flight));
    }

    fn load_u16(&self, at: usize) -> u16 {
        self.load(at)
    }

    fn store_u16(&self, at: usize, value: u16) {
        self.store(at, value);
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: usize) -> T {
        let slice = self.region.as_volatile_slice();
        slice
            .load(self.start + at, Ordering::Acquire)
            .expect("inside the mapping, and aligned")
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let slice = self.region.as_volatile_slice();
        slice
            .store(value, self.start + at, Ordering::Release)
            .expect("inside the mapping, and aligned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (InflightMemory, Inflight) {
        let (memory, _) = InflightMemory::create(2, 8).unwrap();
        let mut table = memory.of_queue(1, 8).unwrap();
        assert_eq!(table.recover(5), [0; 0]);
        (memory, table)
    }

    #[test]
    fn unfinished_requests_are_found_in_their_order() {
        let (memory, mut table) = table();
        for head in [6, 2, 4] {
            table.begin(head);
        }
        table.before_used(2);
        table.after_used(2, 6);
        let mut next = memory.of_queue(1, 8).unwrap();
        assert_eq!(next.recover(6), [6, 4]);
        assert_eq!(memory.of_queue(0, 8).unwrap().recover(0), [0; 0]);
    }

    #[test]
    fn request_in_the_used_ring_is_finished_though_the_table_has_it() {
        let (memory, mut table) = table();
        table.begin(3);
        table.begin(7);
        table.before_used(3);
        // Killed before and after it entered the used ring.
        assert_eq!(memory.of_queue(1, 8).unwrap().recover(5), [3, 7]);
        assert_eq!(memory.of_queue(1, 8).unwrap().recover(6), [7]);
    }

    #[test]
    fn table_of_another_size_is_not_used() {
        let (memory, mut table) = table();
        table.begin(3);
        assert!(memory.of_queue(2, 8).is_none());
        assert!(memory.of_queue(0, 16).is_none());
        assert_eq!(memory.of_queue(1, 4).unwrap().recover(0), [0; 0]);
    }
}
