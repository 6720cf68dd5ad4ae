//! qcow2 volumes: the operations of `extant-image` on files of a pool.
//!
//! An image is changed in place in steps that each leave it valid. A process that dies between two
//! steps leaks clusters; resuming or cancelling its job frees them first. QEMU's own locks exclude
//! QEMU. Files that an image names (backing file, data file) are never opened here.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_image::format::Header;
use extant_image::{
    Format, ImageFile, ImageOptions, Layer, LockAccess, NewImage, Preallocation, Qcow2Info,
    Qcow2Options, ResizeOptions, full_file_bytes, reclaim, resize_bytes_max,
};
use extant_provision::{Pace, Shared};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, ExtentFlags, ExtentState, Remedy, Result,
    Silent, SpaceFile, SyncMode,
};

use super::Trust;
use crate::storage::VolumeFile;

/// Bytes of the header, which a wipe destroys before any other part of an image.
const HEADER_BYTES: usize = 512;
/// Size of a disk: whole sectors.
const SECTOR_BYTES: u64 = 512;

/// Refuses an image that names files of the host: a user of the disk would read them.
pub(super) fn check_content(file: &dyn SpaceFile, trust: Trust) -> Result<()> {
    let header = Header::read(file)?;
    let refuse = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
    if header.has_data_file() {
        let name = header.data_file().map(|name| name.display().to_string());
        return refuse(format!(
            "the image has its data in another file ({}); a volume is one file",
            name.unwrap_or_else(|| "without a name".to_owned())
        ));
    }
    match &header.backing_file {
        Some(name) if !trust.backing => refuse(format!(
            "the image has a backing file ({}), which every user of the volume would read",
            name.display()
        ))
        .map_err(|error| error.remedy(Remedy::AllowBacking)),
        _ => Ok(()),
    }
}

/// The image names a backing file.
pub(crate) fn has_backing(file: &dyn SpaceFile) -> Result<bool> {
    Ok(Header::read(file)?.backing_file.is_some())
}

/// Excludes QEMU. Inside a locked file-system image no other process can use the file.
#[must_use]
pub(crate) struct Held<'a> {
    file: &'a dyn VolumeFile,
}

pub(crate) fn hold(file: &dyn VolumeFile, wanted: LockAccess) -> Result<Held<'_>> {
    if let Some(host) = file.as_host() {
        extant_image::lock(host, wanted).map_err(|error| error.at(file.path()))?;
    }
    Ok(Held { file })
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.file.as_host() {
            extant_image::unlock(host);
        }
    }
}

/// An image that is changed in place.
pub(crate) struct Change<'a> {
    target: ImageFile,
    _held: Held<'a>,
}

impl<'a> Change<'a> {
    /// Takes the image from QEMU; with `unshare`, extents shared with other files are copied to new
    /// space where they are made written.
    pub(crate) fn new(file: &'a Arc<dyn VolumeFile>, pace: Pace, unshare: bool) -> Result<Self> {
        let held = hold(&**file, LockAccess::Write)?;
        let shared = if unshare {
            Shared::Unshare
        } else {
            Shared::Refuse
        };
        let file: Arc<dyn SpaceFile> = Arc::<dyn VolumeFile>::clone(file);
        let target = ImageFile::held(file).with_pace(pace, shared);
        Ok(Self {
            target,
            _held: held,
        })
    }

    /// Gives the disk another size.
    pub(crate) fn resize(
        &self,
        virtual_bytes: u64,
        options: &ResizeOptions,
        control: Control<'_>,
    ) -> Result<()> {
        extant_image::resize(&self.target, Format::Qcow2, virtual_bytes, options, control).map(drop)
    }

    /// Maps every cluster and makes all of the file written.
    pub(crate) fn materialize(&self, control: Control<'_>) -> Result<()> {
        extant_image::materialize(&self.target, Format::Qcow2, control).map(drop)
    }

    /// Frees the clusters that a dead process has leaked.
    pub(crate) fn reclaim(&self, control: Control<'_>) -> Result<()> {
        reclaim(&self.target, control)
    }

    /// Restores the size of a disk after an interrupted growth, and frees the clusters that it has
    /// leaked.
    pub(crate) fn undo_growth(&self, sizes: Growth, control: Control<'_>) -> Result<()> {
        if sizes.is_done_in(&**self.target.file())? {
            let options = ResizeOptions {
                preallocation: Some(Preallocation::Off),
                may_shrink: true,
            };
            self.resize(sizes.before_bytes, &options, control)?;
        }
        self.reclaim(control)
    }
}

/// The size of a disk that was asked to have `bytes`.
fn disk_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES)
}

/// Space needed by a resize.
pub(crate) struct ResizeNeed {
    /// On the host, at most.
    pub(crate) space_bytes: u64,
    /// Size of the file when all of the new disk is written.
    pub(crate) promised_bytes: u64,
}

impl ResizeNeed {
    pub(crate) fn of(
        file: &dyn SpaceFile,
        virtual_bytes: u64,
        preallocation: Preallocation,
    ) -> Result<Self> {
        let header = Header::read(file)?;
        let mut after = ImageOptions::new(Format::Qcow2, disk_bytes(virtual_bytes));
        after.qcow2 = Qcow2Options::of(&header);
        let measured = extant_image::measure(&after, 0)?;
        Ok(Self {
            space_bytes: resize_bytes_max(
                &header,
                file.size()?,
                after.virtual_bytes,
                preallocation,
            ),
            promised_bytes: measured.fully_allocated_bytes,
        })
    }
}

/// Size of the file once the image is fully allocated.
///
/// # Errors
/// `InUse` while QEMU writes to the image, as its tables are incomplete then.
pub(crate) fn full_bytes(file: &Arc<dyn VolumeFile>) -> Result<u64> {
    let _held = hold(&**file, LockAccess::Read)?;
    full_file_bytes(Arc::<dyn VolumeFile>::clone(file))
}

/// A disk that becomes larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) before_bytes: u64,
    pub(crate) after_bytes: u64,
}

impl Growth {
    /// The image shows the new size already.
    fn is_done_in(self, file: &dyn SpaceFile) -> Result<bool> {
        let after = disk_bytes(self.after_bytes);
        match Header::read(file) {
            Ok(header) => Ok(self.before_bytes < after && header.virtual_bytes == after),
            // A file that is not an image has no properties of one.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Undoes an interrupted change. An error counts only if the image shows data that it must not:
/// otherwise it leaks clusters.
pub(crate) fn undo(file: &Arc<dyn VolumeFile>, growth: Option<Growth>) -> Result<()> {
    let shows_new_size = match growth {
        Some(growth) => growth.is_done_in(&**file)?,
        None => false,
    };
    let (cancel, silent) = (CancelToken::new(), Silent);
    let control = Control::new(&cancel, &silent);
    let undone = Change::new(file, Pace::Full, false).and_then(|change| match growth {
        Some(growth) => change.undo_growth(growth, control),
        None => change.reclaim(control),
    });
    if shows_new_size { undone } else { Ok(()) }
}

/// The empty image that is left of one that is wiped: of its shape, and standing alone.
pub(crate) fn shape_of(file: &Arc<dyn VolumeFile>, keeps_space: bool) -> Result<ImageOptions> {
    let header = Header::read(&**file)?;
    let mut shape = ImageOptions::new(Format::Qcow2, header.virtual_bytes);
    shape.qcow2 = Qcow2Options::of(&header);
    if keeps_space {
        let file: Arc<dyn SpaceFile> = Arc::clone(file) as Arc<dyn SpaceFile>;
        let found = Layer::open(file, Format::Qcow2).and_then(|layer| layer.info());
        // Damaged tables have no information about space; the volume is wiped nevertheless.
        shape.preallocation = found.map_or(Preallocation::Off, |info| info.preallocation);
    }
    Ok(shape)
}

/// From here on the file is durably no image: a process that opens it knows that any part of the
/// rest may be wiped.
pub(crate) fn take_header_away(file: &dyn VolumeFile) -> Result<()> {
    file.write_at(&[0; HEADER_BYTES], 0)?;
    file.sync(SyncMode::Data)
}

/// Gives up a wipe: a volume without a header becomes an empty image, without space.
pub(crate) fn end_wipe(file: &dyn VolumeFile, shape: &ImageOptions) -> Result<()> {
    let mut first = [0; HEADER_BYTES];
    let got = file.read_at(&mut first, 0)?;
    if Header::is_qcow2(&first[..got]) {
        return Ok(());
    }
    let mut thin = shape.clone();
    thin.preallocation = Preallocation::Off;
    let new = NewImage::new(&thin)?;
    let (cancel, silent) = (CancelToken::new(), Silent);
    file.resize(0)?;
    file.resize(new.file_bytes())?;
    new.write_metadata(file, Control::new(&cancel, &silent))?;
    file.sync(SyncMode::All)
}

/// Properties of an image, and how much of its disk is allocated.
pub(crate) struct Look {
    pub(crate) facts: Qcow2Info,
    pub(crate) preallocation: Preallocation,
    /// Bytes of the disk that are overwritten where they are.
    pub(crate) written_bytes: u64,
    /// Bytes of the disk that have space of their own.
    pub(crate) safe_bytes: u64,
}

impl Look {
    /// Reads the tables of the image.
    pub(crate) fn at(file: Arc<dyn VolumeFile>) -> Result<Self> {
        let layer = Layer::open(file, Format::Qcow2)?;
        let info = layer.info()?;
        let (mut written_bytes, mut safe_bytes) = (0, 0);
        let whole = ByteRange::new(0, layer.virtual_bytes());
        layer.for_each_extent(whole, &mut |extent| {
            let moves = ExtentFlags::SHARED | ExtentFlags::ENCODED;
            if extent.state != ExtentState::Hole && !extent.flags.intersects(moves) {
                safe_bytes += extent.guest.len();
                if extent.state == ExtentState::Written {
                    written_bytes += extent.guest.len();
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Self {
            facts: info.qcow2.expect("of a qcow2 image"),
            preallocation: info.preallocation,
            written_bytes,
            safe_bytes,
        })
    }
}
