//! The two file systems: the kernel's, mounted, and an image for the engine.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use extant_blockdev::{Device, HostDevice, HostOptions};
use extant_ext4::{Assign, Filesystem as Engine, NewKind, NewNode, Options};
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{Filesystem, Scratch};

/// Options of mke2fs for all: few inodes, as mke2fs writes the tables of all of them.
const MKFS: [&str; 2] = ["-T", "largefile4"];

/// The kernel's file system of `bytes`, on a loop device over memory that takes `memory` at most.
pub(super) fn kernel(bytes: u64, memory: u64, options: &[&str]) -> Scratch {
    let options = [&MKFS, options].concat();
    Scratch::builder(Filesystem::Ext4, bytes)
        .mkfs_options(&options)
        .memory(memory)
        .build()
}

/// An image of `bytes` in memory of its own.
pub(super) struct Image {
    pub(super) path: PathBuf,
    _store: Scratch,
}

impl Image {
    /// A new one, that takes `memory` at most.
    pub(super) fn new(bytes: u64, memory: u64, options: &[&str]) -> Result<Self> {
        let store = Scratch::new(Filesystem::Tmpfs, memory);
        let path = store.path().join("image");
        File::create_new(&path)?.set_len(bytes)?;
        run(tool("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096"])
            .args(MKFS)
            .args(options)
            .arg(&path))?;
        Ok(Self {
            path,
            _store: store,
        })
    }

    pub(super) fn device(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(HostDevice::open(
            &self.path,
            &HostOptions::default(),
        )?))
    }

    /// The engine on it. The kernel does not pass allocations down either.
    pub(super) fn open(&self) -> Result<Engine> {
        let options = Options {
            assign: Assign::Off,
            ..Options::default()
        };
        Ok(Engine::open(self.device()?, options)?)
    }
}

/// A regular file of root.
pub(super) const REGULAR: NewNode<'static> = NewNode {
    kind: NewKind::Regular,
    permissions: 0o644,
    uid: 0,
    gid: 0,
    umask: 0,
};
