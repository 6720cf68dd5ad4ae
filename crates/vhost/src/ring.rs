//! A virtqueue in guest memory, and the descriptors that wake its thread and its driver.
//!
//! Model: one thread takes requests; it and the threads of slow requests complete them, in any
//! order, under the lock of the ring. Completions are signalled together (`signal`).
//!
//! A ring that breaks the rules is marked as broken: no further request is taken, the error
//! descriptor of the client is signalled, and requests in flight are still completed.
//!
//! The client's eventfds are untrusted: the kick is read without blocking, and is ignored once it
//! is no eventfd that works; the call is written only if that does not block.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, retry_on_intr, write};
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use crate::inflight::Inflight;
use crate::request::{Broken, Request, Status};
use crate::volume::Volume;

/// Interval of checks of a ring whose driver does not kick.
const UNKICKED_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

pub(crate) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Descriptors of a client for one ring.
#[derive(Debug, Default)]
pub(crate) struct Notifiers {
    /// The driver has added requests. `None`: it does not say so.
    pub kick: Option<File>,
    /// Requests have been completed. `None`: the driver polls.
    pub call: Option<File>,
    /// The ring is broken.
    pub error: Option<File>,
}

/// A started ring.
pub(crate) struct Ring {
    memory: Memory,
    state: Mutex<State>,
    is_stopping: AtomicBool,
    /// Readable when there is a kick or a wake-up.
    events: OwnedFd,
    wake: OwnedFd,
    kick: Option<File>,
}

struct State {
    queue: Queue,
    inflight: Option<Inflight>,
    /// Heads that a server before this one did not finish, newest first.
    unfinished: Vec<u16>,
    /// Requests that were taken and not completed.
    outstanding: u16,
    /// Requests were completed since the driver was last called.
    has_unsignalled: bool,
    is_broken: bool,
    call: Option<File>,
    error: Option<File>,
}

impl Ring {
    /// `queue` is ready, and inside of memory.
    pub(crate) fn new(
        memory: Memory,
        mut queue: Queue,
        inflight: Option<Inflight>,
        notifiers: Notifiers,
    ) -> io::Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let token = EventData::new_u64(0);
        epoll::add(&events, &wake, token, EventFlags::IN)?;
        if let Some(kick) = &notifiers.kick {
            fcntl_setfl(kick, fcntl_getfl(kick)? | OFlags::NONBLOCK)?;
            epoll::add(&events, kick, token, EventFlags::IN)?;
        }
        let mut inflight = inflight;
        let mut unfinished = Vec::new();
        if let Some(table) = &mut inflight {
            let used = queue
                .used_idx(&*memory.memory(), Ordering::Acquire)
                .map_err(io::Error::other)?
                .0;
            unfinished = table.recover(used);
            if !unfinished.is_empty() {
                queue.set_next_avail(used.wrapping_add(unfinished.len() as u16));
                queue.set_next_used(used);
                unfinished.reverse();
            }
        }
        Ok(Self {
            memory,
            state: Mutex::new(State {
                queue,
                inflight,
                unfinished,
                outstanding: 0,
                has_unsignalled: false,
                is_broken: false,
                call: notifiers.call,
                error: notifiers.error,
            }),
            is_stopping: AtomicBool::new(false),
            events,
            wake,
            kick: notifiers.kick,
        })
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Takes the next request, if there is one.
    pub(crate) fn take(&self, volume: &Volume) -> Result<Option<Request>, Broken> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let memory = self.memory.memory();
        let Some(head) = state.next_head(&memory)? else {
            return Ok(None);
        };
        let size = state.queue.size();
        if head >= size {
            return Err("a head outside of the descriptor table");
        }
        let table = GuestAddress(state.queue.desc_table());
        let request = Request::read(&memory, table, size, head, volume)?;
        if let Some(inflight) = &mut state.inflight {
            inflight.begin(head);
        }
        state.outstanding += 1;
        Ok(Some(request))
    }

    /// Whether there is a request to take.
    pub(crate) fn has_next(&self) -> bool {
        let state = self.state.lock();
        let memory = self.memory.memory();
        // An error is found when the request is taken.
        !state.is_closed() && state.has_next(&memory).unwrap_or(true)
    }

    /// Writes the status of a request, and puts it into the used ring.
    pub(crate) fn complete(&self, request: &Request, status: Status) -> Result<(), Broken> {
        let memory = self.memory.memory();
        let written = memory.write_obj(status as u8, request.status);
        let mut state = self.state.lock();
        let state = &mut *state;
        let was_full = state.outstanding == state.queue.size();
        state.outstanding -= 1;
        if was_full {
            self.wake();
        }
        written.map_err(|_| "a status outside of memory")?;
        if let Some(inflight) = &state.inflight {
            inflight.before_used(request.head);
        }
        let used = state
            .queue
            .add_used(&*memory, request.head, request.used_length(status));
        used.map_err(|_| "a used ring outside of memory")?;
        if let Some(inflight) = &state.inflight {
            inflight.after_used(request.head, state.queue.next_used());
        }
        state.has_unsignalled = true;
        Ok(())
    }

    /// Calls the driver if requests were completed and it wants to know.
    pub(crate) fn signal(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.has_unsignalled) {
            let memory = self.memory.memory();
            if state.is_call_wanted(&memory) {
                notify(state.call.as_ref());
            }
        }
    }

    /// Asks the driver to kick for the next request. Returns whether one is there already.
    pub(crate) fn arm(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_closed() {
            return false;
        }
        let memory = self.memory.memory();
        // An error is found when the request is taken.
        !state.unfinished.is_empty() || state.queue.enable_notification(&*memory).unwrap_or(true)
    }

    /// Asks the driver not to kick. With event indexes it does not anyway.
    pub(crate) fn disarm(&self) {
        let mut state = self.state.lock();
        let memory = self.memory.memory();
        // An error is found when the request is taken.
        let _ = state.queue.disable_notification(&*memory);
    }

    /// Becomes readable by a kick or a wake-up.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for a kick or a wake-up.
    pub(crate) fn wait(&self) -> Result<(), Broken> {
        let timeout = match self.kick {
            None => Some(&UNKICKED_INTERVAL),
            Some(_) => None,
        };
        let mut events = [PollFd::new(&self.events, PollFlags::IN)];
        // Cannot fail but for lack of memory, which has passed at the next call.
        let _ = retry_on_intr(|| poll(&mut events, timeout));
        self.clear_events()
    }

    /// Takes what made the events readable.
    pub(crate) fn clear_events(&self) -> Result<(), Broken> {
        let mut count = [0; 8];
        let _ = read(&self.wake, &mut count);
        let Some(kick) = &self.kick else {
            return Ok(());
        };
        match read(kick, &mut count) {
            Ok(8) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            _ => {
                let _ = epoll::delete(&self.events, kick);
                Err("a kick descriptor that is no eventfd")
            }
        }
    }

    fn wake(&self) {
        // Cannot fail: the counter has room.
        let _ = write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes no further request. Returns whether it was whole before.
    pub(crate) fn break_down(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_broken {
            return false;
        }
        state.is_broken = true;
        notify(state.error.as_ref());
        true
    }

    /// Another descriptor to call the driver through.
    pub(crate) fn set_call(&self, call: Option<File>) {
        let mut state = self.state.lock();
        state.call = call;
        // The driver may have missed a call through the old one.
        notify(state.call.as_ref());
    }

    /// Another descriptor for the end of the ring.
    pub(crate) fn set_error(&self, error: Option<File>) {
        self.state.lock().error = error;
    }

    /// Its thread ends after the requests in flight.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Index of the next request, and the descriptors, after the thread has ended.
    pub(crate) fn into_parts(self) -> (u16, Notifiers) {
        let state = self.state.into_inner();
        let notifiers = Notifiers {
            kick: self.kick,
            call: state.call,
            error: state.error,
        };
        (state.queue.next_avail(), notifiers)
    }
}

impl State {
    /// No request is to be taken, now or ever.
    fn is_closed(&self) -> bool {
        self.is_broken || self.outstanding >= self.queue.size()
    }

    fn has_next(&self, memory: &GuestMemoryMmap) -> Result<bool, Broken> {
        let available = self
            .queue
            .avail_idx(memory, Ordering::Acquire)
            .map_err(|_| "an available ring outside of memory")?;
        Ok(!self.unfinished.is_empty() || available.0 != self.queue.next_avail())
    }

    fn next_head(&mut self, memory: &GuestMemoryMmap) -> Result<Option<u16>, Broken> {
        if self.is_closed() {
            return Ok(None);
        }
        if let Some(head) = self.unfinished.pop() {
            return Ok(Some(head));
        }
        if !self.has_next(memory)? {
            return Ok(None);
        }
        let next = self
            .queue
            .iter(memory)
            .ok()
            .and_then(|mut heads| heads.next());
        match next {
            Some(chain) => Ok(Some(chain.head_index())),
            None => Err("an available ring with more entries than the queue, or outside of memory"),
        }
    }

    fn is_call_wanted(&mut self, memory: &GuestMemoryMmap) -> bool {
        if self.queue.event_idx_enabled() {
            return self.queue.needs_notification(memory).unwrap_or(true);
        }
        // The crate leaves this flag out.
        fence(Ordering::SeqCst);
        let flags = memory.load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        flags.map_or(0, u16::from_le) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0
    }
}

/// Increments an eventfd, unless that would block.
fn notify(descriptor: Option<&File>) {
    if let Some(file) = descriptor {
        let mut events = [PollFd::new(file, PollFlags::OUT)];
        let now = Timespec::default();
        let is_ready = retry_on_intr(|| poll(&mut events, Some(&now)));
        if is_ready == Ok(1) && events[0].revents().contains(PollFlags::OUT) {
            // A client that is gone, or gave another kind of file, misses it.
            let _ = write(file, &1u64.to_ne_bytes());
        }
    }
}
