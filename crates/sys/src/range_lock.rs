//! Open file description locks of byte ranges (`F_OFD_SETLK`).
//!
//! They last as long as the open file description, and also exclude other descriptions of the same
//! process.

use std::io;
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};

/// Takes a shared lock of `length` bytes from `start`; does not wait.
///
/// # Errors
/// `EAGAIN` when another description holds an exclusive lock, `EINVAL` if the kernel has no such
/// locks.
pub fn share(file: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    set(&file, &describe(libc::F_RDLCK, start, length)?)
}

/// Takes an exclusive lock of `length` bytes from `start`; does not wait. The file is open for
/// writing.
///
/// # Errors
/// `EAGAIN` when another description holds a lock, `EINVAL` if the kernel has no such locks.
pub fn exclude(file: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    set(&file, &describe(libc::F_WRLCK, start, length)?)
}

/// Unlocks a range.
///
/// # Errors
/// Those of `fcntl`.
pub fn release(file: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    set(&file, &describe(libc::F_UNLCK, start, length)?)
}

/// Whether another description holds a lock in the range, shared or exclusive.
///
/// # Errors
/// Those of `fcntl`.
pub fn is_held_elsewhere(file: impl AsFd, start: u64, length: u64) -> io::Result<bool> {
    let mut lock = describe(libc::F_WRLCK, start, length)?;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn describe(kind: libc::c_int, start: u64, length: u64) -> io::Result<libc::flock> {
    let offset = |bytes: u64| {
        libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
    };
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(start)?,
        l_len: offset(length)?,
        // Required by OFD locks.
        l_pid: 0,
    })
}

fn set(file: &impl AsFd, lock: &libc::flock) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(lock))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn shared_range_is_seen_by_other_descriptors_until_it_is_released() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let [one, other] = [(); 2].map(|()| File::open(&path).unwrap());
        share(&one, 100, 2).unwrap();
        share(&other, 101, 1).unwrap();
        assert!(is_held_elsewhere(&other, 100, 1).unwrap());
        assert!(is_held_elsewhere(&one, 101, 1).unwrap());
        assert!(!is_held_elsewhere(&one, 100, 1).unwrap());
        release(&one, 100, 2).unwrap();
        assert!(!is_held_elsewhere(&other, 100, 100).unwrap());
    }

    #[test]
    fn exclusive_range_has_one_holder() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (one, other) = (open(), open());
        exclude(&one, 5, 1).unwrap();
        for taken in [share(&other, 5, 1), exclude(&other, 0, 10)] {
            assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        }
        exclude(&other, 6, 1).unwrap();
        release(&one, 5, 1).unwrap();
        exclude(&other, 5, 1).unwrap();
    }

    #[test]
    fn range_past_the_largest_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(
            share(&file, u64::MAX, 1).unwrap_err().raw_os_error(),
            Some(libc::EOVERFLOW)
        );
    }
}
