//! Copies an image into a new one, of another format, shape or preallocation.
//!
//! Model: the map of the source locates the data. The new image is laid out for that, its space is
//! made in one piece, and several threads copy (`convert/copy.rs`); then the tables are written,
//! then zeros if the preallocation needs them. Holes and zeros are never read, and pieces that turn
//! out to be zeros are not written: they are zeros in the new image already. A thin one has no
//! clusters for them.
//!
//! Over a backing file the contents decide: clusters that read the same there are left out,
//! whatever the source is made of.
//!
//! The new image has its name when it is complete; until then the name does not exist.

mod copy;
mod stride;
mod to_cluster;
mod zeros;

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use extant_hostfs::{CreateReport, HostFile};
use extant_provision::{
    ContentOrder, ContentWriter, DataWriter, NewFile, NewFileReport, Pace, Provisioner, no_guard,
};
use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, Preallocation, Result, SpaceFile,
};

use crate::create::hold_existing;
use crate::image_format::Format;
use crate::layer::{Layer, ReferencedFiles, open_path};
use crate::lock::{LockAccess, lock};
use crate::new_image::NewImage;
use crate::options::{BackingFile, ImageOptions};
use crate::referenced_file::{beside, known_format};
use copy::{Copy, Write};

pub use to_cluster::convert_to_cluster;

/// How a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// Threads that copy, at least one.
    pub threads: usize,
    /// Bytes of data copied in a second, at most.
    pub rate: Option<NonZeroU64>,
    /// Treatment of files that the backing file of the new image names.
    pub follow: ReferencedFiles,
}

impl CopyOptions {
    /// The same in the background: one thread copies, at the pace of the file, which has the rate
    /// as well.
    pub fn in_background(self) -> Self {
        Self {
            threads: 1,
            rate: None,
            ..self
        }
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: (processors * 2).min(8),
            rate: None,
            follow: ReferencedFiles::Ignore,
        }
    }
}

/// A new image with the contents of another.
pub struct Conversion<'a> {
    source: &'a Layer,
    /// The backing file of the new image.
    base: Option<&'a Layer>,
    new: NewImage,
    data: Vec<ByteRange>,
    options: CopyOptions,
}

impl<'a> Conversion<'a> {
    /// Lays out the image that `image` asks for, with the data of `source`.
    ///
    /// # Errors
    /// `InvalidArgument` when the disk would be smaller than the source, `Unsupported` for a new
    /// image with a data file, or with a backing file (see [`over`](Self::over)); those of
    /// [`NewImage::new`] and of the map of the source.
    pub fn new(source: &'a Layer, image: &ImageOptions, options: CopyOptions) -> Result<Self> {
        if backing_of(image).is_some() {
            return Err(unsupported("backing file"));
        }
        Self::plan(source, None, image, options)
    }

    /// As [`new`](Self::new), for an image with a backing file, which is `base`: clusters that read
    /// the same there are not copied.
    ///
    /// # Errors
    /// As [`new`](Self::new); `InvalidArgument` for an image without a backing file.
    pub fn over(
        source: &'a Layer,
        base: &'a Layer,
        image: &ImageOptions,
        options: CopyOptions,
    ) -> Result<Self> {
        if backing_of(image).is_none() {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("the new image names no backing file"));
        }
        Self::plan(source, Some(base), image, options)
    }

    fn plan(
        source: &'a Layer,
        base: Option<&'a Layer>,
        image: &ImageOptions,
        options: CopyOptions,
    ) -> Result<Self> {
        if image.virtual_bytes < source.virtual_bytes() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "the new disk of {} is smaller than the {} that it is to hold",
                ByteSize(image.virtual_bytes),
                ByteSize(source.virtual_bytes())
            )));
        }
        if image.format == Format::Qcow2 && image.qcow2.data_file.is_some() {
            return Err(unsupported("data file"));
        }
        let disk = ByteRange::new(0, image.disk_bytes());
        let mut data = data_of(source, disk)?;
        if let Some(base) = base {
            let geometry = image.qcow2.geometry()?;
            data = merged(data, data_of(base, disk)?, geometry.cluster_bytes(), disk);
        }
        Ok(Self {
            source,
            base,
            new: NewImage::holding(image, &data)?,
            data,
            options,
        })
    }

    /// The image that is made.
    pub fn image(&self) -> &NewImage {
        &self.new
    }

    /// Bytes of the source that are copied, or compared if there is a backing file.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.len()).sum()
    }

    /// Gives `file`, which is empty and which no other process uses, the size, the space and the
    /// contents of the new image; durable and verified on return.
    ///
    /// # Errors
    /// Those of reading the source and of [`Provisioner::provision_new`]. The file is incomplete
    /// then.
    pub fn provision(
        &self,
        file: &dyn SpaceFile,
        pace: &Pace,
        control: Control<'_>,
    ) -> Result<NewFileReport> {
        let fill =
            |file: &dyn SpaceFile, control: Control<'_>| self.fill_at_pace(file, pace, control);
        let contents = ContentWriter {
            order: ContentOrder::BeforeZeros,
            fill: &fill,
        };
        let preallocation = self.new.preallocation().space();
        let new = NewFile {
            size_bytes: self.new.file_bytes(),
            preallocation,
            contents: Some(&contents),
            before_contents: &no_guard,
            resumed_bytes: 0,
            is_synced_later: false,
        };
        let whole = ByteRange::new(0, new.size_bytes);
        match preallocation {
            Preallocation::Off => {
                let nothing = ByteRange::default();
                let provisioner = Provisioner::new(file, nothing, control).at_pace(pace);
                // A thin image allocates space for its data only.
                provisioner.check_space(self.data_bytes())?;
                provisioner.provision_new(&new)
            }
            Preallocation::Falloc | Preallocation::Full => Provisioner::new(file, whole, control)
                .at_pace(pace)
                .provision_new(&new),
        }
    }

    /// At a limit alone, the copy itself keeps to it.
    fn fill_at_pace(&self, file: &dyn SpaceFile, pace: &Pace, control: Control<'_>) -> Result<()> {
        let writer = DataWriter::new(file, pace)?;
        let write = |bytes: &[u8], offset| writer.write(bytes, offset, control.cancel);
        let filled = self.fill_by(file, &write, control);
        writer.report(control.progress);
        filled.map(drop)
    }

    fn fill_by(&self, file: &dyn SpaceFile, write: Write<'_>, control: Control<'_>) -> Result<u64> {
        let occupied = self.new.occupied();
        let copy = Copy {
            conversion: self,
            file,
            write,
            occupied: occupied.as_ref(),
        };
        copy.run(control)?;
        self.new.write_occupied(file, occupied.as_ref(), control)?;
        let file_bytes = self.new.occupied_bytes(occupied.as_ref());
        if file_bytes < self.new.file_bytes() {
            file.resize(file_bytes)?;
        }
        Ok(file_bytes)
    }
}

fn backing_of(image: &ImageOptions) -> Option<&BackingFile> {
    match image.format {
        Format::Raw => None,
        Format::Qcow2 => image.qcow2.backing.as_ref(),
    }
}

fn unsupported(what: &str) -> Error {
    let detail = format!("a copy with a {what} of its own is not supported");
    Error::new(ErrorKind::Unsupported).detail(detail)
}

/// The ranges of `disk` in which `layer` may hold data other than zeros.
fn data_of(layer: &Layer, disk: ByteRange) -> Result<Vec<ByteRange>> {
    layer.check_complete()?;
    let mut data: Vec<ByteRange> = Vec::new();
    layer.for_each_extent(disk, &mut |extent| {
        match data.last_mut() {
            _ if extent.is_zero => {}
            Some(last) if last.end() == extent.guest.start() => {
                *last = ByteRange::new(last.start(), extent.guest.end());
            }
            _ => data.push(extent.guest),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(data)
}

/// The union of two lists, in whole clusters, in order.
fn merged(
    one: Vec<ByteRange>,
    other: Vec<ByteRange>,
    cluster_bytes: u64,
    disk: ByteRange,
) -> Vec<ByteRange> {
    let mut all = [one, other].concat();
    all.sort_unstable_by_key(|range| range.start());
    let mut merged: Vec<ByteRange> = Vec::new();
    for range in all {
        let start = range.start() / cluster_bytes * cluster_bytes;
        let end = range.end().next_multiple_of(cluster_bytes).min(disk.end());
        match merged.last_mut() {
            Some(last) if last.end() >= start => {
                *last = ByteRange::new(last.start(), last.end().max(end));
            }
            _ => merged.push(ByteRange::new(start, end)),
        }
    }
    merged
}

/// Copies `source` into a new image of the host at `path`.
///
/// Size and preallocation in `file` are set by the image. In the background (its pace) one thread
/// copies.
///
/// # Errors
/// Those of [`Conversion::new`], [`Conversion::provision`] and [`extant_hostfs::create`]; `InUse`
/// if the replaced file is in use. After an error no file is left.
pub fn convert(
    source: &Layer,
    path: &Path,
    image: &ImageOptions,
    file: &extant_hostfs::CreateOptions,
    options: CopyOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    let mut options = options;
    if file.pace.is_background() {
        options = options.in_background();
    }
    let base = match backing_of(image) {
        None => None,
        Some(backing) => Some(open_base(path, backing, options.follow)?),
    };
    let conversion = match &base {
        None => Conversion::new(source, image, options)?,
        Some((base, _)) => Conversion::over(source, base, image, options)?,
    };
    let mut file = file.clone();
    file.size_bytes = conversion.image().file_bytes();
    file.allocation_bytes = None;
    file.preallocation = conversion.image().preallocation().space();
    let pace = file.pace.clone();
    let fill =
        |file: &dyn SpaceFile, control: Control<'_>| conversion.fill_at_pace(file, &pace, control);
    let filling = ContentWriter {
        order: ContentOrder::BeforeZeros,
        fill: &fill,
    };
    let _held = hold_existing(path, &file)?;
    extant_hostfs::create_filled(path, &file, &filling, control)
}

/// Opens the backing file of the future image at `path`, and locks out its writers.
fn open_base(
    path: &Path,
    backing: &BackingFile,
    follow: ReferencedFiles,
) -> Result<(Layer, HostFile)> {
    let format = known_format(&backing.format)?;
    let place = beside(path, &backing.name)?;
    let held = HostFile::open_read(&place)?;
    lock(&held, LockAccess::Read).map_err(|error| error.at(&place))?;
    let layer = open_path(&place, Some(format), follow)?;
    layer.check_complete().map_err(|error| error.at(&place))?;
    Ok((layer, held))
}
