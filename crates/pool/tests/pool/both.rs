//! A pool of either kind with a volume `a`, and how its volumes are seen past the pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::{HostDevice, HostOptions};
use extant_ext4::{Filesystem, FollowLast, NewKind, NewNode, Options, RenameMode};
use extant_pool::{CloneMethod, Definition, Operation, Pool, PoolKind};
use extant_space::{Preallocation, SpaceFile};
use extant_testkit::command;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{Filesystem as Below, Scratch};

use crate::stand::{
    MIB, assert_at_rest, clone, create, download, in_memory, name, names, resize, upload,
};

pub const KINDS: [PoolKind; 2] = [PoolKind::Dir, PoolKind::Ext4];

/// Size of volume `a`.
pub const SIZE: u64 = 8 * MIB;

/// An image of `bytes` at `path`.
pub fn make_image(path: &Path, bytes: u64) {
    make_image_with(path, bytes, &[]);
}

/// The same, with `more` options of mke2fs.
pub fn make_image_with(path: &Path, bytes: u64, more: &[&str]) {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
    let mut make = command::tool("mke2fs");
    make.args(["-q", "-F", "-t", "ext4"]).args(more);
    command::must(make.arg(path));
}

/// Changes the image at `path`.
pub fn in_image<T>(path: &Path, work: impl FnOnce(&Filesystem) -> T) -> T {
    let device = HostDevice::open(path, &HostOptions::default()).unwrap();
    let filesystem = Filesystem::open(Arc::new(device), Options::default()).unwrap();
    let done = work(&filesystem);
    filesystem.close().unwrap();
    done
}

/// A regular file inside an image, whose directory must exist.
pub fn write_inside(filesystem: &Filesystem, path: &str, bytes: &[u8]) {
    let (directory, name) = filesystem.resolve_parent(path.as_bytes()).unwrap();
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o600,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let node = directory.create(b".writing", &new).unwrap();
    node.file().unwrap().write_at(bytes, 0).unwrap();
    directory
        .rename(b".writing", &directory, name, RenameMode::Replace)
        .unwrap();
}

/// A pool with a volume `a` of [`SIZE`] bytes of data, and a file `source` like it outside.
pub struct Stand {
    // Dropped in this order: an open directory cannot be unmounted.
    pub pool: Pool,
    pub scratch: Scratch,
    pub outside: PathBuf,
    kind: PoolKind,
}

impl Stand {
    pub fn new(kind: PoolKind) -> Self {
        Self::with_room(kind, 128 * MIB, &[])
    }

    /// With an image of `bytes`, made with `more` options of mke2fs, or a directory with more space
    /// than that.
    pub fn with_room(kind: PoolKind, bytes: u64, more: &[&str]) -> Self {
        let scratch = in_memory(Below::Ext4, bytes + 128 * MIB);
        let outside = scratch.directory_beside("outside");
        let definition = match kind {
            PoolKind::Ext4 => {
                let image = scratch.path().join("disk.img");
                make_image_with(&image, bytes, more);
                Definition::of_image(&image)
            }
            _ => Definition::of_directory(scratch.path()),
        };
        let stand = Self {
            pool: Pool::open(definition).unwrap(),
            scratch,
            outside,
            kind,
        };
        let data: Vec<u8> = (0..=250).cycle().take(SIZE as usize).collect();
        fs::write(stand.outside.join("source"), &data).unwrap();
        stand.write("a", &data);
        stand
    }

    pub fn image(&self) -> PathBuf {
        self.scratch.path().join("disk.img")
    }

    /// The state directory on the host.
    pub fn own(&self) -> PathBuf {
        match self.kind {
            PoolKind::Ext4 => self.scratch.path().join("disk.img.extant"),
            _ => self.scratch.path().join(".extant"),
        }
    }

    /// `path` below the pool's directory.
    pub fn write(&self, path: &str, bytes: &[u8]) {
        match self.kind {
            PoolKind::Ext4 => in_image(&self.image(), |filesystem| {
                write_inside(filesystem, path, bytes);
            }),
            _ => fs::write(self.scratch.path().join(path), bytes).unwrap(),
        }
    }

    pub fn remove(&self, path: &str) {
        match self.kind {
            PoolKind::Ext4 => in_image(&self.image(), |filesystem| {
                let (directory, name) = filesystem.resolve_parent(path.as_bytes()).unwrap();
                directory.unlink(name).unwrap();
            }),
            _ => fs::remove_file(self.scratch.path().join(path)).unwrap(),
        }
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        self.with_file(path, |file| {
            let mut bytes = vec![0; file.size().unwrap() as usize];
            let read = file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(read, bytes.len());
            bytes
        })
    }

    pub fn with_file<T>(&self, path: &str, work: impl FnOnce(&dyn SpaceFile) -> T) -> T {
        match self.kind {
            PoolKind::Ext4 => in_image(&self.image(), |filesystem| {
                let node = filesystem.resolve(path.as_bytes(), FollowLast::No).unwrap();
                work(&node.file().unwrap())
            }),
            _ => {
                let path = self.scratch.path().join(path);
                let access = extant_hostfs::Access::ReadWrite;
                work(&extant_hostfs::HostFile::open(&path, access).unwrap())
            }
        }
    }

    /// The names that are left of jobs.
    pub fn work_names(&self) -> usize {
        match self.kind {
            PoolKind::Ext4 => in_image(&self.image(), |filesystem| {
                let work = filesystem
                    .resolve(b"/.extant/work", FollowLast::No)
                    .unwrap();
                let mut names = 0;
                work.list(0, &mut |listed| {
                    names += usize::from(!matches!(listed.name, b"." | b".."));
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
                names
            }),
            _ => fs::read_dir(self.own().join("work")).unwrap().count(),
        }
    }

    /// Operations that can be undone, each with the names that it leaves.
    pub fn operations(&self) -> Vec<(Operation, Vec<&'static str>)> {
        let upload = upload("b", &self.outside.join("source"));
        let download = download("a", &self.outside.join("target"));
        vec![
            (create("b", 8 * MIB, Preallocation::Full), vec!["a", "b"]),
            (clone("a", "b", CloneMethod::Copy), vec!["a", "b"]),
            (Operation::Upload(upload), vec!["a", "b"]),
            (resize("a", 16 * MIB, Preallocation::Full), vec!["a"]),
            (Operation::Download(download), vec!["a"]),
        ]
    }

    pub fn reset(&self) {
        if self.pool.volume(&name("b")).is_ok() {
            self.pool.delete(&name("b"), false).unwrap();
        }
        self.with_file("a", |file| file.resize(SIZE).unwrap());
        let _ = fs::remove_file(self.outside.join("target"));
    }

    #[track_caller]
    pub fn assert_as_before(&self) {
        assert_eq!(names(&self.pool), ["a"]);
        let source = fs::read(self.outside.join("source")).unwrap();
        assert!(self.read("a") == source);
        let left: Vec<_> = fs::read_dir(&self.outside).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        self.assert_at_rest();
    }

    /// As [`assert_at_rest`], and e2fsck finds no error in the image.
    #[track_caller]
    pub fn assert_at_rest(&self) {
        assert_at_rest(&self.pool);
        if self.kind == PoolKind::Ext4 {
            assert_e2fsck_clean(&self.image());
        }
    }
}
