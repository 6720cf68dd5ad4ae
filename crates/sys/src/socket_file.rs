//! Listening sockets in the file system: created with their mode, stale ones replaced, removed by
//! the server that created them.
//!
//! Servers that create or remove sockets in one directory are serialized by `flock` on it. That is
//! best effort: without the lock a server proceeds after a timeout.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_to, listen, socket_with,
};

use crate::process;

/// Longest wait for a killed server that still has its socket.
const OLD_SERVER_TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// As the standard library.
const BACKLOG: i32 = 128;

/// The path of a socket, and its inode.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            inode: (metadata.dev(), metadata.ino()),
        })
    }

    /// Removes the path, unless it is now the path of another socket.
    pub fn remove(self) {
        let _lock = DirectoryLock::acquire(&self.path);
        if Self::of(&self.path).is_ok_and(|now| now.inode == self.inode) {
            // It may be removed already.
            let _ = fs::remove_file(self.path);
        }
    }
}

/// Listens at `path`. The socket has the permissions of `mode` less the umask, from its first
/// moment.
///
/// Replaces a stale socket; waits for a server there that is terminating: one that accepts
/// connections, and for whose connection `is_serving` returns false before its second argument.
///
/// # Errors
/// `AddrInUse` with the process that listens there, or if the path is no socket; those of the
/// system.
pub fn bind(
    path: &Path,
    mode: u32,
    is_serving: impl Fn(&UnixStream, Duration) -> bool,
) -> io::Result<(UnixListener, SocketFile)> {
    let _lock = DirectoryLock::acquire(path);
    let deadline = Instant::now() + OLD_SERVER_TIMEOUT;
    loop {
        let in_use = match bind_new(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            result => return Ok((result?, SocketFile::of(path)?)),
        };
        let is_socket = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?.file_type().is_socket(),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        // Connecting to a file of another type is refused too.
        let connected = is_socket.then(|| UnixStream::connect(path));
        match connected {
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            Some(Ok(server))
                if !left.is_zero() && !is_serving(&server, left.max(POLL_INTERVAL)) =>
            {
                thread::sleep(POLL_INTERVAL);
            }
            Some(Ok(server)) => {
                let who = process::peer(&server).unwrap_or_else(|| "another process".to_owned());
                return Err(io::Error::new(
                    in_use.kind(),
                    format!("{who} listens there"),
                ));
            }
            Some(Err(_)) => return Err(in_use),
            None => {
                let what = "there is a file that is no socket";
                return Err(io::Error::new(in_use.kind(), what));
            }
        }
    }
}

/// The kernel creates the file with the permissions of the unbound socket.
fn bind_new(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind_to(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Serializes servers that create or remove sockets in a directory.
struct DirectoryLock {
    _directory: Option<File>,
}

impl DirectoryLock {
    fn acquire(path: &Path) -> Self {
        let directory = match path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        let directory = File::open(directory).ok();
        let deadline = Instant::now() + 2 * OLD_SERVER_TIMEOUT;
        let is_locked =
            |directory: &File| matches!(directory.try_lock(), Err(TryLockError::WouldBlock));
        while directory.as_ref().is_some_and(is_locked) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        Self {
            _directory: directory,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn socket_has_its_mode_replaces_a_stale_one_and_is_removed_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let bind = || bind(&path, 0o600, |_, _| true);
        let (socket, stale) = bind().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // The link keeps the number of the inode in use: the next socket gets another one.
        fs::hard_link(&path, directory.path().join("link")).unwrap();
        drop(socket);
        let (_socket, file) = bind().unwrap();
        stale.remove();
        assert!(path.exists());
        file.remove();
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
