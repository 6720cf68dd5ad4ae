//! Exclusion of other writers from a file.
//!
//! Zeros written into a hole are safe only while no other process writes there: data written
//! between reading the map and writing the zeros would be lost. A write lease excludes all
//! processes of this kernel. If other machines can reach the file (FUSE or network servers), a
//! granted lease proves nothing, and the file is refused.

use std::io;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Remedy, Result};
use extant_sys::wait::poll_until;

use crate::file::HostFile;
use crate::filesystem::{FileSystem, LeaseReach};
use crate::holders;
use crate::sys::lease::WriteLease;

/// Longest wait for a process that has the file open: a new process holds the descriptors of its
/// parent for a moment, and an indexer opens files briefly.
const LEASE_TIMEOUT: Duration = Duration::from_millis(200);

/// Exclusion of other writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusion {
    /// By a write lease: refused when another process has the file open or another machine can
    /// reach it; the operation stops when another process opens the file.
    #[default]
    Lease,
    /// Not at all: the caller guarantees that no process writes to the holes.
    Shared,
}

/// Takes a lease that excludes all other processes while it lives.
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
    let taken = poll_until(
        LEASE_TIMEOUT,
        LEASE_TIMEOUT / 20,
        || match WriteLease::take(file.as_file()) {
            Err(source) if source.raw_os_error() == Some(libc::EAGAIN) => None,
            answer => Some(answer),
        },
    );
    let refused = match taken {
        Some(Ok(lease)) => return Ok(lease),
        Some(Err(source)) => source,
        None => io::Error::from_raw_os_error(libc::EAGAIN),
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

/// Fails when another process waits to open the file.
pub(crate) fn check_lease(file: &HostFile, lease: Option<&WriteLease<'_>>) -> Result<()> {
    if lease.is_some_and(WriteLease::is_contended) {
        return Err(Error::new(ErrorKind::InUse)
            .at(file.path())
            .detail("stopped, because another process opens the file; its data is unchanged")
            .advice("run again later to do the rest"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Instant;

    use super::*;
    use crate::file::Access;

    #[test]
    fn process_that_waits_to_open_the_file_ends_the_work() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let file = HostFile::open(&path, Access::ReadWrite).unwrap();
        let filesystem = FileSystem::under(&file).unwrap();
        let lease = take_lease(&file, &filesystem).unwrap();
        check_lease(&file, Some(&lease)).unwrap();
        // Waits in the kernel until the lease is released.
        let opener = std::thread::spawn(move || File::open(path));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !lease.is_contended() {
            assert!(Instant::now() < deadline, "no process opened the file");
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = check_lease(&file, Some(&lease)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(lease);
        opener.join().unwrap().unwrap();
    }
}
