//! The plan: how space becomes written on a target, and why.
//!
//! The first strategy that the target supports is taken. Support is tried on the file itself.
//!
//! 1. [`Strategy::WriteZeroes`]: the kernel writes zeroes (`FALLOC_FL_WRITE_ZEROES`, Linux 6.17,
//!    disks whose write-zeroes unmap).
//! 2. [`Strategy::Overwrite`]: the whole range is allocated first, in requests as large as
//!    possible, so that the allocator sees the full size; then unwritten parts are overwritten with
//!    zeros.
//! 3. [`Strategy::WriteInOrder`]: no fallocate (NFS 3, some FUSE, ext2): zeros are written from the
//!    start to the end.
//!
//! Copy-on-write targets have no strategy: written space is not overwritten in place there.

use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, HostIo, Result, SpaceFile, event};
use extant_sys::direct::DirectIo;
use serde::Serialize;

/// A way to make space written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The kernel writes zeroes, on the disk where it can.
    WriteZeroes,
    /// Allocate all, then overwrite with zeros.
    Overwrite,
    /// Write zeros from the start to the end.
    WriteInOrder,
}

impl Strategy {
    /// The words used in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteZeroes => "write-zeroes",
            Self::Overwrite => "overwrite",
            Self::WriteInOrder => "write-in-order",
        }
    }
}

/// A strategy that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// The strategy.
    pub strategy: Strategy,
    /// Answer of the target.
    pub reason: String,
}

/// The strategy for a target, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The way taken.
    pub strategy: Strategy,
    /// Why it serves.
    pub reason: String,
    /// Those before it in the list, and why not.
    pub rejected: Vec<Rejected>,
    /// Alignment for direct I/O; `None`: zeros are written through the page cache.
    pub direct_io: Option<DirectIo>,
    /// Unit in which blocks are zeroed directly, bytes; edges are written through the page cache.
    #[serde(skip)]
    pub(crate) block_bytes: u32,
}

impl Plan {
    /// Chooses the method for `file`; the bytes of `trial` must be inside the file and not yet
    /// written: they are used to try the kernel's write zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::CopyOnWrite`] where no way leads to written space; those of the trial.
    pub fn of(file: &dyn SpaceFile, trial: Option<ByteRange>) -> Result<Self> {
        file.check_written_stays()?;
        let Some(trial) = trial else {
            return Ok(Self::by_writing(file, "there is nothing to try it on"));
        };
        match file.fallocate(FallocateMode::WriteZeroes, trial) {
            Ok(()) => Ok(Self::by_kernel(file)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Ok(Self::by_writing(file, &refusal(&error)))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn by_kernel(file: &dyn SpaceFile) -> Self {
        let host = file.host_io();
        Self {
            strategy: Strategy::WriteZeroes,
            reason: "the kernel and the disk write zeroes".to_owned(),
            rejected: Vec::new(),
            direct_io: host.and_then(|host| DirectIo::of(host.file)),
            block_bytes: block_bytes(host),
        }
    }

    /// The way without the kernel's write zeroes, which was `refused`.
    pub(crate) fn by_writing(file: &dyn SpaceFile, refused: &str) -> Self {
        let mut plan = Self::by_kernel(file);
        plan.fall_back_to_overwrite(refused);
        plan
    }

    fn fall_back_to_overwrite(&mut self, why: &str) {
        self.reject(why);
        self.strategy = Strategy::Overwrite;
        self.reason = match self.direct_io {
            Some(_) => "allocate, then overwrite with zeros by direct I/O".to_owned(),
            None => "allocate, then overwrite with zeros through the page cache".to_owned(),
        };
    }

    /// The file system has no fallocate.
    pub fn fall_back_to_write_in_order(&mut self, why: &str) {
        self.reject(why);
        self.strategy = Strategy::WriteInOrder;
        self.reason = "write zeros from the start to the end".to_owned();
    }

    /// Reports that it is carried out.
    pub(crate) fn report(&self) {
        event!(
            INFO,
            "plan",
            strategy = self.strategy.name(),
            reason = self.reason,
            rejected = ?self.rejected
        );
    }

    fn reject(&mut self, reason: &str) {
        self.rejected.push(Rejected {
            strategy: self.strategy,
            reason: reason.to_owned(),
        });
    }
}

/// Name of an error, as in `EOPNOTSUPP`.
pub fn refusal(error: &Error) -> String {
    match error.os_errno() {
        Some(libc::EOPNOTSUPP) => "EOPNOTSUPP".to_owned(),
        Some(libc::EINVAL) => "EINVAL".to_owned(),
        Some(libc::ENOSYS) => "ENOSYS".to_owned(),
        _ => error.to_string(),
    }
}

/// Blocks of the file system, where it names a plausible size.
fn block_bytes(host: Option<HostIo<'_>>) -> u32 {
    match u32::try_from(host.map_or(0, |host| host.block_bytes)) {
        Ok(bytes) if bytes.is_power_of_two() && (512..=65_536).contains(&bytes) => bytes,
        _ => 4096,
    }
}
