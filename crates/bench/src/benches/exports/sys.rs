//! A virtio disk of a vhost-user server without a guest: the driver of the crate `virtio-driver`,
//! and memory for the data, which the server maps.
//!
//! One queue: split ring, event index.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags,
};
use vm_memory::{FileOffset, MmapRegion};

use super::job::{Direction, Job};

/// Entries of the ring: three for each request in flight.
const QUEUE_SIZE: u16 = 1024;
/// A server that takes longer for a request is reported.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A connected disk.
pub(super) struct Disk {
    // Dropped first: it uses memory of the transport.
    queue: VirtioBlkQueue<'static, usize>,
    notifier: Box<dyn QueueNotifier>,
    called: Arc<EventFd>,
    /// One block for each request in flight.
    data: MmapRegion,
    block_bytes: usize,
    _transport: Box<VirtioBlkTransport>,
}

impl Disk {
    /// Connects, with memory for `job`.
    pub(super) fn connect(socket: &Path, job: Job) -> Result<Self> {
        let ring = VirtioFeatureFlags::VERSION_1
            | VirtioFeatureFlags::RING_EVENT_IDX
            | VirtioFeatureFlags::RING_INDIRECT_DESC;
        // Without it every write would be flushed, as virtio demands.
        let features = ring.bits() | VirtioBlkFeatureFlags::FLUSH.bits();
        let socket = socket.to_str().context("a socket that is no text")?;
        let transport = VhostUser::new(socket, features).context("connect")?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let granted = VirtioFeatureFlags::from_bits_truncate(transport.get_features());
        ensure!(
            granted.contains(VirtioFeatureFlags::RING_EVENT_IDX),
            "the server has no event index"
        );
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, 1, QUEUE_SIZE)?;
        let queue = queues.pop().context("no queue")?;

        let block_bytes = usize::try_from(job.block_bytes())?;
        let bytes = block_bytes * job.depth as usize;
        let mut file = File::from(memfd_create("data", MemfdFlags::CLOEXEC)?);
        // No zeros, which a server might detect.
        file.write_all(&vec![0xA5; bytes])?;
        let data = MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), bytes)?;
        transport.map_mem_region(data.as_ptr().addr(), bytes, file.as_raw_fd(), 0)?;
        Ok(Self {
            queue,
            notifier: transport.get_submission_notifier(0),
            called: transport.get_completion_fd(0),
            data,
            block_bytes,
            _transport: transport,
        })
    }

    /// Puts a request into the ring. Its block of memory is that of `slot`, less than the depth,
    /// with which it is returned.
    pub(super) fn submit(&mut self, direction: Direction, slot: usize, offset: u64) -> Result<()> {
        let start = slot * self.block_bytes;
        assert!(start + self.block_bytes <= self.data.size());
        let block = self.data.as_ptr().wrapping_add(start);
        let length = self.block_bytes;
        // SAFETY: the block is mapped for as long as the queue exists, and no reference to it is
        // ever made here.
        unsafe {
            match direction {
                Direction::Read => self.queue.read_raw(offset, block, length, slot),
                Direction::Write => self.queue.write_raw(offset, block, length, slot),
            }
        }
        .context("submit a request")
    }

    /// Kicks the server, if it wants that for what was submitted.
    pub(super) fn notify(&mut self) -> Result<()> {
        if self.queue.avail_notif_needed() {
            self.notifier.notify()?;
        }
        Ok(())
    }

    /// The slot of a completed request.
    pub(super) fn completed(&mut self) -> Result<Option<usize>> {
        let Some(completion) = self.queue.completions().next() else {
            return Ok(None);
        };
        ensure!(completion.ret == 0, "a request has failed");
        Ok(Some(completion.context))
    }

    /// Whether the server calls for each completion that finds the client asleep.
    pub(super) fn set_called(&mut self, is_called: bool) {
        self.queue.set_used_notif_enabled(is_called);
    }

    /// Sleeps until the server calls.
    pub(super) fn sleep(&self) -> Result<()> {
        let mut events = [PollFd::new(&self.called, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: TIMEOUT.as_secs() as i64,
            tv_nsec: 0,
        };
        let ready = retry_on_intr(|| poll(&mut events, Some(&timeout)))?;
        ensure!(ready > 0, "the server has not called for {TIMEOUT:?}");
        self.called.read()?;
        Ok(())
    }
}
