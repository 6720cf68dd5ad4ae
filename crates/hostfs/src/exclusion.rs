//! How other writers are kept out of a file, and who they are.
//!
//! Zeros put into a hole are only safe while nobody writes there: data written
//! between the look at the map and the zeros would be lost. A write lease excludes
//! everybody who goes through this kernel. Where others reach the file past it (a FUSE
//! or network server), a granted lease proves nothing, and the file is refused.

use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Remedy, Result};

use crate::file::HostFile;
use crate::filesystem::FileSystem;
use crate::holders;
use crate::sys::lease::WriteLease;

/// How long somebody who has the file open is waited for: a process just started holds what its
/// parent had open for a moment, and so does a look at a file by an indexer.
const PATIENCE: Duration = Duration::from_millis(200);

/// How other writers are kept out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusion {
    /// By a write lease: refused when somebody has the file open or can reach it past this kernel,
    /// stopped when somebody opens it.
    #[default]
    Lease,
    /// Not at all: the caller knows that nobody writes to the holes.
    Shared,
}

/// Whom a lease excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseReach {
    /// Everybody who can reach the file.
    Everybody,
    /// Only who goes through this kernel, on the file system of this name.
    ThisKernel(String),
}

/// Keeps everybody else out while it lives.
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

/// Nobody waits to open the file.
pub(crate) fn check_lease(file: &HostFile, lease: Option<&WriteLease<'_>>) -> Result<()> {
    if lease.is_some_and(WriteLease::is_contended) {
        return Err(Error::new(ErrorKind::InUse)
            .at(file.path())
            .detail("stopped, as somebody opens the file; its data is as before")
            .advice("run again later to do what is left"));
    }
    Ok(())
}
