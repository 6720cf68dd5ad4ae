//! Exclusion of other writers of a file, and their names.
//!
//! Writing zeros into a hole is only safe while no other process writes there: data written between
//! reading the map and writing the zeros would be lost. A write lease excludes every process of
//! this kernel. If others can reach the file without this kernel (a FUSE or network server), a
//! granted lease proves nothing, and the file is refused.

use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Remedy, Result};

use crate::file::HostFile;
use crate::filesystem::FileSystem;
use crate::holders;
use crate::sys::lease::WriteLease;

/// Timeout for a process that has the file open: a process just started holds the files of its
/// parent for a moment, and an indexer reads a file briefly.
const PATIENCE: Duration = Duration::from_millis(200);

/// How other writers are kept out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusion {
    /// By a write lease: refused if another process has the file open or can reach it without this
    /// kernel, stopped when another process opens it.
    #[default]
    Lease,
    /// None: the caller guarantees that no process writes to the holes.
    Shared,
}

/// Whom a lease excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseReach {
    /// Every process that can reach the file.
    Everybody,
    /// Only who goes through this kernel, on the file system of this name.
    ThisKernel(String),
}

/// Excludes all other processes while it lives.
pub(crate) fn take_lease<'f>(
    file: &'f HostFile,
    filesystem: &FileSystem,
) -> Result<WriteLease<'f>> {
    if let LeaseReach::ThisKernel(name) = filesystem.lease_reach(file) {
        return Err(Error::new(ErrorKind::Unsupported)
            .at(file.path())
            .detail(format!(
                "other writers cannot be kept out: on {name} a lease excludes this machine only, not the server and its other clients"
            ))
            .remedy(Remedy::ShareAccess));
    }
    let deadline = Instant::now() + PATIENCE;
    let refused = loop {
        match WriteLease::take(file.as_file()) {
            Ok(lease) => return Ok(lease),
            Err(source) if source.raw_os_error() != Some(libc::EAGAIN) => break source,
            Err(source) if Instant::now() >= deadline => break source,
            Err(_) => std::thread::sleep(PATIENCE / 20),
        }
    };
    let errno = refused.raw_os_error();
    let error = file.error(refused);
    Err(match errno {
        Some(libc::EAGAIN) => {
            let who = holders::describe(file.path())
                .unwrap_or_else(|| "a process that cannot be seen from here".to_owned());
            error
                .with_kind(ErrorKind::InUse)
                .detail(format!("the file is open elsewhere: {who}"))
                .advice("stop it")
                .remedy(Remedy::ShareAccess)
        }
        Some(libc::EACCES | libc::EPERM) => error
            .with_kind(ErrorKind::PermissionDenied)
            .detail("other writers cannot be kept out: a lease needs the file's owner or CAP_LEASE")
            .remedy(Remedy::ShareAccess),
        _ => error
            .with_kind(ErrorKind::Unsupported)
            .detail("other writers cannot be kept out: this file system has no leases")
            .remedy(Remedy::ShareAccess),
    })
}

/// Fails if another process waits to open the file.
pub(crate) fn check_lease(file: &HostFile, lease: Option<&WriteLease<'_>>) -> Result<()> {
    if lease.is_some_and(WriteLease::is_contended) {
        return Err(Error::new(ErrorKind::InUse)
            .at(file.path())
            .detail("stopped, as another process opens the file; its data is as before")
            .advice("run again later to do what is left"));
    }
    Ok(())
}
