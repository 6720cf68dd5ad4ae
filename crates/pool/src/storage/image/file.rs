//! A file inside an image as the file of a volume.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use extant_ext4::{AttributeChange, File, Node, XattrMode};
use extant_hostfs::{HostFile, Pace};
use extant_image::{Missing, Pieces};
use extant_space::{
    ByteRange, Control, ErrorKind, Extent, FallocateMode, Phase, Result, SpaceFile, SyncMode,
};

use super::engine::{Engine, FileKey};
use super::open::Hold;
use crate::job::Done;
use crate::storage::{FileStat, LockMode, MakeWritten, VolumeFile, nanoseconds};

/// Zeros written at once.
const ZEROS: u64 = 1 << 20;
/// Maximum interval between checks for a cancel.
const LOOK: Duration = Duration::from_millis(20);

/// An open file of an image. It is closed while others have the image.
pub(super) struct ImageFile {
    hold: Hold,
    key: FileKey,
    path: PathBuf,
}

impl ImageFile {
    pub(super) fn open(hold: &Hold, inside: &Engine, node: &Node, path: PathBuf) -> Result<Self> {
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

impl Drop for ImageFile {
    fn drop(&mut self) {
        self.hold.forget(self.key);
    }
}

impl SpaceFile for ImageFile {
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

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.call(|_, file| file.sync(mode))
    }
}

impl VolumeFile for ImageFile {
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
        let whole = ByteRange::new(0, self.size()?);
        let range = match wanted.range {
            None => whole,
            Some(range) => range.intersection(whole).unwrap_or_default(),
        };
        let missing = Missing::of(self, range)?.hole_bytes;
        self.hold.enter()?.check_room(missing)?;
        let rate = || rate_of(&wanted.pace);
        Pieces::new(self, &rate, control)
            .make_written(range)
            .map(|()| Done::default())
            .map_err(|error| error.at(&self.path))
    }

    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()> {
        // As data: what the device makes of a request for zeros may leave the old ones on the disk
        // below.
        let zeros = vec![0; range.len().min(ZEROS) as usize];
        let mut due = Instant::now();
        for piece in range.chunks(ZEROS) {
            control.cancel.check()?;
            self.write_at(&zeros[..piece.len() as usize], piece.start())?;
            control.report(Phase::Write, piece.end() - range.start(), range.len());
            let Some(rate) = rate_of(pace) else { continue };
            let took = Duration::from_secs_f64(piece.len() as f64 / rate.get() as f64);
            due = (due + took).max(Instant::now());
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                control.cancel.check()?;
                thread::sleep(left.min(LOOK));
            }
        }
        control.report(Phase::Sync, range.len(), range.len());
        // With the ctime, which others compare with the recorded one.
        self.sync(SyncMode::All)
    }

    fn overwrites_in_place(&self) -> Result<bool> {
        // The same as the file system below the image.
        HostFile::open_read(self.hold.image().path())?.overwrites_in_place()
    }

    fn as_host(&self) -> Option<&HostFile> {
        None
    }
}

/// The current rate of a pace. Other users of the disk below are not seen here.
pub(super) fn rate_of(pace: &Pace) -> Option<NonZeroU64> {
    match pace {
        Pace::Full | Pace::Background(None) => None,
        Pace::Limit(rate) | Pace::Background(Some(rate)) => Some(*rate),
        Pace::BackgroundShared(shared) => Some(shared.get()),
    }
}
