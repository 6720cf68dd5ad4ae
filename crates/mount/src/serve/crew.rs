//! The worker pool.
//!
//! Model: all workers of a queue do the same: receive a request, answer it, repeat, until the
//! connection ends. A request may take long, as a sync does, or even wait for other requests: a
//! notification makes the kernel write back dirty data. So the thread that waits for the end
//! ([`Crew::wait`]) acts as a watchdog for the workers of each queue. If each of them is still at
//! the same request as at the last check, it starts another one, so that no request blocks all
//! others and signals arrive; a worker that is idle for long ends, if the queue permits. The number
//! of workers is bounded; those that wait in a notification do not count, because they wait for the
//! answer of another worker.
//!
//! A failure is a panic of the file system or an error of the device. The workers continue to
//! answer, with errors, so that no caller hangs; the waiting thread gets the failure and unmounts.
//!
//! Locks: `state` is held for moments and alone.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use zerocopy::IntoBytes;

use super::deferred::{Deferred, Sender};
use super::placement::Placement;
use super::{Server, Slot};
use crate::Notifier;
use crate::operations::NodeId;
use crate::protocol::notices::InvalidateInode;
use crate::transport::{End, Lane, Line, Occasion, Received, Transport};

/// Interval of the watchdog, and the interval while there are no requests.
const PATROL_INTERVAL: Duration = Duration::from_millis(20);
const PATROL_INTERVAL_IDLE: Duration = Duration::from_millis(200);
/// Number of consecutive checks with an idle worker before one ends.
const IDLE_ROUNDS: u32 = 50;
/// How many threads there are at most beyond the usual, besides those that wait in a notice.
const ADDED_MAX: usize = 64;

/// The threads of a connection.
pub(crate) struct Crew {
    transport: Transport,
    server: Server,
    placement: Placement,
    state: Mutex<State>,
    changed: Condvar,
    /// A hint: there are more threads than wanted.
    too_many: AtomicBool,
    /// Threads that wait in a notice.
    notifying: AtomicUsize,
    deferred: Deferred,
}

#[derive(Debug, Default)]
struct State {
    lanes: Vec<Staff>,
    /// How many threads there ever were.
    started: usize,
    end: Option<End>,
    failure: Option<Error>,
}

/// The threads of a lane.
#[derive(Debug)]
struct Staff {
    lane: Lane,
    /// Threads that answer when nothing special happens.
    usual: usize,
    /// More of them, as all were busy.
    added: usize,
    live: usize,
}

/// The requests of the workers at the last check.
#[derive(Debug, Default)]
struct Patrol {
    before: Vec<u64>,
    idle_rounds: u32,
}

/// How the threads are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// All are at what they were at the last time.
    AllBusy,
    /// Some had nothing to do, for long.
    SomeIdle,
    /// Neither.
    Fine,
}

/// What a thread has.
struct Desk {
    /// Which of the lanes it is for.
    place: usize,
    line: Box<dyn Line>,
    scratch: Vec<u8>,
    slot: Slot,
}

impl Crew {
    /// A crew without threads yet. The file system begins.
    pub fn new(transport: Transport, server: Server, placement: Placement) -> Arc<Self> {
        let crew = Arc::new(Self {
            transport,
            server,
            placement,
            state: Mutex::default(),
            changed: Condvar::new(),
            too_many: AtomicBool::new(false),
            notifying: AtomicUsize::new(0),
            deferred: Deferred::default(),
        });
        crew.server.start(Notifier::new(&crew));
        crew
    }

    /// Starts the workers: `threads` of them, or the default number.
    ///
    /// # Errors
    /// Those of the operating system; started workers continue until the connection ends.
    pub fn start(self: &Arc<Self>, threads: Option<NonZero<usize>>) -> Result<()> {
        let mut state = self.state();
        for (place, (lane, usual)) in self.transport.lanes(threads).into_iter().enumerate() {
            state.lanes.push(Staff {
                lane,
                usual,
                added: 0,
                live: 0,
            });
            for _ in 0..usual {
                self.start_one(&mut state, place, Occasion::Beginning)?;
            }
        }
        Ok(())
    }

    /// Waits until the last worker has ended, or a failure, and runs the watchdog meanwhile.
    pub fn wait(self: &Arc<Self>) -> Result<End> {
        let mut state = self.state();
        let mut patrols: Vec<_> = state.lanes.iter().map(|_| Patrol::default()).collect();
        loop {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            if state.live() == 0 {
                return Ok(state.end.unwrap_or(End::Unmounted));
            }
            let mut interval = PATROL_INTERVAL_IDLE;
            for (place, patrol) in patrols.iter_mut().enumerate() {
                let current = self.server.current(place);
                interval = interval.min(patrol.interval(&current));
                match patrol.judge(current) {
                    Verdict::AllBusy => self.add_one(&mut state, place),
                    Verdict::SomeIdle if state.lanes[place].lane.can_shrink() => {
                        let staff = &mut state.lanes[place];
                        staff.added = staff.added.saturating_sub(1);
                        self.note_surplus(&state);
                    }
                    Verdict::SomeIdle | Verdict::Fine => {}
                }
            }
            let waited = self.changed.wait_timeout(state, interval);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the last thread has ended, or `patience` has. True when they have.
    pub fn wait_for_last(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.live() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Informs the file system that no more requests follow.
    pub fn finish(&self) {
        self.server.finish();
        if let Some(failure) = self.panicked() {
            self.state().failure = Some(failure);
        }
    }

    /// Sends the kernel a notice.
    pub fn notify(&self, notice: InvalidateInode) -> rustix::io::Result<()> {
        self.notifying.fetch_add(1, Ordering::Relaxed);
        let sent = self.transport.notify(notice.as_bytes());
        self.notifying.fetch_sub(1, Ordering::Relaxed);
        sent
    }

    /// The same for a request that may be of the kernel's background. `None` when too many of those
    /// wait for `timeout`.
    pub fn notify_from_background(
        &self,
        notice: InvalidateInode,
        timeout: Duration,
    ) -> Option<rustix::io::Result<()>> {
        let _permit = self.deferred.permit(timeout)?;
        Some(self.notify(notice))
    }

    /// Invalidates what the kernel holds of a range that was written past its cache: before this
    /// returns, or soon after when too many requests wait already.
    pub fn invalidate_written(self: &Arc<Self>, node: NodeId, range: Range<u64>) {
        let notice = |node: NodeId, range: Range<u64>| {
            InvalidateInode::data(node.0, range.start, Some(range.end - range.start))
        };
        let sent = self.notify_from_background(notice(node, range.clone()), Duration::ZERO);
        if sent.is_some() || self.deferred.queue(node, range) == Sender::Runs {
            return;
        }
        let crew = Arc::clone(self);
        let sender = thread::Builder::new().name("extant-fuse-notices".to_owned());
        let started = sender.spawn(move || {
            while let Some((node, range)) = crew.deferred.next() {
                // An error is that of a file or connection that is gone.
                let _ = crew.notify(notice(node, range));
            }
        });
        if started.is_err() {
            self.deferred.no_sender();
        }
    }

    /// Starts a thread beyond the usual ones. If that fails, the next look is another chance.
    fn add_one(self: &Arc<Self>, state: &mut State, place: usize) {
        let added: usize = state.lanes.iter().map(|staff| staff.added).sum();
        let added_max = ADDED_MAX + self.notifying.load(Ordering::Relaxed);
        let may_have_more = added < added_max && state.end.is_none();
        if may_have_more && self.start_one(state, place, Occasion::Jam).is_ok() {
            state.lanes[place].added += 1;
        }
    }

    fn start_one(
        self: &Arc<Self>,
        state: &mut State,
        place: usize,
        occasion: Occasion,
    ) -> Result<()> {
        let number = state.started;
        let lane = state.lanes[place].lane;
        let seat = self.transport.seat(lane, number);
        let mut desk = Desk {
            place,
            line: self.transport.line(lane, occasion)?,
            scratch: Vec::new(),
            slot: self.server.slot(place),
        };
        let crew = Arc::clone(self);
        thread::Builder::new()
            .name(format!("extant-fuse-{number}"))
            .spawn(move || {
                let leaving = Leaving(&crew, place);
                crew.placement.settle(seat);
                match crew.work(&mut desk) {
                    Ok(Some(end)) => crew.state().end = Some(end),
                    Ok(None) => {
                        // It was subtracted when it was asked to end.
                        std::mem::forget(leaving);
                        return;
                    }
                    Err(error) => crew.fail(error),
                }
                drop(leaving);
            })
            .map_err(|error| Error::from(error).during("start a thread"))?;
        state.started += 1;
        state.lanes[place].live += 1;
        Ok(())
    }

    /// Answers until the connection ends, or there are too many threads (`None`).
    fn work(&self, desk: &mut Desk) -> Result<Option<End>> {
        let mut is_failed = false;
        loop {
            if let Received::End(end) = desk.line.receive()? {
                return Ok(Some(end));
            }
            let (request, answer) = desk.line.request();
            let answer = self
                .server
                .answer(request, &desk.slot, answer, &mut desk.scratch);
            if let Some(len) = answer.map(<[u8]>::len) {
                desk.line.send(len)?;
            }
            if !is_failed && let Some(failure) = self.panicked() {
                is_failed = true;
                // Before the connection is cut.
                desk.line.flush()?;
                self.fail(failure);
            }
            if self.too_many.load(Ordering::Relaxed) && self.may_leave(desk.place) {
                return Ok(None);
            }
        }
    }

    /// Counts the calling thread out if its lane has more than are wanted.
    fn may_leave(&self, place: usize) -> bool {
        let mut state = self.state();
        let staff = &mut state.lanes[place];
        let is_surplus = staff.is_surplus();
        if is_surplus {
            staff.live -= 1;
        }
        self.note_surplus(&state);
        is_surplus
    }

    fn note_surplus(&self, state: &State) {
        let is_surplus = state.lanes.iter().any(Staff::is_surplus);
        self.too_many.store(is_surplus, Ordering::Relaxed);
    }

    fn panicked(&self) -> Option<Error> {
        let message = self.server.panic_message()?;
        Some(Error::new(ErrorKind::Io).detail(format!("the file system gave up: {message}")))
    }

    fn fail(&self, error: Error) {
        self.state().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn live(&self) -> usize {
        self.lanes.iter().map(|staff| staff.live).sum()
    }
}

impl Staff {
    fn is_surplus(&self) -> bool {
        self.live > self.usual + self.added
    }
}

impl Patrol {
    /// Time until the next check of the workers.
    fn interval(&self, current: &[u64]) -> Duration {
        if current.iter().all(|&request| request == 0) {
            PATROL_INTERVAL_IDLE
        } else {
            PATROL_INTERVAL
        }
    }

    fn judge(&mut self, current: Vec<u64>) -> Verdict {
        let has_idle = current.contains(&0);
        let is_stuck = !has_idle && current == self.before;
        self.before = current;
        self.idle_rounds = if has_idle { self.idle_rounds + 1 } else { 0 };
        if is_stuck {
            Verdict::AllBusy
        } else if self.idle_rounds >= IDLE_ROUNDS {
            self.idle_rounds = 0;
            Verdict::SomeIdle
        } else {
            Verdict::Fine
        }
    }
}

/// A thread that is counted; it is no more when this is dropped, also by a panic.
struct Leaving<'a>(&'a Crew, usize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = Error::new(ErrorKind::Io).detail("a thread of the server panicked");
            self.0.fail(error);
        }
        self.0.state().lanes[self.1].live -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_too_few_when_all_are_at_the_same_requests_twice() {
        let mut patrol = Patrol::default();
        assert_eq!(patrol.judge(vec![2, 4]), Verdict::Fine);
        assert_eq!(patrol.judge(vec![2, 6]), Verdict::Fine);
        assert_eq!(patrol.judge(vec![2, 6]), Verdict::AllBusy);
        // There is a third one, that waits.
        assert_eq!(patrol.judge(vec![2, 6, 0]), Verdict::Fine);
        assert_eq!(patrol.judge(vec![2, 6, 0]), Verdict::Fine);
        assert_eq!(patrol.judge(vec![2, 6, 8]), Verdict::Fine);
    }

    #[test]
    fn threads_are_too_many_when_some_wait_for_long() {
        let mut patrol = Patrol::default();
        for _ in 1..IDLE_ROUNDS {
            assert_eq!(patrol.judge(vec![2, 0]), Verdict::Fine);
        }
        assert_eq!(patrol.judge(vec![0, 4]), Verdict::SomeIdle);
        assert_eq!(patrol.judge(vec![0, 4]), Verdict::Fine);
    }
}
