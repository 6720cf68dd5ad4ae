//! A file of the host as the file of a volume.

use std::fs::TryLockError;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_hostfs::{
    Exclusion, Fallback, HostFile, MaterializeOptions, Pace, Shared, describe_holders,
    materialize_file, write_zeroes,
};
use extant_space::{ByteRange, Control, Error, ErrorKind, MappedProgress, Result};
use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Done, FileStat, MakeWritten, VolumeFile, nanoseconds};
use crate::fair_lock::LockMode;
use crate::permissions::Owner;
use extant_hostfs::path_of_open;

/// Longer values are none of ours.
const ATTRIBUTE_MAX: usize = 4 << 10;
/// A file that was opened while it was made written is tried so often again, each time for a moment
/// (`Exclusion::Lease`).
const REFUSALS_MAX: u32 = 10;
/// The kernel finishes operations in progress.
const LAST_WRITES: Duration = Duration::from_secs(1);

impl VolumeFile for HostFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn stat(&self) -> Result<FileStat> {
        let stat = rustix::fs::fstat(self.as_file()).map_err(|errno| error(self, errno))?;
        Ok(stat.into())
    }

    fn changed_ns(&self) -> Result<Option<u64>> {
        let stat = rustix::fs::fstat(self.as_file()).map_err(|errno| error(self, errno))?;
        Ok(nanoseconds(stat.st_ctime, stat.st_ctime_nsec))
    }

    fn last_writes(&self) -> Duration {
        LAST_WRITES
    }

    fn try_lock(&self, mode: LockMode) -> Result<bool> {
        let locked = match mode {
            LockMode::Shared => self.as_file().try_lock_shared(),
            LockMode::Exclusive => self.as_file().try_lock(),
        };
        match locked {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(source)) => match Errno::from_io_error(&source) {
                // Some file systems have no locks.
                Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(true),
                _ => Err(Error::from(source).at(self.path()).during("lock")),
            },
        }
    }

    fn unlock(&self) {
        let _ = self.as_file().unlock();
    }

    fn holders(&self) -> Option<String> {
        describe_holders(&path_of_open(self))
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        rustix::fs::fchmod(self.as_file(), Mode::from_raw_mode(mode))
            .and_then(|()| rustix::fs::fsync(self.as_file()))
            .map_err(|errno| error(self, errno).during("set mode"))
    }

    fn set_owner(&self, owner: Owner) -> Result<()> {
        let (uid, gid) = (owner.uid.map(Uid::from_raw), owner.gid.map(Gid::from_raw));
        rustix::fs::fchown(self.as_file(), uid, gid)
            .and_then(|()| rustix::fs::fsync(self.as_file()))
            .map_err(|errno| {
                let error = error(self, errno).during("set owner");
                match errno {
                    Errno::PERM => error.advice("only root can make a volume for another owner"),
                    _ => error,
                }
            })
    }

    fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; ATTRIBUTE_MAX];
        match rustix::fs::fgetxattr(self.as_file(), name, &mut bytes[..]) {
            Ok(length) => {
                bytes.truncate(length);
                Ok(Some(bytes))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(error(self, errno).during("read extended attribute")),
        }
    }

    fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        rustix::fs::fsetxattr(self.as_file(), name, value, XattrFlags::empty())
            .map_err(|errno| error(self, errno).during("set extended attribute"))
    }

    fn share_space_of(&self, source: &dyn VolumeFile) -> Result<bool> {
        let Some(source) = source.as_host() else {
            return Ok(false);
        };
        match rustix::fs::ioctl_ficlone(self.as_file(), source.as_file()) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(error(self, errno).during("clone")),
        }
    }

    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done> {
        let options = MaterializeOptions {
            range: wanted.range,
            shared: if wanted.unshare {
                Shared::Unshare
            } else {
                Shared::Refuse
            },
            exclusion: if wanted.is_unknown_to_others {
                Exclusion::Shared
            } else {
                Exclusion::Lease
            },
            pace: wanted.pace.clone(),
            ..MaterializeOptions::default()
        };
        let has_begun = AtomicBool::new(false);
        let progress = MappedProgress {
            update: |progress| {
                has_begun.store(true, Ordering::Relaxed);
                control.progress.update(progress);
            },
            caller: control.progress,
        };
        let inner = Control::new(control.cancel, &progress);
        let mut refused = 0;
        loop {
            has_begun.store(false, Ordering::Relaxed);
            let done = materialize_file(self, &options, inner);
            match done {
                // An open by another process breaks the lease and stops the work; usually it is a
                // short read, such as a list of the pool.
                Err(error) if error.kind() == ErrorKind::InUse => {
                    if has_begun.load(Ordering::Relaxed) {
                        refused = 1;
                    } else if (1..REFUSALS_MAX).contains(&refused) {
                        refused += 1;
                    } else {
                        return Err(error);
                    }
                }
                done => return done.map(Done::from),
            }
        }
    }

    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()> {
        write_zeroes(self, range, Fallback::Write, pace, control).map(drop)
    }

    fn overwrites_in_place(&self) -> Result<bool> {
        self.overwrites_in_place()
    }

    fn as_host(&self) -> Option<&HostFile> {
        Some(self)
    }
}

fn error(file: &HostFile, errno: Errno) -> Error {
    Error::from(io::Error::from(errno)).at(file.path())
}
