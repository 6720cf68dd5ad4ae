//! The worker pool.
//!
//! Each worker owns an endpoint of a queue: it receives a request, answers it, and repeats until
//! the connection ends. A request may take long, as a sync does, or depend on other requests: a
//! notification makes the kernel write back dirty data. Therefore the thread in
//! [`WorkerPool::wait`] is a watchdog for each queue:
//!
//! - if each worker is still at the same request as at the last check, it starts another worker, so
//!   that signals arrive and other requests proceed;
//! - if a worker has been idle for long, one of the added ones ends, unless the queue cannot
//!   shrink: the initial ones are spread over the CPUs.
//!
//! The number of added workers is bounded by `ADDED_WORKERS_MAX`. Workers that wait in a
//! notification do not count, because they wait for the reply of another worker.
//!
//! A failure is a panic of the file system or an error of the device. The workers then continue to
//! answer, with errors, so that no caller hangs; `wait` returns the failure, and the session
//! unmounts.
//!
//! Lock: `state` is held briefly, and no other lock with it.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::thread::spawn;
use extant_space::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::deferred::{Deferred, Sender};
use super::{Server, Slot};
use crate::operations::{KernelCache, NodeId, Notifier};
use crate::options::WorkerAffinity;
use crate::protocol::notifications::InvalidateInode;
use crate::queue::{End, Endpoint, Queue, Received, StartReason};
use crate::transport::Transport;

/// Interval of the watchdog, and the interval while there are no requests.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(20);
const WATCHDOG_INTERVAL_IDLE: Duration = Duration::from_millis(200);
/// Number of consecutive checks with an idle worker before one ends.
const IDLE_CHECKS: u32 = 50;
/// Maximum number of workers beyond the initial ones, without those that wait in a notification.
const ADDED_WORKERS_MAX: usize = 64;

/// The workers of a connection.
pub(crate) struct WorkerPool {
    transport: Transport,
    server: Server,
    affinity: WorkerAffinity,
    state: Mutex<PoolState>,
    changed: Condvar,
    /// A hint: some queue has more workers than wanted.
    has_surplus: AtomicBool,
    /// Threads that wait in a notification.
    notifying: AtomicUsize,
    deferred: Deferred,
}

#[derive(Debug, Default)]
struct PoolState {
    queues: Vec<QueueWorkers>,
    /// Number of workers ever started.
    started: usize,
    end: Option<End>,
    failure: Option<Error>,
}

/// The workers of a queue.
#[derive(Debug)]
struct QueueWorkers {
    queue: Queue,
    initial: usize,
    /// Wanted beyond the initial ones, because all were busy.
    added: usize,
    live: usize,
}

/// The requests of a queue's workers at the last check.
#[derive(Debug, Default)]
struct Watchdog {
    before: Vec<u64>,
    idle_checks: u32,
}

/// The load of a queue's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Each worker is at the same request as at the last check.
    Stalled,
    /// A worker has been idle for `IDLE_CHECKS` checks.
    Idle,
    /// Neither.
    Normal,
}

struct Worker {
    /// Index of its queue in [`PoolState::queues`].
    queue: usize,
    start_reason: StartReason,
    endpoint: Box<dyn Endpoint>,
    scratch: Vec<u8>,
    slot: Slot,
}

impl WorkerPool {
    /// A pool without workers. Starts the file system.
    pub fn new(transport: Transport, server: Server, affinity: WorkerAffinity) -> Arc<Self> {
        let pool = Arc::new(Self {
            transport,
            server,
            affinity,
            state: Mutex::default(),
            changed: Condvar::new(),
            has_surplus: AtomicBool::new(false),
            notifying: AtomicUsize::new(0),
            deferred: Deferred::default(),
        });
        let cache: Weak<Self> = Arc::downgrade(&pool);
        pool.server.start(Notifier::new(cache));
        pool
    }

    /// Starts the workers: `threads` of them, or the default number.
    ///
    /// # Errors
    /// Those of the operating system; started workers continue until the connection ends.
    pub fn start(self: &Arc<Self>, threads: Option<NonZero<usize>>) -> Result<()> {
        let mut state = self.state();
        for (index, (queue, initial)) in self.transport.queues(threads).into_iter().enumerate() {
            state.queues.push(QueueWorkers {
                queue,
                initial,
                added: 0,
                live: 0,
            });
            for _ in 0..initial {
                self.start_worker(&mut state, index, StartReason::ConnectionStart)?;
            }
        }
        Ok(())
    }

    /// Waits until the last worker has ended, or a failure, and runs the watchdog meanwhile.
    pub fn wait(self: &Arc<Self>) -> Result<End> {
        let mut state = self.state();
        let mut watchdogs: Vec<_> = state.queues.iter().map(|_| Watchdog::default()).collect();
        loop {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            if state.live() == 0 {
                return Ok(state.end.unwrap_or(End::Unmounted));
            }
            let mut interval = WATCHDOG_INTERVAL_IDLE;
            for (index, watchdog) in watchdogs.iter_mut().enumerate() {
                let current = self.server.current(index);
                interval = interval.min(watchdog.interval(&current));
                match watchdog.check(current) {
                    Load::Stalled => self.add_worker(&mut state, index),
                    Load::Idle if state.queues[index].queue.can_shrink() => {
                        let workers = &mut state.queues[index];
                        workers.added = workers.added.saturating_sub(1);
                        self.update_surplus(&state);
                    }
                    Load::Idle | Load::Normal => {}
                }
            }
            self.changed.wait_for(&mut state, interval);
        }
    }

    /// Waits until the last worker has ended, for `timeout` at most. True when it has.
    pub fn wait_for_last(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        while state.live() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Informs the file system that no more requests follow.
    pub fn finish(&self) {
        self.server.finish();
        if let Some(failure) = self.panic_error() {
            self.state().failure = Some(failure);
        }
    }

    fn notify(&self, notification: InvalidateInode) -> std::result::Result<(), Errno> {
        self.notifying.fetch_add(1, Ordering::Relaxed);
        let sent = self.transport.notify(notification.as_bytes());
        self.notifying.fetch_sub(1, Ordering::Relaxed);
        sent
    }

    /// Notifies on behalf of a request that may be one of the kernel's background. `None` if too
    /// many of those wait for `timeout`.
    fn notify_from_background(
        &self,
        notification: InvalidateInode,
        timeout: Duration,
    ) -> Option<std::result::Result<(), Errno>> {
        let _permit = self.deferred.permit(timeout)?;
        Some(self.notify(notification))
    }

    /// Starts a worker beyond the initial ones. If that fails, the next check tries again.
    fn add_worker(self: &Arc<Self>, state: &mut PoolState, queue: usize) {
        let added: usize = state.queues.iter().map(|workers| workers.added).sum();
        let added_max = ADDED_WORKERS_MAX + self.notifying.load(Ordering::Relaxed);
        let is_permitted = added < added_max && state.end.is_none();
        if is_permitted && self.start_worker(state, queue, StartReason::Stall).is_ok() {
            state.queues[queue].added += 1;
        }
    }

    fn start_worker(
        self: &Arc<Self>,
        state: &mut PoolState,
        index: usize,
        reason: StartReason,
    ) -> Result<()> {
        let number = state.started;
        let queue = state.queues[index].queue;
        let cpu = self.transport.worker_cpu(queue, number);
        let mut worker = Worker {
            queue: index,
            start_reason: reason,
            endpoint: self.transport.endpoint(queue, reason)?,
            scratch: Vec::new(),
            slot: self.server.slot(index),
        };
        let pool = Arc::clone(self);
        spawn(&format!("extant-fuse-{number}"), move || {
            let counted = CountedWorker(&pool, index);
            pool.affinity.apply(cpu);
            match pool.run(&mut worker) {
                Ok(Some(end)) => pool.state().end = Some(end),
                Ok(None) => {
                    // `may_leave` has subtracted it.
                    std::mem::forget(counted);
                    return;
                }
                Err(error) => pool.fail(error),
            }
            drop(counted);
        })?;
        state.started += 1;
        state.queues[index].live += 1;
        Ok(())
    }

    /// Answers requests until the connection ends, or the worker is surplus (`None`).
    fn run(&self, worker: &mut Worker) -> Result<Option<End>> {
        let mut is_failed = false;
        loop {
            if let Received::End(end) = worker.endpoint.receive()? {
                return Ok(Some(end));
            }
            let (request, reply) = worker.endpoint.request();
            let reply = self
                .server
                .answer(request, &worker.slot, reply, &mut worker.scratch);
            if let Some(len) = reply.map(<[u8]>::len) {
                worker.endpoint.send(len)?;
            }
            if !is_failed && let Some(failure) = self.panic_error() {
                is_failed = true;
                // The reply is sent before the failure aborts the connection.
                worker.endpoint.flush()?;
                self.fail(failure);
            }
            if self.has_surplus.load(Ordering::Relaxed) && self.may_leave(worker) {
                return Ok(None);
            }
        }
    }

    /// Subtracts the calling worker from its queue's if it was added and they are more than wanted.
    fn may_leave(&self, worker: &Worker) -> bool {
        let mut state = self.state();
        let workers = &mut state.queues[worker.queue];
        let is_surplus = workers.can_spare(worker.start_reason);
        if is_surplus {
            workers.live -= 1;
        }
        self.update_surplus(&state);
        is_surplus
    }

    fn update_surplus(&self, state: &PoolState) {
        let has_surplus = state.queues.iter().any(QueueWorkers::has_surplus);
        self.has_surplus.store(has_surplus, Ordering::Relaxed);
    }

    fn panic_error(&self) -> Option<Error> {
        let message = self.server.panic_message()?;
        Some(Error::new(ErrorKind::Io).detail(format!("the file system gave up: {message}")))
    }

    fn fail(&self, error: Error) {
        self.state().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }
}

impl KernelCache for WorkerPool {
    fn invalidate_attributes(&self, node: NodeId) -> std::result::Result<(), Errno> {
        self.notify(InvalidateInode::attributes(node.0))
    }

    fn invalidate_data(
        &self,
        node: NodeId,
        offset: u64,
        length: Option<u64>,
    ) -> std::result::Result<(), Errno> {
        self.notify(InvalidateInode::data(node.0, offset, length))
    }

    fn write_back_from_background(
        &self,
        node: NodeId,
        timeout: Duration,
    ) -> Option<std::result::Result<(), Errno>> {
        self.notify_from_background(InvalidateInode::data(node.0, 0, None), timeout)
    }

    fn invalidate_written(self: Arc<Self>, node: NodeId, range: Range<u64>) {
        let notification = |node: NodeId, range: Range<u64>| {
            InvalidateInode::data(node.0, range.start, Some(range.end - range.start))
        };
        let sent = self.notify_from_background(notification(node, range.clone()), Duration::ZERO);
        if sent.is_some() || self.deferred.queue(node, range) == Sender::Runs {
            return;
        }
        let pool = Arc::clone(&self);
        let sender = thread::Builder::new().name("extant-fuse-notices".to_owned());
        let started = sender.spawn(move || {
            while let Some((node, range)) = pool.deferred.next() {
                // An error means that the file or the connection is closed.
                let _ = pool.notify(notification(node, range));
            }
        });
        if started.is_err() {
            self.deferred.no_sender();
        }
    }
}

impl PoolState {
    fn live(&self) -> usize {
        self.queues.iter().map(|workers| workers.live).sum()
    }
}

impl QueueWorkers {
    fn has_surplus(&self) -> bool {
        self.live > self.initial + self.added
    }

    /// Whether a worker that was started for this reason may end.
    fn can_spare(&self, start_reason: StartReason) -> bool {
        start_reason == StartReason::Stall && self.has_surplus()
    }
}

impl Watchdog {
    /// Time until the next check of the workers.
    fn interval(&self, current: &[u64]) -> Duration {
        if current.iter().all(|&request| request == 0) {
            WATCHDOG_INTERVAL_IDLE
        } else {
            WATCHDOG_INTERVAL
        }
    }

    fn check(&mut self, current: Vec<u64>) -> Load {
        let has_idle = current.contains(&0);
        let is_stalled = !has_idle && current == self.before;
        self.before = current;
        self.idle_checks = if has_idle { self.idle_checks + 1 } else { 0 };
        if is_stalled {
            Load::Stalled
        } else if self.idle_checks >= IDLE_CHECKS {
            self.idle_checks = 0;
            Load::Idle
        } else {
            Load::Normal
        }
    }
}

/// Counts a live worker until it is dropped, also by a panic.
struct CountedWorker<'a>(&'a WorkerPool, usize);

impl Drop for CountedWorker<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::new(ErrorKind::Io).detail("a thread of the server panicked");
            self.0.fail(error);
        }
        self.0.state().queues[self.1].live -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_stalled_when_all_workers_are_at_the_same_requests_twice() {
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.check(vec![2, 4]), Load::Normal);
        assert_eq!(watchdog.check(vec![2, 6]), Load::Normal);
        assert_eq!(watchdog.check(vec![2, 6]), Load::Stalled);
        // A third worker is idle.
        assert_eq!(watchdog.check(vec![2, 6, 0]), Load::Normal);
        assert_eq!(watchdog.check(vec![2, 6, 0]), Load::Normal);
        assert_eq!(watchdog.check(vec![2, 6, 8]), Load::Normal);
    }

    #[test]
    fn surplus_of_a_queue_is_an_added_worker_and_no_initial_one() {
        let mut workers = QueueWorkers {
            queue: Queue::Device,
            initial: 2,
            added: 1,
            live: 3,
        };
        assert!(!workers.can_spare(StartReason::Stall));
        workers.added = 0;
        assert!(workers.has_surplus() && workers.can_spare(StartReason::Stall));
        assert!(!workers.can_spare(StartReason::ConnectionStart));
    }

    #[test]
    fn queue_is_idle_when_a_worker_waits_for_many_checks() {
        let mut watchdog = Watchdog::default();
        for _ in 1..IDLE_CHECKS {
            assert_eq!(watchdog.check(vec![2, 0]), Load::Normal);
        }
        assert_eq!(watchdog.check(vec![0, 4]), Load::Idle);
        assert_eq!(watchdog.check(vec![0, 4]), Load::Normal);
    }
}
