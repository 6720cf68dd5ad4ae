//! An image that this process has open, and releases while a job works in it.
//!
//! A short operation holds the image as a whole ([`Pin`]). A job holds it per call
//! ([`LockAccess::PerCall`]): if another process waits, the image is closed between two calls,
//! after all earlier work is durable. The next call of the job takes the image lock again, opens
//! the image, and finds its files by inode number and generation. The locks of volumes are held
//! throughout.
//!
//! Both sides make progress: a job keeps the image for as long as it had to wait for it, within
//! limits, and lets new waiters pass first, for a limited time.
//!
//! A nested call (from a visitor of extents) is part of the outer one, so each thread counts its
//! calls.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_ext4::InodeNumber;
use extant_space::{CancelToken, Error, ErrorKind, Result};
use extant_sys::identity::Identity;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::engine::{Engine, FileKey};
use super::image_lock::{ImageLock, ImageWaiter};
use super::location::Ext4Location;
use crate::fair_lock::{FairWaiter, LockMode};
use crate::storage::Purpose;
use crate::storage::volume_locks::{VisibleWaiter, VolumeLocks};
use extant_hostfs::Directory;

/// A job keeps the image for so long at least.
const KEEP_MIN: Duration = Duration::from_millis(50);
/// And no longer than this while others wait, so that several jobs and new waiters all make
/// progress.
const KEEP_MAX: Duration = Duration::from_millis(250);
/// How long a resuming job lets new waiters pass.
const YIELD_MAX: Duration = Duration::from_secs(1);
/// Timeout for users that are not processes of this pool.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval of the image lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

thread_local! {
    /// Calls of this thread that are under way, of any image.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// State of an image between open and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The last user is closing it; new users must wait.
    Leaving,
    /// A thread opens or closes it.
    Moving,
    Away,
}

/// An image that this process has open, or has released for a while. Closed on drop.
pub(crate) struct OpenImage {
    location: Arc<Ext4Location>,
    purpose: Purpose,
    identity: Option<Identity>,
    own: Option<Directory>,
    locks: VolumeLocks,
    state: Mutex<ImageState>,
    moved: Condvar,
}

struct ImageState {
    phase: Phase,
    /// In the phases `Open` and `Leaving`.
    engine: Option<Arc<Engine>>,
    users: usize,
    opened: Instant,
    /// Minimum time that it stays open.
    keep: Duration,
    left: Instant,
    /// An unreported failure: earlier work may not be durable.
    lost: Option<(ErrorKind, String)>,
}

/// Result of a lookup of an open image.
pub(super) enum ImageLookup {
    Open(Pin),
    Busy,
    /// It is not open and cannot be opened for this access.
    Nothing,
}

/// Keeps the image open.
pub(crate) struct Pin {
    engine: Option<Arc<Engine>>,
    image: Arc<OpenImage>,
}

/// The image for a call.
struct Call<'a> {
    engine: Option<Arc<Engine>>,
    image: &'a OpenImage,
    /// It is counted in its thread.
    in_thread: PhantomData<*const ()>,
}

/// How an operation has an image.
#[derive(Clone)]
pub(super) enum LockAccess {
    /// From its beginning to its end.
    Exclusive(Arc<Pin>),
    /// Per call; other processes may own it between calls. A call that waits for the image ends
    /// when the token is cancelled.
    PerCall(Arc<OpenImage>, CancelToken),
}

/// The engine, for a call.
pub(super) struct Inside<'a>(Held<'a>);

enum Held<'a> {
    Pinned(&'a Engine),
    Called(Call<'a>),
}

/// A job that waits for the image again.
#[derive(Default)]
struct ReturningJob {
    since: Option<Instant>,
    waiter: FairWaiter,
    _visible: Option<VisibleWaiter>,
}

impl OpenImage {
    pub(super) fn open(
        location: &Arc<Ext4Location>,
        purpose: Purpose,
        own: Option<&Directory>,
        lock: Option<ImageLock>,
    ) -> Result<Pin> {
        let locks = VolumeLocks::new(own, purpose)?;
        let own = own.map(Directory::again).transpose()?;
        let engine = Arc::new(Engine::open(location, purpose, lock, None)?);
        let now = Instant::now();
        let state = ImageState {
            phase: Phase::Open,
            engine: Some(Arc::clone(&engine)),
            users: 1,
            opened: now,
            keep: KEEP_MIN,
            left: now,
            lost: None,
        };
        let image = Self {
            location: Arc::clone(location),
            purpose,
            identity: engine.identity(),
            own,
            locks,
            state: Mutex::new(state),
            moved: Condvar::new(),
        };
        Ok(Pin {
            engine: Some(engine),
            image: Arc::new(image),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.location.path
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.location.inner_path().join(name)
    }

    fn serves(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Look || self.purpose == Purpose::Change
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        if self.serves(Purpose::Change) {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::ReadOnly))
        }
    }

    /// Locks a volume against threads and other processes, also while the image is released.
    pub(super) fn try_lock(&self, inode: InodeNumber, mode: LockMode) -> Result<bool> {
        let locked = self.locks.try_lock(inode.0.into(), mode);
        locked.map_err(|error| error.at(self.path()))
    }

    pub(super) fn unlock(&self, inode: InodeNumber) {
        self.locks.unlock(inode.0.into());
    }

    /// Pins the image for a whole operation, if this process has it open or can open it now.
    pub(super) fn pin(
        self: &Arc<Self>,
        purpose: Purpose,
        waiter: &mut ImageWaiter,
    ) -> Result<ImageLookup> {
        let mut state = self.state();
        if state.lost.is_some() || (state.phase == Phase::Away && !self.serves(purpose)) {
            return Ok(ImageLookup::Nothing);
        }
        if state.phase == Phase::Away {
            state = self.move_back(state, || match &self.own {
                Some(own) => match waiter.take(own, self.purpose)? {
                    Some(lock) => self.reopen(lock).map(Some),
                    None => Ok(None),
                },
                None => Ok(None),
            })?;
        }
        if state.phase != Phase::Open || !self.serves(purpose) {
            return Ok(ImageLookup::Busy);
        }
        Ok(ImageLookup::Open(Pin {
            engine: Some(state.enter()),
            image: Arc::clone(self),
        }))
    }

    /// Begins a call. Waits while others have the image.
    fn call(&self, cancel: &CancelToken) -> Result<Call<'_>> {
        let is_inner = CALLS.get() > 0;
        let mut returning = ReturningJob::default();
        let mut state = self.state();
        loop {
            if let Some((kind, detail)) = &state.lost {
                return Err(Error::new(*kind).detail(detail));
            }
            match state.phase {
                Phase::Open => break,
                Phase::Leaving if is_inner => break,
                Phase::Leaving | Phase::Moving => {}
                Phase::Away => {
                    state = self.move_back(state, || self.come_back(&mut returning))?;
                    if state.phase == Phase::Open {
                        continue;
                    }
                }
            }
            cancel.check()?;
            self.moved.wait_for(&mut state, LOCK_POLL_INTERVAL);
        }
        let engine = state.enter();
        drop(state);
        Ok(Call::new(self, engine))
    }

    /// Begins a call where the image is open.
    fn call_if_open(&self) -> Option<Call<'_>> {
        let mut state = self.state();
        state.engine.is_some().then(|| {
            let engine = state.enter();
            Call::new(self, engine)
        })
    }

    fn end_call(&self) {
        let mut state = self.state();
        state.users -= 1;
        self.leave_unused(state);
    }

    /// Releases the image if another process waits and the minimum holding time has passed: at
    /// once, or at the end of the running calls.
    pub(super) fn give_way(&self) {
        let mut state = self.state();
        let is_due = state.phase == Phase::Open && state.opened.elapsed() >= state.keep;
        if is_due && self.locks.has_waiters() {
            state.phase = Phase::Leaving;
            self.leave_unused(state);
        }
    }

    fn leave_unused(&self, mut state: MutexGuard<'_, ImageState>) {
        if state.phase != Phase::Leaving || state.users > 0 {
            return;
        }
        let engine = state.engine.take().expect("it is open until it is left");
        state.phase = Phase::Moving;
        drop(state);
        let engine = Arc::into_inner(engine).expect("its last user has released it");
        let closed = engine.close();
        let mut state = self.state();
        state.phase = Phase::Away;
        state.left = Instant::now();
        state.lost = closed.err().map(|error| (error.kind(), error.to_string()));
        self.moved.notify_all();
    }

    /// Tries to have the image open again.
    fn move_back<'a>(
        &'a self,
        mut state: MutexGuard<'a, ImageState>,
        open: impl FnOnce() -> Result<Option<Engine>>,
    ) -> Result<MutexGuard<'a, ImageState>> {
        state.phase = Phase::Moving;
        drop(state);
        let opened = open();
        let mut state = self.state();
        state.phase = Phase::Away;
        if let Some(engine) = opened? {
            state.phase = Phase::Open;
            state.engine = Some(Arc::new(engine));
            state.keep = state.left.elapsed().clamp(KEEP_MIN, KEEP_MAX);
            state.opened = Instant::now();
            // Only then: threads that try in vain would wake each other without end.
            self.moved.notify_all();
        }
        Ok(state)
    }

    /// One attempt of a job that waits for the image again.
    fn come_back(&self, returning: &mut ReturningJob) -> Result<Option<Engine>> {
        let own = self.own.as_ref().expect("it was given to another process");
        let since = *returning.since.get_or_insert_with(|| {
            returning._visible = VisibleWaiter::returning(own);
            Instant::now()
        });
        let lets_pass = since.elapsed() < YIELD_MAX && self.locks.has_new_waiters();
        if lets_pass && !returning.waiter.has_turnstile() {
            return Ok(None);
        }
        let lock = ImageLock::try_acquire(&mut returning.waiter, own, self.purpose)?;
        let Some(lock) = lock else {
            return Ok(None);
        };
        match self.reopen(lock) {
            Ok(engine) => Ok(Some(engine)),
            // A user that is not a process of this pool.
            Err(error)
                if error.kind() == ErrorKind::InUse && since.elapsed() < STRANGER_TIMEOUT =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn reopen(&self, lock: ImageLock) -> Result<Engine> {
        Engine::open(&self.location, self.purpose, Some(lock), self.identity)
    }

    fn state(&self) -> MutexGuard<'_, ImageState> {
        self.state.lock()
    }
}

impl ImageState {
    fn enter(&mut self) -> Arc<Engine> {
        self.users += 1;
        Arc::clone(self.engine.as_ref().expect("it is open"))
    }
}

impl Pin {
    pub(super) fn image(&self) -> &Arc<OpenImage> {
        &self.image
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("until it is dropped")
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.engine = None;
        self.image.end_call();
    }
}

impl<'a> Call<'a> {
    fn new(image: &'a OpenImage, engine: Arc<Engine>) -> Self {
        CALLS.set(CALLS.get() + 1);
        Self {
            engine: Some(engine),
            image,
            in_thread: PhantomData,
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.engine = None;
        CALLS.set(CALLS.get() - 1);
        self.image.end_call();
    }
}

impl LockAccess {
    /// The engine for a call, or for several related ones.
    ///
    /// # Errors
    /// `Cancelled` while others have the image; those of opening the image again.
    pub(super) fn enter(&self) -> Result<Inside<'_>> {
        Ok(Inside(match self {
            Self::Exclusive(pin) => Held::Pinned(pin.engine()),
            Self::PerCall(image, cancel) => Held::Called(image.call(cancel)?),
        }))
    }

    pub(super) fn image(&self) -> &OpenImage {
        match self {
            Self::Exclusive(pin) => &pin.image,
            Self::PerCall(image, _) => image,
        }
    }

    /// A file is not used any more.
    pub(super) fn forget(&self, file: FileKey) {
        match self {
            Self::Exclusive(pin) => pin.engine().forget(file),
            Self::PerCall(image, _) => {
                if let Some(call) = image.call_if_open() {
                    Inside(Held::Called(call)).forget(file);
                }
            }
        }
    }
}

impl Deref for Inside<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        match &self.0 {
            Held::Pinned(engine) => engine,
            Held::Called(call) => call.engine.as_ref().expect("until it is dropped"),
        }
    }
}

#[cfg(test)]
mod tests;
