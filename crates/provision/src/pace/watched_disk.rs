//! The disk whose counters show what others do, and how requests reach it.
//!
//! - A file of the host: the block device of its file system. Requests reach it by themselves.
//!   Where there is none (NFS, FUSE), the latency of the requests is the signal.
//! - A file inside an image, and a file on a mount of Extant: the disk below the image, through
//!   further images and loop devices. Written data is in the page cache of the image first, so
//!   each request is written out before it counts as ended: its latency is that of the disk, and
//!   its bytes are in the counters. Without a disk the background pace is refused: the latency of
//!   a page cache shows nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile};
use extant_sys::disk_below::DiskBelow;
use extant_sys::extents::MapSource;

use super::contention::Counters;

/// The disk below a file.
pub(super) struct WatchedDisk<'f> {
    file: &'f dyn SpaceFile,
    disk: Arc<DiskBelow>,
}

impl Counters for DiskBelow {
    fn transferred_bytes(&self) -> Option<u64> {
        DiskBelow::transferred_bytes(self)
    }
}

impl<'f> WatchedDisk<'f> {
    /// The disk below `file`; `None` where the latency of its requests is the only signal.
    ///
    /// # Errors
    /// `Unsupported` with the reason for a file inside an image that has no disk below; those of
    /// opening the image.
    pub(super) fn of_file(file: &'f dyn SpaceFile) -> Result<Option<Self>> {
        let disk = match file.host_io() {
            Some(host)
                if MapSource::of(host.file).is_ok_and(|map| map == MapSource::ExtantMount) =>
            {
                let again = host.file.try_clone()?;
                DiskBelow::of_file(again).map_err(refused)?
            }
            Some(host) => match host.device.and_then(DiskBelow::of_device) {
                Some(disk) => disk,
                None => return Ok(None),
            },
            None => match file.open_store()? {
                Some(image) => DiskBelow::of_file(image).map_err(refused)?,
                None => return Err(refused("the image is stored in no file of the host")),
            },
        };
        Ok(Some(Self {
            file,
            disk: Arc::new(disk),
        }))
    }

    pub(super) fn counters(&self) -> Box<dyn Counters> {
        Box::new(Arc::clone(&self.disk))
    }

    pub(super) fn name(&self) -> String {
        self.disk.name()
    }

    /// Waits until `range` of the file is on the disk. It is not durable.
    pub(super) fn write_out(&self, range: ByteRange) -> Result<()> {
        let fail = |source| Error::from(source).during("write out").in_range(range);
        if self.file.host_io().is_some() {
            return self.disk.write_out(range).map_err(fail);
        }
        let mut places = Vec::new();
        self.file.for_each_extent(range, &mut |extent| {
            places.extend(extent.clip(range).and_then(|extent| {
                let length = extent.logical.len();
                ByteRange::at(extent.physical?, length)
            }));
            ControlFlow::Continue(())
        })?;
        places
            .into_iter()
            .try_for_each(|place| self.disk.write_out(place).map_err(fail))
    }
}

fn refused(reason: impl ToString) -> Error {
    Error::new(ErrorKind::Unsupported).detail(format!(
        "the background pace knows no disk whose counters show other users: {}",
        reason.to_string()
    ))
}
