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
use crate::mounting::{self, Manner, Mounted};
use crate::operations::Operations;
use crate::options::MountOptions;
use crate::protocol::connection::{Agreement, InitOut, Offer, Wish};
use crate::protocol::opcode::Opcode;
use crate::protocol::reply::{HEADER_LENGTH, Reply};
use crate::protocol::split;
use crate::queue::End;
use crate::serve::Server;
use crate::serve::worker_pool::WorkerPool;
use crate::transport::{Transport, is_offered, not_offered};

/// Room for the first request.
const FIRST_REQUEST_LENGTH: usize = 8192;
/// How long a failed session waits for threads that may hang.
const PATIENCE: Duration = Duration::from_secs(2);
/// A file that was closed counts as one in use until the kernel has let go of it, which it does
/// later.
const PATIENCE_WITH_CLOSES: Duration = Duration::from_secs(1);

/// A mount and those who answer for it.
pub struct Session {
    pool: Arc<WorkerPool>,
    threads: Option<NonZero<usize>>,
    mounted: Arc<Mounted>,
}

/// Takes a mount away, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter(Arc<Mounted>);

/// What is done about files in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// The files stay mounted.
    Refuse,
    /// The mount point is detached; open files stay usable.
    Detach,
}

/// Unmounts what a process, another one as a rule, has mounted at `directory`, given by its full
/// name.
///
/// # Errors
/// `InUse`; `PermissionDenied`; `Unsupported` without `fusermount3` where that is needed.
pub fn unmount(directory: &Path, busy: Busy) -> Result<()> {
    let manner = match busy {
        Busy::Refuse => Manner::WhenUnused,
        Busy::Detach => Manner::Detach,
    };
    retry_in_use(|| mounting::unmount(directory, manner))
}

/// Changes what every mount has (`ro`, `rw`, `nodev`, `noexec` and the like) of the one at
/// `directory`, given by its full name. Whatever was written is durable before nothing can be
/// written any more.
///
/// # Errors
/// `InUse` when a file is open for writing that may not be written any more; `PermissionDenied`;
/// `InvalidArgument` when it is no mount.
pub fn remount(directory: &Path, options: &MountOptions) -> Result<()> {
    let synced = if options.is_read_only() {
        File::open(directory).and_then(|directory| directory.sync_all())
    } else {
        Ok(())
    };
    synced.map_err(|error| Error::from(error).at(directory).during("remount"))?;
    retry_in_use(|| mounting::remount(directory, options))
}

/// Tries again while files are in use, until those that were closed a moment ago are not.
fn retry_in_use(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE_WITH_CLOSES;
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::InUse && Instant::now() < deadline => {
                thread::sleep(PATIENCE_WITH_CLOSES / 50);
            }
            done => return done,
        }
    }
}

impl Session {
    /// Mounts at `directory`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; `PermissionDenied`; `Unsupported` where FUSE is missing or too
    /// old, or `fusermount3` is missing and needed.
    pub fn mount(
        operations: Arc<dyn Operations>,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self> {
        let wish = Wish {
            write_cache: options.write_cache,
            export: operations.export(),
            over_io_uring: is_offered(options.io_uring)?,
        };
        let (connection, mounted) = mounting::mount(directory, options)?;
        let channel = Channel::new(connection);
        let agreed = agree(&channel, wish).and_then(|agreement| {
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
                let _ = mounted.unmount(Manner::Cut);
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

    /// Where it is, by its full name.
    pub fn directory(&self) -> &Path {
        self.mounted.directory()
    }

    /// Takes the mount away while it runs.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::clone(&self.mounted))
    }

    /// Answers until it is unmounted and the last file is closed, then ends the file system.
    ///
    /// # Errors
    /// `Io` when the file system panicked or the connection was cut; those of starting threads. The
    /// mount is gone then as well. After a panic a thread that hangs may still hold the file
    /// system.
    pub fn run(self) -> Result<()> {
        let ended = match self.pool.start(self.threads) {
            Ok(()) => self.pool.wait(),
            Err(error) => Err(error),
        };
        let end = match ended {
            Ok(end) => end,
            Err(error) => {
                let _ = self.mounted.unmount(Manner::Cut);
                self.pool.wait_for_last(PATIENCE);
                self.mounted.end();
                return Err(error);
            }
        };
        self.mounted.end();
        self.pool.finish();
        // A panic of the end.
        self.pool.wait()?;
        match end {
            End::Unmounted => Ok(()),
            End::Aborted => Err(Error::new(ErrorKind::Io)
                .at(self.directory())
                .detail("the connection was cut: what the kernel had not written back is lost")),
        }
    }
}

impl Unmounter {
    /// Unmounts when no file is in use.
    ///
    /// # Errors
    /// `InUse`; `PermissionDenied`; `Unsupported` without `fusermount3` if it is needed.
    pub fn unmount(&self) -> Result<()> {
        self.0.unmount(Manner::WhenUnused)
    }

    /// Frees the place at once. Files that are open stay usable, and the session ends with the last
    /// of them.
    ///
    /// # Errors
    /// As [`unmount`](Self::unmount), but for `InUse`.
    pub fn detach(&self) -> Result<()> {
        self.0.unmount(Manner::Detach)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.mounted.unmount(Manner::Cut);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.directory().display())
    }
}

/// Answers the first request, in which the kernel offers what it can do.
fn agree(channel: &Channel, wish: Wish) -> Result<Agreement> {
    let mut buffer = AlignedBuffer::new(FIRST_REQUEST_LENGTH)?;
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
    let agreement = wish.agree(&offer)?;
    if wish.over_io_uring && !agreement.is_over_io_uring() {
        return Err(not_offered("the kernel does not offer FUSE over it"));
    }
    let mut memory = [0; HEADER_LENGTH + size_of::<InitOut>()];
    let mut reply = Reply::new(&mut memory);
    let len = reply.put(&agreement.reply);
    channel.send(reply.finish(header.unique, Ok(len)))?;
    Ok(agreement)
}
