//! A file inside an image as the file of a volume.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_ext4::{AttributeChange, File, Node, XattrMode};
use extant_hostfs::HostFile;
use extant_image::hold::is_export;
use extant_provision::{Pace, Provisioner, Shared};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, FallocateMode, LayerRange, LayerVisitor, Result,
    SpaceFile, SyncMode,
};

use super::engine::{Engine, FileKey};
use super::open_image::LockAccess;
use crate::fair_lock::LockMode;
use crate::permissions::Owner;
use crate::storage::{Done, FileStat, MakeWritten, VolumeFile, nanoseconds};

/// An open file of an image. It is closed while others have the image.
pub(super) struct Ext4File {
    hold: LockAccess,
    key: FileKey,
    path: PathBuf,
}

impl Ext4File {
    pub(super) fn open(
        hold: &LockAccess,
        inside: &Engine,
        node: &Node,
        path: PathBuf,
    ) -> Result<Self> {
        match inside.open_file(node) {
            Ok(key) => Ok(Self {
                hold: hold.clone(),
                key,
                path,
            }),
            Err(error) => Err(error.with_kind(ErrorKind::WrongType).at(path)),
        }
    }

    /// A call of the engine.
    fn call<T>(&self, work: impl FnOnce(&Engine, &File) -> Result<T>) -> Result<T> {
        let done = self.hold.enter().and_then(|inside| {
            let file = inside.file(self.key)?;
            work(&inside, &file)
        });
        done.map_err(|error| error.at(&self.path))
    }
}

impl Drop for Ext4File {
    fn drop(&mut self) {
        self.hold.forget(self.key);
    }
}

impl SpaceFile for Ext4File {
    fn size(&self) -> Result<u64> {
        self.call(|_, file| file.size())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.call(|_, file| file.read_at(buffer, offset))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.call(|_, file| file.write_at(buffer, offset))
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.call(|_, file| file.resize(size_bytes))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        self.call(|_, file| file.fallocate(mode, range))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.call(|_, file| file.for_each_extent(range, visit))
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.call(|_, file| file.visit_layers(at, visit))
    }

    fn open_store(&self) -> Result<Option<std::fs::File>> {
        let path = self.hold.image().path();
        match std::fs::File::open(path) {
            Ok(image) => Ok(Some(image)),
            Err(source) => Err(Error::from(source).during("open").at(path)),
        }
    }

    fn writes_through(&self) -> bool {
        self.call(|_, file| Ok(file.writes_through()))
            .unwrap_or(false)
    }

    fn write_through(&self, range: ByteRange) -> Result<u64> {
        self.call(|_, file| file.write_through(range))
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.call(|_, file| file.sync(mode))
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.call(|_, file| file.allocated_bytes())
    }

    fn available_bytes(&self) -> Result<Option<u64>> {
        self.call(|inside, _| Ok(Some(inside.free_bytes())))
    }
}

impl VolumeFile for Ext4File {
    fn path(&self) -> &Path {
        &self.path
    }

    fn stat(&self) -> Result<FileStat> {
        self.call(|inside, file| Ok(inside.stat(file.node())))
    }

    fn changed_ns(&self) -> Result<Option<u64>> {
        let found = self.call(|_, file| Ok(file.node().attributes()))?;
        let changed = found.changed;
        // An inode that has room for the time it was made has room for nanoseconds.
        let is_exact = found.created.is_some();
        let time = is_exact.then(|| nanoseconds(changed.seconds, changed.nanoseconds.into()));
        Ok(time.flatten())
    }

    fn last_writes(&self) -> Duration {
        // Uncommitted changes are lost with the process.
        Duration::ZERO
    }

    fn try_lock(&self, mode: LockMode) -> Result<bool> {
        self.hold.image().try_lock(self.key.inode(), mode)
    }

    fn unlock(&self) {
        self.hold.image().unlock(self.key.inode());
    }

    fn holders(&self) -> Option<String> {
        // A process that has the image open excludes all others, and one that has released it has
        // locked the volumes it uses.
        None
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        let change = AttributeChange {
            permissions: Some(mode as u16),
            ..AttributeChange::default()
        };
        self.call(|_, file| {
            file.node().set_attributes(&change)?;
            file.sync(SyncMode::All)
        })
    }

    fn set_owner(&self, owner: Owner) -> Result<()> {
        let change = AttributeChange {
            uid: owner.uid,
            gid: owner.gid,
            ..AttributeChange::default()
        };
        self.call(|_, file| {
            file.node().set_attributes(&change)?;
            file.sync(SyncMode::All)
        })
    }

    fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.call(|_, file| match file.node().xattr(name.as_bytes()) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        self.call(|_, file| {
            let node = file.node();
            node.set_xattr(name.as_bytes(), value, XattrMode::Set)
        })
    }

    fn share_space_of(&self, _: &dyn VolumeFile) -> Result<bool> {
        // ext4 has no shared extents.
        Ok(false)
    }

    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done> {
        let whole = ByteRange::new(0, u64::MAX);
        Provisioner::new(self, wanted.range.unwrap_or(whole), control)
            .at_pace(&wanted.pace)
            .materialize(Shared::Refuse)
            .map(|_| Done::default())
            .map_err(|error| error.at(&self.path))
    }

    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()> {
        let provisioner = Provisioner::new(self, range, control).at_pace(pace);
        provisioner
            .overwrite()
            .map_err(|error| error.at(&self.path))
    }

    fn overwrites_in_place(&self) -> Result<bool> {
        // The same as the file system below the image. That of an NBD server is not known.
        let path = self.hold.image().path();
        Ok(!is_export(path) && HostFile::open_read(path)?.overwrites_in_place()?)
    }

    fn as_host(&self) -> Option<&HostFile> {
        None
    }
}
