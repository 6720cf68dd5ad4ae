//! The contents of a new image: the size of its file, and its metadata.
//!
//! Model: the file has its size, all zeros, before anything is written. Zeros are not written, and
//! the rest is written in large chunks, in file order. The image is complete when all is written
//! and synced; until then the file must not have its name.

use extant_provision::{
    ContentOrder, ContentWriter, NewFile, NewFileReport, Pace, Provisioner, no_guard,
};
use extant_space::{
    ByteRange, Control, Phase, Preallocation as Space, Result, SpaceFile, SyncMode,
};

use crate::cluster_map::ClusterMap;
use crate::data_bitmap::DataBitmap;
use crate::format::{
    Autoclear, Compatible, Compression, Extensions, FeatureName, Geometry, Header, Incompatible,
    L1Entry, L2Entry, RefcountBlock, Version,
};
use crate::image_format::Format;
use crate::layout::{Layout, Mapped, REFCOUNT_TABLE_START};
use crate::options::ImageOptions;
use crate::preallocation::Preallocation;

/// Written at once.
const PIECE_BYTES: u64 = 2 << 20;

/// An image that can be made.
#[derive(Clone, Debug)]
pub struct NewImage {
    preallocation: Preallocation,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    Raw {
        virtual_bytes: u64,
        allocation_bytes: Option<u64>,
    },
    Qcow2(Box<Qcow2>),
}

#[derive(Clone, Debug)]
struct Qcow2 {
    layout: Layout,
    header: Vec<u8>,
    has_zero_clusters: bool,
    placed: ClusterMap,
}

impl NewImage {
    /// Validates the options and computes the layout.
    ///
    /// # Errors
    /// `InvalidArgument` for contradictions, `TooLarge` for values beyond the format's limits.
    pub fn new(options: &ImageOptions) -> Result<Self> {
        Self::holding(options, &[])
    }

    /// As [`new`](Self::new), for an image that will hold data in these ranges of the guest, in
    /// order, from the start.
    pub(crate) fn holding(options: &ImageOptions, data: &[ByteRange]) -> Result<Self> {
        options.check()?;
        let preallocation = match &options.qcow2.data_file {
            // A raw data file that others read has to match the tables.
            Some(data) if options.format == Format::Qcow2 && data.is_raw => {
                options.preallocation.max_metadata()
            }
            _ => options.preallocation,
        };
        let contents = match options.format {
            Format::Raw => Contents::Raw {
                virtual_bytes: options.virtual_bytes,
                allocation_bytes: options.allocation_bytes,
            },
            Format::Qcow2 => Contents::Qcow2(Box::new(Qcow2::new(options, preallocation, data)?)),
        };
        Ok(Self {
            preallocation,
            contents,
        })
    }

    /// The preallocation of the image.
    pub fn preallocation(&self) -> Preallocation {
        self.preallocation
    }

    /// Whether the file of the new image holds more than zeros.
    pub fn has_metadata(&self) -> bool {
        matches!(self.contents, Contents::Qcow2(_))
    }

    /// Size of the image's file, bytes.
    pub fn file_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Raw { virtual_bytes, .. } => *virtual_bytes,
            Contents::Qcow2(qcow2) => qcow2.layout.file_bytes(),
        }
    }

    /// The first bytes of the file, which the preallocation covers; `None`: all.
    pub fn allocation_bytes(&self) -> Option<u64> {
        match &self.contents {
            Contents::Raw {
                allocation_bytes, ..
            } => *allocation_bytes,
            // Unallocated clusters have no offset in the file.
            Contents::Qcow2(_) => None,
        }
    }

    /// Allocation of the new image on the host, bytes.
    pub fn space_bytes(&self) -> u64 {
        match (&self.contents, self.preallocation) {
            (_, Preallocation::Falloc | Preallocation::Full) => {
                let file_bytes = self.file_bytes();
                self.allocation_bytes()
                    .map_or(file_bytes, |bytes| bytes.min(file_bytes))
            }
            (Contents::Raw { .. }, _) => 0,
            (Contents::Qcow2(qcow2), _) => qcow2.layout.offset(qcow2.layout.metadata_clusters()),
        }
    }

    /// File offset of the guest byte at `guest_offset`, and the length of the contiguous run from
    /// there.
    ///
    /// # Panics
    /// If it is not mapped.
    pub(crate) fn place(&self, guest_offset: u64) -> (u64, u64) {
        match &self.contents {
            Contents::Raw { virtual_bytes, .. } => (guest_offset, virtual_bytes - guest_offset),
            Contents::Qcow2(qcow2) => qcow2.place(guest_offset),
        }
    }

    /// Gives `file`, which no other process uses, the size, the space and the contents of the
    /// image; durable and verified on return. A file of an interrupted run is resumed, unless it
    /// may have metadata ([`provision_resumable`](Self::provision_resumable)).
    ///
    /// # Errors
    /// Those of [`Provisioner::provision_new`].
    pub fn provision(
        &self,
        file: &dyn SpaceFile,
        pace: &Pace,
        control: Control<'_>,
    ) -> Result<NewFileReport> {
        self.provision_resumable(file, pace, &no_guard, control)
    }

    /// The same. Until `before_contents` is called the file is all zeros, and its creation can be
    /// resumed; afterwards it may have metadata, and has to begin again.
    ///
    /// # Errors
    /// As [`provision`](Self::provision), and those of `before_contents`.
    pub fn provision_resumable(
        &self,
        file: &dyn SpaceFile,
        pace: &Pace,
        before_contents: &dyn Fn() -> Result<()>,
        control: Control<'_>,
    ) -> Result<NewFileReport> {
        let fill = |file: &dyn SpaceFile, control: Control<'_>| self.write_metadata(file, control);
        let contents = ContentWriter {
            order: ContentOrder::AfterSpace,
            fill: &fill,
        };
        let preallocation = self.preallocation.space();
        let new = NewFile {
            size_bytes: self.file_bytes(),
            preallocation,
            contents: self.has_metadata().then_some(&contents),
            before_contents,
            resumed_bytes: 0,
            is_synced_later: false,
        };
        let range = match preallocation {
            Space::Off => ByteRange::default(),
            Space::Falloc | Space::Full => ByteRange::new(0, self.space_bytes()),
        };
        Provisioner::new(file, range, control)
            .at_pace(pace)
            .provision_new(&new)
    }

    /// Writes all metadata except zeros into `file`, which has its final size and is all zeros.
    /// Nothing is synced.
    ///
    /// # Errors
    /// Those of writing, and `Cancelled`. The file is incomplete then.
    pub fn write_metadata(&self, file: &dyn SpaceFile, control: Control<'_>) -> Result<()> {
        self.write_occupied(file, None, control)
    }

    /// As [`write_metadata`](Self::write_metadata), without the clusters that were reserved for
    /// data and received none.
    pub(crate) fn write_occupied(
        &self,
        file: &dyn SpaceFile,
        occupied: Option<&DataBitmap>,
        control: Control<'_>,
    ) -> Result<()> {
        match &self.contents {
            Contents::Raw { .. } => Ok(()),
            Contents::Qcow2(qcow2) => {
                qcow2.write_tables(file, occupied, control)?;
                // Last: an image with a header is complete.
                qcow2.write_header(file)
            }
        }
    }

    /// As [`write_metadata`](Self::write_metadata); the header is written when all else is durable,
    /// and is durable on return.
    pub(crate) fn write_in_steps(&self, file: &dyn SpaceFile, control: Control<'_>) -> Result<()> {
        if let Contents::Qcow2(qcow2) = &self.contents {
            qcow2.write_tables(file, None, control)?;
            file.sync(SyncMode::Data)?;
            qcow2.write_header(file)?;
        }
        file.sync(SyncMode::Data)
    }

    /// Bytes of the file, from its start, that must read as zeros unless the image writes them.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Raw { virtual_bytes, .. } => *virtual_bytes,
            Contents::Qcow2(qcow2) => match self.preallocation {
                Preallocation::Off => qcow2.layout.offset(qcow2.layout.metadata_clusters()),
                _ => qcow2.layout.file_bytes(),
            },
        }
    }

    /// A bit for each cluster that is kept for data, where those without any can do without a
    /// place.
    pub(crate) fn occupied(&self) -> Option<DataBitmap> {
        match &self.contents {
            Contents::Qcow2(qcow2) if self.preallocation == Preallocation::Off => {
                let layout = &qcow2.layout;
                Some(DataBitmap::new(layout.data_start, layout.data_clusters))
            }
            _ => None,
        }
    }

    /// Bytes of the file up to the last cluster that got data.
    pub(crate) fn occupied_bytes(&self, occupied: Option<&DataBitmap>) -> u64 {
        match (&self.contents, occupied) {
            (Contents::Qcow2(qcow2), Some(occupied)) => qcow2.layout.offset(occupied.end()),
            _ => self.file_bytes(),
        }
    }

    /// Bytes of a cluster; of a raw image, all of it is one.
    pub(crate) fn cluster_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Raw { virtual_bytes, .. } => (*virtual_bytes).max(1),
            Contents::Qcow2(qcow2) => qcow2.layout.geometry.cluster_bytes(),
        }
    }

    /// A cluster can say that it is zeros without space.
    pub(crate) fn has_zero_clusters(&self) -> bool {
        matches!(&self.contents, Contents::Qcow2(qcow2) if qcow2.has_zero_clusters)
    }

    /// Base-2 logarithm of the unit that places are given in.
    pub(crate) fn place_bits(&self) -> u32 {
        match &self.contents {
            Contents::Raw { .. } => 0,
            Contents::Qcow2(qcow2) => qcow2.layout.geometry.cluster_bits(),
        }
    }
}

impl Qcow2 {
    fn new(
        options: &ImageOptions,
        preallocation: Preallocation,
        data: &[ByteRange],
    ) -> Result<Self> {
        let geometry = options.qcow2.geometry()?;
        let part = options
            .allocation_bytes
            .filter(|&bytes| bytes < options.disk_bytes());
        let placed = match preallocation {
            Preallocation::Off => ClusterMap::of(data, geometry),
            _ => ClusterMap::all(geometry.clusters(part.unwrap_or(options.disk_bytes()))),
        };
        let mapped = match (preallocation, &options.qcow2.data_file) {
            (Preallocation::Off, None) => Mapped::Some {
                clusters: placed.clusters(),
                tables: placed.tables(geometry).len() as u64,
            },
            (Preallocation::Off, Some(_)) => Mapped::Nothing,
            (_, None) if part.is_some() => Mapped::Some {
                clusters: placed.clusters(),
                tables: placed.tables(geometry).len() as u64,
            },
            (_, Some(_)) => Mapped::Elsewhere,
            (_, None) => Mapped::Here,
        };
        let layout = Layout::new(geometry, options.disk_bytes(), mapped)?;
        Ok(Self {
            header: header(options, &layout)?.encode()?,
            has_zero_clusters: options.qcow2.version == Version::V3,
            placed: match mapped {
                Mapped::Here | Mapped::Some { .. } => placed.from(layout.data_start),
                Mapped::Nothing | Mapped::Elsewhere => placed,
            },
            layout,
        })
    }

    fn place(&self, guest_offset: u64) -> (u64, u64) {
        let bits = self.layout.geometry.cluster_bits();
        let (cluster, count) = self.placed.place(guest_offset >> bits);
        let within = guest_offset % self.layout.geometry.cluster_bytes();
        ((cluster << bits) + within, (count << bits) - within)
    }

    fn write_header(&self, file: &dyn SpaceFile) -> Result<()> {
        file.write_at(&self.header, 0)
    }

    /// Everything but the header.
    fn write_tables(
        &self,
        file: &dyn SpaceFile,
        occupied: Option<&DataBitmap>,
        control: Control<'_>,
    ) -> Result<()> {
        let layout = &self.layout;
        let mut out = Writer {
            file,
            control,
            written: 0,
            total: layout.offset(layout.metadata_clusters()),
        };
        let blocks = layout.refcount_blocks_start();
        let table = layout.offset(REFCOUNT_TABLE_START);
        out.entries(table, layout.refcount_blocks, |index| {
            layout.offset(blocks + index)
        })?;
        self.write_refcounts(&mut out, occupied)?;
        match layout.l2_tables {
            0 => Ok(()),
            _ => self.write_mapping(&mut out, occupied),
        }
    }

    /// The L1 table, and the L2 tables that it names.
    fn write_mapping(&self, out: &mut Writer<'_>, occupied: Option<&DataBitmap>) -> Result<()> {
        let layout = &self.layout;
        let geometry = layout.geometry;
        let tables = self.placed.tables(geometry);
        let mut l1 = vec![0; layout.l1_entries as usize];
        for (number, &index) in (layout.l2_start()..).zip(&tables) {
            l1[index as usize] = L1Entry::exclusive(layout.offset(number)).raw();
        }
        out.entries(
            layout.offset(layout.l1_start()),
            layout.l1_entries,
            |index| l1[index as usize],
        )?;
        let mut at = layout.offset(layout.l2_start());
        let tables_a_piece = (PIECE_BYTES / geometry.cluster_bytes()).max(1);
        let mut piece = Vec::new();
        for tables in tables.chunks(tables_a_piece as usize) {
            piece.clear();
            for &index in tables {
                let first = index * geometry.l2_entries();
                let end = first + geometry.l2_entries();
                self.placed.for_each(first..end, &mut |place| {
                    let entry = match place {
                        Some(cluster) if holds(occupied, cluster) => {
                            L2Entry::exclusive(layout.offset(cluster))
                        }
                        Some(cluster) if occupied.is_some_and(|found| found.hides(cluster)) => {
                            L2Entry::ZERO
                        }
                        _ => L2Entry::UNALLOCATED,
                    };
                    piece.extend_from_slice(&entry.raw().to_be_bytes());
                });
            }
            out.piece(at, &piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// One for every cluster but those between the two runs.
    fn write_refcounts(&self, out: &mut Writer<'_>, occupied: Option<&DataBitmap>) -> Result<()> {
        let layout = &self.layout;
        let free = layout.metadata_clusters()..layout.data_start;
        let entries = layout.geometry.refcount_block_entries();
        let cluster_bytes = layout.geometry.cluster_bytes();
        let blocks_a_piece = (PIECE_BYTES / cluster_bytes).max(1);
        let mut index = 0;
        while index < layout.refcount_blocks {
            let count = blocks_a_piece.min(layout.refcount_blocks - index);
            let mut piece = ones(layout.geometry, (count * cluster_bytes) as usize);
            for (number, block) in piece.chunks_exact_mut(cluster_bytes as usize).enumerate() {
                let first = (index + number as u64) * entries;
                let mut block = RefcountBlock::new(block, layout.geometry);
                let past_end = layout.end().max(first)..first + entries;
                for cluster in free.clone().chain(past_end) {
                    if (first..first + entries).contains(&cluster) {
                        block.set((cluster - first) as usize, 0);
                    }
                }
                let data = layout.data_start.max(first)..layout.end().min(first + entries);
                for cluster in data.filter(|&cluster| !holds(occupied, cluster)) {
                    block.set((cluster - first) as usize, 0);
                }
            }
            out.piece(
                layout.offset(layout.refcount_blocks_start() + index),
                &piece,
            )?;
            index += count;
        }
        Ok(())
    }
}

/// A cluster of data is in use.
fn holds(occupied: Option<&DataBitmap>, cluster: u64) -> bool {
    occupied.is_none_or(|occupied| occupied.holds(cluster))
}

/// Refcounts of one, as many as there is room for.
fn ones(geometry: Geometry, bytes: usize) -> Vec<u8> {
    match geometry.refcount_order() {
        0 => vec![0xff; bytes],
        1 => vec![0x55; bytes],
        2 => vec![0x11; bytes],
        order => {
            let width = 1 << (order - 3);
            let mut pattern = vec![0; width];
            pattern[width - 1] = 1;
            pattern.repeat(bytes / width)
        }
    }
}

fn header(options: &ImageOptions, layout: &Layout) -> Result<Header> {
    let qcow2 = &options.qcow2;
    let mut header = Header::new(layout.geometry, layout.virtual_bytes);
    header.version = qcow2.version;
    header.l1_entries = layout.l1_entries as u32;
    header.l1_offset = layout.offset(layout.l1_start());
    header.refcount_table_offset = layout.offset(REFCOUNT_TABLE_START);
    header.refcount_table_clusters = layout.refcount_table_clusters as u32;
    header.compression = qcow2.compression;
    if qcow2.compression != Compression::Zlib {
        header.incompatible |= Incompatible::COMPRESSION_TYPE;
    }
    if qcow2.lazy_refcounts {
        header.compatible |= Compatible::LAZY_REFCOUNTS;
    }
    let name = |path: &std::path::Path| path.as_os_str().as_encoded_bytes().to_vec();
    if let Some(backing) = &qcow2.backing {
        header.backing_file = Some(backing.name.clone());
        let format = backing.format.clone().into_bytes();
        header.extensions.set(Extensions::BACKING_FORMAT, format);
    }
    if let Some(data) = &qcow2.data_file {
        header.incompatible |= Incompatible::DATA_FILE;
        header
            .extensions
            .set(Extensions::DATA_FILE, name(&data.name));
        if data.is_raw {
            header.autoclear |= Autoclear::RAW_DATA_FILE;
        }
    }
    if qcow2.version == Version::V3 {
        let mut named = header.clone();
        named.extensions.set_feature_names(&feature_names());
        // They are for people; an image with small clusters does without.
        if named.encode().is_ok() {
            header = named;
        }
    }
    Ok(header)
}

/// The feature names that QEMU writes, for readers that do not know a feature.
fn feature_names() -> Vec<FeatureName> {
    [
        (0, 0, "dirty bit"),
        (0, 1, "corrupt bit"),
        (0, 2, "external data file"),
        (0, 3, "compression type"),
        (0, 4, "extended L2 entries"),
        (1, 0, "lazy refcounts"),
        (2, 0, "bitmaps"),
        (2, 1, "raw external data"),
    ]
    .map(|(kind, bit, name)| FeatureName {
        kind,
        bit,
        name: name.to_owned(),
    })
    .into()
}

/// Writes in large pieces.
struct Writer<'a> {
    file: &'a dyn SpaceFile,
    control: Control<'a>,
    written: u64,
    total: u64,
}

impl Writer<'_> {
    /// A table of `count` entries at `offset`.
    fn entries(&mut self, offset: u64, count: u64, entry: impl Fn(u64) -> u64) -> Result<()> {
        let entries_a_piece = PIECE_BYTES / 8;
        let mut piece = Vec::with_capacity((count.min(entries_a_piece) * 8) as usize);
        let mut first = 0;
        while first < count {
            let end = count.min(first + entries_a_piece);
            piece.clear();
            for index in first..end {
                piece.extend_from_slice(&entry(index).to_be_bytes());
            }
            self.piece(offset + first * 8, &piece)?;
            first = end;
        }
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.control.cancel.check()?;
        self.file.write_at(bytes, offset)?;
        self.written += bytes.len() as u64;
        self.control
            .report(Phase::Write, self.written.min(self.total), self.total);
        Ok(())
    }
}
