//! An image as the file of a volume.
//!
//! An image is opened read-only at the first use, and again when it is locked; then the watch and
//! the lock of the cluster are held. Writes are started and awaited by the next other call; reads
//! in order are done ahead.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_hostfs::{Access, HostFile};
use extant_provision::{Pace, Verified};
use extant_rbd::{
    Image, ImageWriter, MaterializeOptions, MaterializeReport, ObjectDetail, materialize, overwrite,
};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, ExtentState, FallocateMode, MappedProgress,
    Progress, Remedy, Result, SpaceFile, SyncMode,
};
use parking_lot::{Mutex, MutexGuard};

use super::clones;
use super::image_pool::ImagePool;
use super::patience::Patience;
use crate::fair_lock::LockMode;
use crate::storage::{CopyUnits, Done, FileStat, MakeWritten, VolumeFile};

/// Bytes that are read ahead: several objects, which are on several disks.
const AHEAD_BYTES: usize = 16 << 20;
/// Limits of the pieces of a copy, whose memory they take.
const PIECE_BYTES_MIN: u64 = 1 << 20;
const PIECE_BYTES_MAX: u64 = 8 << 20;
/// Bytes whose objects are asked for at once.
const STATUS_BYTES: u64 = 64 << 30;
/// Written at the rate of one moment, when that changes.
const PACED_BYTES: u64 = 256 << 20;
/// How long an unfinished image may be in use: by the requests of an earlier job, or by a killed
/// client that cannot be cut off, whose watch ends after 30 s.
const LOCK_TIMEOUT: Duration = Duration::from_secs(40);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An image that may be open.
#[derive(Default)]
pub(super) struct Slot(Mutex<Opened>);

#[derive(Default)]
struct Opened {
    image: Option<Arc<Image>>,
    /// `None`: opened for a look.
    mode: Option<LockMode>,
    writer: Option<ImageWriter>,
    /// Read ahead: the bytes from `ahead_start` on.
    ahead: Vec<u8>,
    ahead_start: u64,
    /// End of the last read.
    read_end: u64,
    /// End of the last write that is in flight.
    write_end: u64,
}

impl Slot {
    /// The image, if it is locked.
    pub(super) fn locked(&self) -> Option<Arc<Image>> {
        let opened = self.0.lock();
        opened.mode.and(opened.image.clone())
    }

    /// Whether it was locked.
    pub(super) fn close(&self, patience: &Patience) -> bool {
        let opened = std::mem::take(&mut *self.0.lock());
        if opened.image.is_some() {
            patience.close((opened.writer, opened.image));
        }
        opened.mode.is_some()
    }
}

/// The file of a volume, or one that is to become some.
pub(super) struct RbdFile {
    pool: Arc<ImagePool>,
    image: String,
    path: PathBuf,
    access: Access,
    slot: Arc<Slot>,
}

impl RbdFile {
    /// # Errors
    /// `NotFound`.
    pub(super) fn open(pool: &Arc<ImagePool>, image: &str, access: Access) -> Result<Self> {
        let file = Self::at(pool, image, access);
        drop(file.opened()?);
        Ok(file)
    }

    /// An unfinished file, locked.
    pub(super) fn open_hidden(pool: &Arc<ImagePool>, image: &str) -> Result<Self> {
        let file = Self::at(pool, image, Access::ReadWrite);
        let until = Instant::now() + LOCK_TIMEOUT;
        while !file.try_lock(LockMode::Exclusive)? {
            if Instant::now() > until {
                return Err(file.in_use());
            }
            pool.patience.cancel().sleep(LOCK_POLL_INTERVAL)?;
        }
        Ok(file)
    }

    fn at(pool: &Arc<ImagePool>, image: &str, access: Access) -> Self {
        Self {
            pool: Arc::clone(pool),
            image: image.to_owned(),
            path: pool.path(image),
            access,
            slot: Arc::default(),
        }
    }

    fn in_use(&self) -> Error {
        let error = Error::new(ErrorKind::InUse).at(&self.path);
        match self.holders() {
            Some(who) => error
                .detail(format!("the image is open in {who}"))
                .advice("a client that was killed counts for 30 s"),
            None => error.detail("another process works on the volume"),
        }
    }

    /// The image, opened for a look unless it is locked.
    fn opened(&self) -> Result<MutexGuard<'_, Opened>> {
        let mut opened = self.slot.0.lock();
        if opened.image.is_none() {
            opened.image = Some(self.pool.look_at(&self.image)?);
        }
        Ok(opened)
    }

    /// The same without writes in flight.
    fn at_rest(&self) -> Result<MutexGuard<'_, Opened>> {
        let mut opened = self.opened()?;
        opened.finish(&self.pool.patience)?;
        Ok(opened)
    }

    pub(super) fn handle(&self) -> Result<Arc<Image>> {
        let opened = self.at_rest()?;
        Ok(Arc::clone(opened.image.as_ref().expect("opened above")))
    }

    /// The image, locked for changes.
    fn for_change(&self) -> Result<MutexGuard<'_, Opened>> {
        if self.access == Access::Read {
            return Err(Error::new(ErrorKind::ReadOnly).at(&self.path));
        }
        let is_locked = self.slot.0.lock().mode == Some(LockMode::Exclusive);
        if !is_locked && !self.try_lock(LockMode::Exclusive)? {
            return Err(self.in_use());
        }
        let mut opened = self.slot.0.lock();
        opened.ahead.clear();
        Ok(opened)
    }

    fn changed_image(&self) -> Result<Arc<Image>> {
        let mut opened = self.for_change()?;
        opened.finish(&self.pool.patience)?;
        Ok(Arc::clone(opened.image.as_ref().expect("locked above")))
    }

    /// The part of a range that is inside.
    fn clip(&self, range: ByteRange) -> Result<ByteRange> {
        let end = range.end().min(self.size()?);
        Ok(ByteRange::new(range.start().min(end), end))
    }

    pub(super) fn name(&self) -> &str {
        &self.image
    }

    pub(super) fn set_metadata(&self, key: &'static str, value: &str) -> Result<()> {
        let (image, value) = (self.changed_image()?, value.to_owned());
        self.pool.call(move |_| image.set_metadata(key, &value))
    }

    /// Closes the image, and lets others have it.
    fn close(&self) {
        if self.slot.close(&self.pool.patience) {
            self.pool.unlock(&self.image);
        }
    }

    /// Writes zeros to what is in no object.
    pub(super) fn make_thick(
        &self,
        range: Option<ByteRange>,
        pace: &Pace,
        control: Control<'_>,
    ) -> Result<Done> {
        let image = self.changed_image()?;
        let range = self.clip(range.unwrap_or(ByteRange::new(0, u64::MAX)))?;
        let mut done = Done {
            zeroed_bytes: Some(0),
            verified: Some(Verified::ExtentMap),
            notes: vec![
                "each object has its full length; what a daemon stores for it, no interface shows"
                    .to_owned(),
            ],
            ..Done::default()
        };
        self.in_paced_parts(range, pace, control, &mut |options, control| {
            let report: MaterializeReport = materialize(&image, options, control)?;
            done.zeroed_bytes = done.zeroed_bytes.map(|bytes| bytes + report.zeroed_bytes);
            Ok(())
        })?;
        Ok(done)
    }

    /// A rate that is shared changes; each part has that of its start.
    fn in_paced_parts(
        &self,
        range: ByteRange,
        pace: &Pace,
        control: Control<'_>,
        work: &mut dyn FnMut(MaterializeOptions, Control<'_>) -> Result<()>,
    ) -> Result<()> {
        let part_bytes = match pace {
            Pace::BackgroundShared { .. } => PACED_BYTES,
            _ => range.len().max(1),
        };
        for part in range.chunks(part_bytes) {
            let update = |inner: Progress| {
                let done = part.start() - range.start() + inner.done_bytes;
                control.report(inner.phase, done, range.len());
            };
            let progress = MappedProgress {
                update,
                caller: control.progress,
            };
            let options = MaterializeOptions {
                rate: pace.rate(),
                range: Some(part),
                ..MaterializeOptions::default()
            };
            work(options, Control::new(control.cancel, &progress))
                .map_err(|error| error.about(&self.path))?;
        }
        Ok(())
    }
}

impl Opened {
    fn finish(&mut self, patience: &Patience) -> Result<()> {
        self.write_end = 0;
        match &mut self.writer {
            Some(writer) => writer.finish(patience.cancel()),
            None => Ok(()),
        }
    }

    fn image(&self) -> &Arc<Image> {
        self.image.as_ref().expect("an open image")
    }

    /// Copies from what was read ahead; `None` if that is another part.
    fn read_ahead(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let start = offset.checked_sub(self.ahead_start)?;
        let rest = self.ahead.get(usize::try_from(start).ok()?..)?;
        let bytes = rest.get(..buffer.len())?;
        buffer.copy_from_slice(bytes);
        Some(bytes.len())
    }
}

impl Drop for RbdFile {
    fn drop(&mut self) {
        self.close();
    }
}

impl SpaceFile for RbdFile {
    fn size(&self) -> Result<u64> {
        self.opened()?.image().size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut opened = self.at_rest()?;
        let is_next = opened.read_end == offset && offset > 0;
        opened.read_end = offset + buffer.len() as u64;
        if let Some(read) = opened.read_ahead(buffer, offset) {
            return Ok(read);
        }
        // Content that others may change is not read ahead.
        let length = if is_next && opened.mode.is_some() {
            AHEAD_BYTES.max(buffer.len())
        } else {
            buffer.len()
        };
        let (image, cancel) = (Arc::clone(opened.image()), self.pool.patience.cancel());
        let (inner, token) = (Arc::clone(&image), cancel.clone());
        let read = self
            .pool
            .patience
            .call(move |_| inner.read(offset, length, &token))?;
        let count = read.len().min(buffer.len());
        buffer[..count].copy_from_slice(&read[..count]);
        if length > buffer.len() {
            (opened.ahead, opened.ahead_start) = (read, offset);
        }
        Ok(count)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let mut opened = self.for_change()?;
        let image = Arc::clone(opened.image());
        let end = offset.checked_add(buffer.len() as u64);
        let end = end.filter(|&end| image.size().is_ok_and(|size| end <= size));
        let end = end.ok_or_else(|| {
            Error::new(ErrorKind::NoSpace)
                .at(&self.path)
                .detail("past the end of the image")
        })?;
        if offset < opened.write_end {
            // Writes that are in flight together must not overlap.
            opened.finish(&self.pool.patience)?;
        }
        opened.write_end = end;
        let writer = opened
            .writer
            .get_or_insert_with(|| ImageWriter::new(&image));
        let written = writer.write(buffer, offset, self.pool.patience.cancel());
        written.map_err(|error| error.at(&self.path))
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        let image = self.changed_image()?;
        if image.size()? == size_bytes {
            return Ok(());
        }
        self.pool.figures.forget();
        self.pool.patience.call({
            let image = Arc::clone(&image);
            move |steps| image.resize(size_bytes, true, &|_, _| steps.tick())
        })
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        if mode != FallocateMode::PunchHole {
            return Err(Error::new(ErrorKind::Unsupported)
                .at(&self.path)
                .detail("RBD reserves no space without writing it"));
        }
        let (image, range) = (self.changed_image()?, self.clip(range)?);
        image.punch_hole(range, self.pool.patience.cancel())
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let range = self.clip(range)?;
        let image = self.handle()?;
        for window in range.chunks(STATUS_BYTES) {
            let asked = Arc::clone(&image);
            let found = self
                .pool
                .call(move |_| asked.data_in(window, ObjectDetail::Objects))?;
            let mut at = window.start();
            for data in found {
                let hole = ByteRange::new(at, data.start().max(at));
                at = data.end();
                let written = Extent {
                    state: ExtentState::Written,
                    ..Extent::hole(data)
                };
                if (!hole.is_empty() && visit(Extent::hole(hole)).is_break())
                    || visit(written).is_break()
                {
                    return Ok(());
                }
            }
            let rest = ByteRange::new(at.min(window.end()), window.end());
            if !rest.is_empty() && visit(Extent::hole(rest)).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        let opened = self.at_rest()?;
        if opened.mode != Some(LockMode::Exclusive) {
            return Ok(());
        }
        let image = Arc::clone(opened.image());
        image.flush(self.pool.patience.cancel())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let image = self.handle()?;
        self.pool.call(move |_| image.allocated_bytes())
    }
}

impl VolumeFile for RbdFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn stat(&self) -> Result<FileStat> {
        Ok(file_stat(self.size()?, self.allocated_bytes()?))
    }

    fn changed_ns(&self) -> Result<Option<u64>> {
        // The time of an image is not that of its last write.
        Ok(None)
    }

    fn last_writes(&self) -> Duration {
        Duration::ZERO
    }

    fn try_lock(&self, mode: LockMode) -> Result<bool> {
        let mut opened = self.slot.0.lock();
        if opened.mode.is_some() {
            return Ok(opened.mode == Some(mode));
        }
        let Some(image) = self.pool.lock(&self.image, mode)? else {
            return Ok(false);
        };
        let before = std::mem::take(&mut *opened);
        (opened.image, opened.mode) = (Some(image), Some(mode));
        drop(opened);
        self.pool.enter(&self.image, &self.slot);
        if before.image.is_some() {
            self.pool.patience.close(before.image);
        }
        Ok(true)
    }

    fn unlock(&self) {
        self.close();
    }

    fn holders(&self) -> Option<String> {
        let image = self.handle().ok()?;
        self.pool.holders(&image)
    }

    fn share_space_of(&self, source: &dyn VolumeFile) -> Result<bool> {
        self.close();
        clones::share_space(&self.pool, source.path(), &self.image)?;
        Ok(true)
    }

    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done> {
        let image = self.changed_image()?;
        if image.overlap()? > 0 {
            if !wanted.unshare {
                return Err(Error::new(ErrorKind::Unsupported)
                    .at(&self.path)
                    .detail("the volume shares space with the one that it is a clone of")
                    .remedy(Remedy::Unshare));
            }
            clones::flatten(&self.pool, &image, control)?;
        }
        self.make_thick(wanted.range, &wanted.pace, control)
    }

    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()> {
        let (image, range) = (self.changed_image()?, self.clip(range)?);
        self.in_paced_parts(range, pace, control, &mut |options, control| {
            overwrite(&image, options, control)
        })
    }

    fn overwrites_in_place(&self) -> Result<bool> {
        // A full cluster refuses every write, also to an object that it has.
        Ok(false)
    }

    /// Whole objects, whose writes cost the cluster least. They are durable when they are complete,
    /// and the writer limits those in flight.
    fn copy_units(&self) -> CopyUnits {
        let stripe = self.handle().map(|image| image.stripe_bytes());
        CopyUnits {
            piece_bytes: stripe
                .unwrap_or(PIECE_BYTES_MIN)
                .clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX),
            sync_bytes: u64::MAX,
        }
    }

    fn as_host(&self) -> Option<&HostFile> {
        None
    }
}

/// Images have no permissions; these are the user's own.
pub(super) fn file_stat(size_bytes: u64, allocated_bytes: u64) -> FileStat {
    FileStat {
        size_bytes,
        allocated_bytes,
        block_bytes: 4096,
        mode: 0o600,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}
