//! A mount from start to end.
//!
//! [`Session::mount`] mounts and negotiates the protocol with the kernel; [`Session::run`] answers
//! until the unmount: by a user with `umount` or `fusermount3 -u`, or by another thread with an
//! [`Unmounter`]. Between the two, users of the mount wait. Dropping a session that was not run
//! unmounts it.
//!
//! Linux does not wait in `umount` until a server has ended (except for mounts of block devices): a
//! program that needs the image afterwards waits for the process.

use std::fmt;
use std::fs::File;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;

use crate::channel::Channel;
use crate::mounting::{self, Mounted, UnmountMode};
use crate::operations::Operations;
use crate::options::MountOptions;
use crate::protocol::connection::{Agreement, InitOut, Offer, Preferences};
use crate::protocol::opcode::Opcode;
use crate::protocol::reply::{HEADER_LENGTH, Reply};
use crate::protocol::split;
use crate::queue::End;
use crate::serve::Server;
use crate::serve::worker_pool::WorkerPool;
use crate::transport::{Transport, is_offered, not_offered};

/// Buffer of the first request, in bytes.
const INIT_BUFFER_LENGTH: usize = 8192;
/// Longest wait of a failed session for workers that may hang.
const WORKERS_END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unmount retries while files are in use: the kernel releases closed files
/// asynchronously.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(1);
const IN_USE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A mount and its server.
pub struct Session {
    pool: Arc<WorkerPool>,
    threads: Option<NonZero<usize>>,
    mounted: Arc<Mounted>,
}

/// Unmounts a running session, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter(Arc<Mounted>);

/// How an unmount treats files in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// It fails.
    Refuse,
    /// The mount point is detached; open files stay usable.
    Detach,
}

/// Unmounts the mount at `directory`, an absolute path, whichever process serves it.
///
/// # Errors
/// `InUse`; `PermissionDenied`; `Unsupported` if `fusermount3` is needed and missing.
pub fn unmount(directory: &Path, busy: Busy) -> Result<()> {
    let mode = match busy {
        Busy::Refuse => UnmountMode::Refuse,
        Busy::Detach => UnmountMode::Detach,
    };
    retry_in_use(|| mounting::unmount(directory, mode))
}

/// Changes the options of every file system (`ro`, `rw`, `nodev`, `noexec` and the like) of the
/// mount at `directory`, an absolute path. Before a mount becomes read-only, all written data is
/// made durable.
///
/// # Errors
/// `InUse` if the mount is to be read-only and a file is open for writing; `PermissionDenied`;
/// `InvalidArgument` if it is no mount.
pub fn remount(directory: &Path, options: &MountOptions) -> Result<()> {
    let synced = if options.is_read_only() {
        File::open(directory).and_then(|directory| directory.sync_all())
    } else {
        Ok(())
    };
    synced.map_err(|error| Error::from(error).at(directory).during("remount"))?;
    retry_in_use(|| mounting::remount(directory, options))
}

/// Retries while files are in use.
fn retry_in_use(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::InUse && Instant::now() < deadline => {
                thread::sleep(IN_USE_RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

impl Session {
    /// Mounts at `directory`; for a file system whose root is a file, that is a regular file.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `WrongType`; `PermissionDenied`; `Unsupported` where FUSE is
    /// missing or too old, or `fusermount3` is missing and needed.
    pub fn mount(
        operations: Arc<dyn Operations>,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self> {
        let preferences = Preferences {
            write_cache: options.write_cache,
            export: operations.export(),
            over_io_uring: is_offered(options.io_uring)?,
        };
        let (connection, mounted) = mounting::mount(directory, operations.root_kind(), options)?;
        let channel = Channel::new(connection);
        let agreed = agree(&channel, preferences).and_then(|agreement| {
            let transport = if agreement.is_over_io_uring() {
                Transport::by_rings(channel, mounted.directory())?
            } else {
                Transport::by_device(channel)
            };
            Ok((agreement, transport))
        });
        let (agreement, transport) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                let _ = mounted.unmount(UnmountMode::Abort);
                return Err(error.at(directory).during("mount"));
            }
        };
        let server = Server::new(operations, &agreement);
        Ok(Self {
            pool: WorkerPool::new(transport, server, options.affinity),
            threads: options.threads,
            mounted: Arc::new(mounted),
        })
    }

    /// The absolute path of the mount point.
    pub fn directory(&self) -> &Path {
        self.mounted.directory()
    }

    /// A handle that unmounts the session while it runs.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::clone(&self.mounted))
    }

    /// Serves requests until the file system is unmounted and the last file is closed, then ends
    /// the file system.
    ///
    /// # Errors
    /// `Io` if the file system panicked or the connection was aborted; those of starting threads.
    /// The mount is removed then as well. After a panic a worker that hangs may still own the file
    /// system.
    pub fn run(self) -> Result<()> {
        let ended = match self.pool.start(self.threads) {
            Ok(()) => self.pool.wait(),
            Err(error) => Err(error),
        };
        let end = match ended {
            Ok(end) => end,
            Err(error) => {
                let _ = self.mounted.unmount(UnmountMode::Abort);
                self.pool.wait_for_last(WORKERS_END_TIMEOUT);
                self.mounted.end();
                return Err(error);
            }
        };
        self.mounted.end();
        self.pool.finish();
        // `finish` may have panicked.
        self.pool.wait()?;
        match end {
            End::Unmounted => Ok(()),
            End::Aborted => Err(Error::new(ErrorKind::Io)
                .at(self.directory())
                .detail("the connection was aborted: dirty data of the kernel's cache is lost")),
        }
    }
}

impl Unmounter {
    /// Unmounts if no file is in use.
    ///
    /// # Errors
    /// `InUse`; `PermissionDenied`; `Unsupported` if `fusermount3` is needed and missing.
    pub fn unmount(&self) -> Result<()> {
        self.0.unmount(UnmountMode::Refuse)
    }

    /// Detaches the mount point at once. Open files stay usable, and the session ends with the last
    /// of them.
    ///
    /// # Errors
    /// As [`unmount`](Self::unmount), without `InUse`.
    pub fn detach(&self) -> Result<()> {
        self.0.unmount(UnmountMode::Detach)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.mounted.unmount(UnmountMode::Abort);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.directory().display())
    }
}

/// Answers INIT, in which the kernel offers its capabilities.
fn agree(channel: &Channel, preferences: Preferences) -> Result<Agreement> {
    let mut buffer = AlignedBuffer::new(INIT_BUFFER_LENGTH)?;
    let unexpected =
        || Error::new(ErrorKind::Unsupported).detail("the kernel does not begin with INIT");
    let len = match channel.receive(buffer.as_mut_slice())? {
        Ok(len) => len,
        Err(_) => {
            return Err(Error::new(ErrorKind::Io).detail("it was unmounted at once"));
        }
    };
    let (header, body) = split(&buffer.as_slice()[..len]).map_err(|_| unexpected())?;
    if Opcode::new(header.opcode) != Some(Opcode::Init) {
        return Err(unexpected());
    }
    let offer = Offer::read(body).map_err(|_| unexpected())?;
    let agreement = preferences.agree(&offer)?;
    if preferences.over_io_uring && !agreement.is_over_io_uring() {
        return Err(not_offered("the kernel does not offer FUSE over it"));
    }
    let mut memory = [0; HEADER_LENGTH + size_of::<InitOut>()];
    let mut reply = Reply::new(&mut memory);
    let len = reply.put(&agreement.reply);
    channel.send(reply.finish(header.unique, Ok(len)))?;
    Ok(agreement)
}
