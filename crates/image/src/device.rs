//! Images as block devices: the reads and writes of a guest.
//!
//! A raw image is its file. A qcow2 image is implemented here (`qcow2.rs`) and not by the crate
//! imago, for these reasons: imago keeps an L2 table locked while the data of an allocating write
//! moves, so such writes to the same 512 MiB are serialised; its futures stay on one thread; it may
//! reuse a freed cluster before the entry that referenced it is durably cleared; and it does not
//! read zstd. Two implementations that write the same tables would have to exchange every change.
//!
//! An image left with outdated refcounts by a killed user (lazy refcounts) is repaired before it is
//! written.
//!
//! Referenced files (backing files, data files) are opened on request only. While a host file is
//! open, it is locked against QEMU's programs, and theirs are respected (`../lock.rs`).

mod host;
mod options;
mod qcow2;

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, Geometry, RangeStatus, Request, TransferStream};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, Extent, LayerRange, LayerVisitor, Result, Silent,
};

use crate::check::rebuild_refcounts;
use crate::format::{Header, Incompatible};
use crate::referenced_file::unnamed_data_file;
pub use crate::store::Store;
use crate::store::StoreFile;
use crate::{Format, detect};
pub(crate) use host::open_image_store;
use options::not_allowed;
pub use options::{DeviceOptions, ImageAccess, ReferencedStores};
use qcow2::{ImageFiles, Qcow2};

/// The disk in an image.
pub struct ImageDevice {
    content: Content,
    format: Format,
}

enum Content {
    Raw(Arc<dyn Store>),
    Qcow2(Box<Qcow2>),
}

impl ImageDevice {
    /// Opens the image at `path`, a file or disk of the host.
    ///
    /// # Errors
    /// `InUse` if another process has it open; `Corrupt` for an image that is inconsistent, or
    /// marked as corrupt and opened for writing; `Unsupported` for unknown features and for
    /// referenced files that are needed and not allowed.
    pub fn open(path: impl AsRef<Path>, options: &DeviceOptions) -> Result<Self> {
        Self::open_in_chain(path.as_ref(), options, 0)
    }

    fn open_in_chain(path: &Path, options: &DeviceOptions, depth: u32) -> Result<Self> {
        let store = open_image_store(path, options)?;
        let origin = Origin { path, depth };
        Self::open_in(store, options, Some(origin)).map_err(|error| error.during("open").at(path))
    }

    /// Opens the image in `store`, which the caller has locked.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Unsupported` also for referenced files to be followed, because the
    /// store has no directory.
    pub fn open_store(store: Arc<dyn Store>, options: &DeviceOptions) -> Result<Self> {
        Self::open_in(store, options, None)
    }

    fn open_in(
        store: Arc<dyn Store>,
        options: &DeviceOptions,
        origin: Option<Origin<'_>>,
    ) -> Result<Self> {
        let mut first = vec![0; store.geometry().logical_block.max(512) as usize];
        read_first(&store, &mut first)?;
        let format = match options.format {
            Some(format) => format,
            None => detect::format_of_contents(&first)?,
        };
        let content = match format {
            Format::Raw => Content::Raw(store),
            Format::Qcow2 => {
                let mut header = read_header(&store, first.clone())?;
                let writes = options.access == ImageAccess::ReadWrite;
                if writes && is_behind(&header) {
                    rebuild(&store, &header)?;
                    read_first(&store, &mut first)?;
                    header = read_header(&store, first)?;
                }
                let (backing, data) = referenced(&header, options, origin)?;
                let parts = ImageFiles {
                    file: store,
                    data,
                    backing,
                };
                let image = Qcow2::open(&header, parts, writes, options.cache_bytes)?;
                Content::Qcow2(Box::new(image))
            }
        };
        Ok(Self { content, format })
    }

    /// The format that it has.
    pub fn format(&self) -> Format {
        self.format
    }

    fn device(&self) -> &dyn Device {
        match &self.content {
            Content::Raw(store) => store,
            Content::Qcow2(image) => &**image,
        }
    }
}

/// Path of an image, and its depth in the backing chain.
#[derive(Clone, Copy)]
struct Origin<'p> {
    path: &'p Path,
    depth: u32,
}

type Backing = Option<Arc<dyn Device>>;
type DataFile = Option<Arc<dyn Store>>;

/// The referenced files that the image needs, if allowed.
fn referenced(
    header: &Header,
    options: &DeviceOptions,
    origin: Option<Origin<'_>>,
) -> Result<(Backing, DataFile)> {
    let (mut backing, mut data) = match &options.referenced {
        ReferencedStores::Given { backing, data } => (backing.clone(), data.clone()),
        ReferencedStores::Refused | ReferencedStores::Followed => (None, None),
    };
    let origin = origin.filter(|_| matches!(options.referenced, ReferencedStores::Followed));
    match (&header.backing_file, origin) {
        (None, _) => backing = None,
        (Some(_), _) if backing.is_some() => {}
        (Some(name), Some(Origin { path, depth })) => {
            let image = host::open_backing(path, name, header, options, depth)?;
            backing = Some(Arc::new(image));
        }
        (Some(name), None) => return Err(not_allowed("backing file", name)),
    }
    match (header.has_data_file(), header.data_file(), origin) {
        (false, ..) => data = None,
        (true, ..) if data.is_some() => {}
        (true, Some(name), Some(_)) => {
            data = Some(host::open_data_file(name, options)?);
        }
        (true, Some(name), None) => return Err(not_allowed("data file", name)),
        (true, None, _) => return Err(unnamed_data_file()),
    }
    Ok((backing, data))
}

/// Reads the header from the first cluster, which begins with `first`.
fn read_header(store: &Arc<dyn Store>, mut first: Vec<u8>) -> Result<Header> {
    let file_bytes = store.file_bytes()?;
    if first.len() as u64 > file_bytes {
        first.truncate(file_bytes as usize);
    }
    let bits = first.get(0x14..0x18).map_or(0, |bits| {
        u32::from_be_bytes(bits.try_into().expect("four bytes"))
    });
    // The parser refuses wrong values in the bytes read.
    if Header::is_qcow2(&first) && crate::format::Geometry::new(bits, 4).is_ok() {
        let mut cluster = vec![0; file_bytes.min(1 << bits) as usize];
        read_first(store, &mut cluster)?;
        first = cluster;
    }
    Header::parse(&first, file_bytes)
}

/// The last user of the image was killed and left outdated refcounts.
fn is_behind(header: &Header) -> bool {
    let features = header.incompatible;
    features.contains(Incompatible::DIRTY) && !features.contains(Incompatible::CORRUPT)
}

/// Makes refcounts right before anything is written, as QEMU does.
fn rebuild(store: &Arc<dyn Store>, header: &Header) -> Result<()> {
    let whole = store
        .file_bytes()?
        .next_multiple_of(header.geometry.cluster_bytes());
    match store.resize(whole) {
        // A disk keeps its size.
        Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    let file = Arc::new(StoreFile(Arc::clone(store)));
    rebuild_refcounts(file, Control::new(&CancelToken::new(), &Silent)).map(drop)
}

fn read_first(store: &Arc<dyn Store>, into: &mut [u8]) -> Result<()> {
    let geometry = store.geometry();
    let there = geometry.size.min(into.len() as u64) & !(u64::from(geometry.logical_block) - 1);
    let (data, rest) = into.split_at_mut(there as usize);
    rest.fill(0);
    if data.is_empty() {
        Ok(())
    } else {
        store.read_at(data, 0)
    }
}

impl Device for ImageDevice {
    fn geometry(&self) -> Geometry {
        self.device().geometry()
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.device().grow(size)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.device().submit(requests);
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        self.device().run_stream(stream)
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        self.device().shared_memory_alignment()
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device().status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device().extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.device().visit_layers(at, visit)
    }
}

impl fmt::Debug for ImageDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.geometry().size;
        write!(f, "ImageDevice({}, {size} bytes)", self.format.name())
    }
}
