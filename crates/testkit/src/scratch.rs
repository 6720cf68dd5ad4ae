//! Mounted file systems for tests, on loop devices of their own.
//!
//! A [`Scratch`] is a stack, made from below and taken down from above: a directory, perhaps
//! a small tmpfs in it, a sparse backing file, a loop device, a file system, perhaps an
//! overlay on top. Each layer is a guard, so a test that panics leaves nothing either.
//!
//! Tests run in parallel and in several processes; no name or device number is shared.
//!
//! Root passes many a limit: for permissions, and for the blocks that ext4 keeps back, run
//! a program as another user in [`Scratch::user_directory`].

mod filesystem;
mod loop_device;
mod mount;

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

pub use filesystem::Filesystem;
pub use loop_device::{DirectIo, LoopDevice};
pub use mount::Mount;

use crate::command::{must, tool};
use crate::workdir::Workdir;

/// Builder of a [`Scratch`].
#[derive(Clone, Debug)]
pub struct Builder {
    filesystem: Filesystem,
    size_bytes: u64,
    mkfs_options: Vec<String>,
    mount_options: Vec<String>,
    memory_bytes: Option<u64>,
    directory: Option<PathBuf>,
    direct_io: DirectIo,
    sector_bytes: u32,
}

impl Builder {
    /// Further arguments of mkfs.
    pub fn mkfs_options(mut self, options: &[&str]) -> Self {
        self.mkfs_options
            .extend(options.iter().map(ToString::to_string));
        self
    }

    /// Further options of the mount, as after `mount -o`. For an overlay they are those of
    /// the file system under it.
    pub fn mount_options(mut self, options: &str) -> Self {
        self.mount_options.push(options.to_owned());
        self
    }

    /// Keeps the backing file in memory, in a tmpfs of `bytes`.
    ///
    /// With fewer bytes than the device has, the device is *thin*: it promises more than
    /// there is, and writes past that fail in the middle.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Keeps the backing file in `directory`, which may be in another scratch file system that
    /// outlives this one.
    pub fn backed_in(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// The loop device reads and writes its backing file past the page cache.
    pub fn direct_io(mut self) -> Self {
        self.direct_io = DirectIo::On;
        self
    }

    /// Logical sector size of the loop device: 512 (the default) to 4096.
    pub fn sector_bytes(mut self, bytes: u32) -> Self {
        self.sector_bytes = bytes;
        self
    }

    /// Makes and mounts it.
    ///
    /// # Panics
    /// When any step fails, and when the file system cannot be that small
    /// ([`Filesystem::size_bytes_min`]).
    #[track_caller]
    pub fn build(self) -> Scratch {
        let least = self.filesystem.size_bytes_min();
        assert!(
            self.size_bytes >= least,
            "{} needs {least} bytes at least, not {}",
            self.filesystem,
            self.size_bytes
        );
        let work = Workdir::new();
        let place = work.directory("fs");
        if self.filesystem == Filesystem::Tmpfs {
            return self.tmpfs(work, &place);
        }

        let store = self.memory_bytes.map(|bytes| {
            let directory = work.directory("store");
            Mount::new(
                "tmpfs",
                Path::new("tmpfs"),
                &directory,
                &format!("size={bytes}"),
            )
        });
        let backing = match (&store, &self.directory) {
            (Some(store), _) => store.path().join("backing"),
            (None, Some(directory)) => directory.join("backing"),
            (None, None) => work.path().join("backing"),
        };
        make_sparse(&backing, self.size_bytes);
        let device = LoopDevice::attach_with(&backing, self.direct_io, self.sector_bytes);
        must(
            tool(self.filesystem.mkfs())
                .args(self.filesystem.mkfs_arguments())
                .args(&self.mkfs_options)
                .arg(device.path()),
        );
        let mount = Mount::new(
            self.filesystem.lower_type(),
            device.path(),
            &place,
            &self.mount_options.join(","),
        );
        let overlay = (self.filesystem == Filesystem::Overlay)
            .then(|| Mount::overlay(&place, &work.directory("overlay")));
        Scratch {
            filesystem: self.filesystem,
            overlay,
            mount: Some(mount),
            device: Some(device),
            backing: Some(backing),
            _store: store,
            work,
        }
    }

    fn tmpfs(mut self, work: Workdir, place: &Path) -> Scratch {
        self.mount_options
            .push(format!("size={},mode=755", self.size_bytes));
        let options = self.mount_options.join(",");
        let mount = Mount::new("tmpfs", Path::new("tmpfs"), place, &options);
        Scratch {
            filesystem: Filesystem::Tmpfs,
            overlay: None,
            mount: Some(mount),
            device: None,
            backing: None,
            _store: None,
            work,
        }
    }
}

/// A mounted file system that is the test's own. Undone when dropped.
#[derive(Debug)]
pub struct Scratch {
    filesystem: Filesystem,
    // Dropped in this order: from the top of the stack to its ground.
    overlay: Option<Mount>,
    mount: Option<Mount>,
    device: Option<LoopDevice>,
    backing: Option<PathBuf>,
    _store: Option<Mount>,
    work: Workdir,
}

impl Scratch {
    /// A fresh file system of about `size_bytes`, on a sparse file on the disk.
    ///
    /// # Panics
    /// As [`Builder::build`].
    #[track_caller]
    pub fn new(filesystem: Filesystem, size_bytes: u64) -> Self {
        Self::builder(filesystem, size_bytes).build()
    }

    /// The same with options.
    pub fn builder(filesystem: Filesystem, size_bytes: u64) -> Builder {
        Builder {
            filesystem,
            size_bytes,
            mkfs_options: Vec::new(),
            mount_options: Vec::new(),
            memory_bytes: None,
            directory: None,
            direct_io: DirectIo::Off,
            sector_bytes: 512,
        }
    }

    /// Its kind.
    pub fn filesystem(&self) -> Filesystem {
        self.filesystem
    }

    /// Its mount point.
    ///
    /// # Panics
    /// After [`unmount`](Self::unmount).
    #[track_caller]
    pub fn path(&self) -> &Path {
        let top = self.overlay.as_ref().or(self.mount.as_ref());
        top.expect("the scratch file system was unmounted").path()
    }

    /// The loop device; none for tmpfs.
    pub fn device(&self) -> Option<&Path> {
        self.device.as_ref().map(LoopDevice::path)
    }

    /// The file behind the loop device, to be read, or cut short under the file system's
    /// feet; none for tmpfs.
    pub fn backing_file(&self) -> Option<&Path> {
        self.backing.as_deref()
    }

    /// `mount -o remount,OPTIONS`, for example with `ro`.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn remount(&self, options: &str) {
        must(
            tool("mount")
                .args(["-o", &format!("remount,{options}")])
                .arg(self.path()),
        );
    }

    /// Unmounts and keeps the device, for e2fsck and the like.
    ///
    /// # Panics
    /// If it is still in use.
    #[track_caller]
    pub fn unmount(&mut self) {
        for mount in [self.overlay.take(), self.mount.take()]
            .into_iter()
            .flatten()
        {
            mount.unmount();
        }
    }

    /// A directory in the file system that belongs to the user `uid`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn user_directory(&self, uid: u32) -> PathBuf {
        let directory = self.path().join(format!("user-{uid}"));
        fs::create_dir_all(&directory)
            .and_then(|()| chown(&directory, Some(uid), Some(uid)))
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        directory
    }

    /// A directory in a btrfs that holds at most `bytes`, of root too: writes past that fail
    /// with `EDQUOT`. It is a subvolume with a limit of its group.
    ///
    /// User quota would not stop root, and needs a kernel option that small kernels lack.
    ///
    /// # Panics
    /// When it cannot be made, and on other file systems.
    #[track_caller]
    pub fn limited_directory(&self, name: &str, bytes: u64) -> PathBuf {
        let directory = self.path().join(name);
        let btrfs = |words: &[&str]| {
            let mut command = tool("btrfs");
            command.args(words);
            command
        };
        must(btrfs(&["quota", "enable"]).arg(self.path()));
        must(btrfs(&["subvolume", "create"]).arg(&directory));
        must(btrfs(&["qgroup", "limit", &bytes.to_string()]).arg(&directory));
        directory
    }

    /// A directory outside of the file system, on the host's.
    ///
    /// # Panics
    /// When the name is taken.
    #[track_caller]
    pub fn directory_beside(&self, name: &str) -> PathBuf {
        self.work.directory(name)
    }
}

#[track_caller]
fn make_sparse(path: &Path, size_bytes: u64) {
    File::create_new(path)
        .and_then(|file| file.set_len(size_bytes))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
