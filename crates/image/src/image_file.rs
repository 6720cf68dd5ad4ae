//! The file of an image under change, and the allocation of its space.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_hostfs::{Access, HostFile};
use extant_provision::{Pace, Provisioner, Shared};
use extant_rbd::{Image, RbdAccess, RbdDevice};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, FallocateMode, Preallocation, Remedy, Result, SpaceFile,
};

use crate::format::Header;
use crate::hold::cluster_image;
use crate::image_format::Format;
use crate::layer::{Layer, ReferencedFiles, open_path};
use crate::lock::{LockAccess, lock};
use crate::on_disk::{check_fits, is_disk, open_disk};
use crate::referenced_file::{backing_format, beside, data_file_path, explain_missing_data};
use crate::store::StoreFile;

/// Zeros that are sent at once to a file without a zeroing call.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// An image file, open for changes.
pub struct ImageFile {
    file: Arc<dyn SpaceFile>,
    /// For a host file.
    path: Option<PathBuf>,
    pace: Pace,
    shared: Shared,
    is_disk: bool,
    /// For an image of a Ceph cluster.
    cluster_image: Option<Arc<Image>>,
    /// The file of the guest's data, if separate.
    data_file: Option<Box<ImageFile>>,
    /// The backing file, if it may be read.
    backing: Option<Layer>,
}

impl ImageFile {
    /// Opens a file or disk of the host, an NBD export or an image of a cluster, and locks it
    /// against QEMU and our other commands.
    ///
    /// # Errors
    /// `InUse` if the image is in use; errors of opening.
    pub fn host(path: &Path, pace: Pace) -> Result<Self> {
        let target = if let Some(name) = cluster_image(path)? {
            let device = Arc::new(RbdDevice::open(&name, RbdAccess::ReadWrite)?);
            let cluster_image = Some(Arc::clone(device.image()));
            Self {
                cluster_image,
                ..Self::on_disk(Arc::new(StoreFile(device)))
            }
        } else if is_disk(path) {
            Self::on_disk(Arc::new(StoreFile(open_disk(path)?)))
        } else {
            let file = HostFile::open(path, Access::ReadWrite)?;
            lock(&file, LockAccess::Write).map_err(|error| error.at(path))?;
            Self::held(Arc::new(file))
        };
        Ok(Self {
            path: Some(path.to_path_buf()),
            pace,
            ..target
        })
    }

    /// A file under exclusive access, such as one inside a locked file-system image.
    pub fn held(file: Arc<dyn SpaceFile>) -> Self {
        Self {
            file,
            path: None,
            pace: Pace::Full,
            shared: Shared::Refuse,
            is_disk: false,
            cluster_image: None,
            data_file: None,
            backing: None,
        }
    }

    /// A disk under exclusive access: it has its space and keeps its size, and unwritten parts have
    /// undefined contents.
    pub fn on_disk(file: Arc<dyn SpaceFile>) -> Self {
        Self {
            is_disk: true,
            ..Self::held(file)
        }
    }

    /// The file that holds the guest's data.
    pub fn with_data_file(mut self, data_file: ImageFile) -> Self {
        self.data_file = Some(Box::new(data_file));
        self
    }

    /// The image shows `backing` where it has nothing. It is read, and not changed.
    pub fn with_backing(mut self, backing: Layer) -> Self {
        self.backing = Some(backing);
        self
    }

    /// Opens the files that a qcow2 image of the host names: its data file, which is changed, and
    /// its backing file, which is read. The creator of the image chooses which files of the host
    /// these are.
    ///
    /// # Errors
    /// Those of [`Header::read`], [`host`](Self::host) and [`open_path`].
    pub fn with_named_files(mut self) -> Result<Self> {
        let header = Header::read(&*self.file)?;
        let Some(path) = self.path.clone() else {
            return Ok(self);
        };
        if let Some(name) = header.data_file() {
            let pace = self.pace.clone();
            let data = Self::host(data_file_path(name)?, pace)
                .map_err(|error| explain_missing_data(error, name))?;
            self = self.with_data_file(data);
        }
        if let Some(name) = &header.backing_file {
            let format = backing_format(&header, 0)?;
            let backing = open_path(&beside(&path, name)?, Some(format), ReferencedFiles::Open)?;
            self = self.with_backing(backing);
        }
        Ok(self)
    }

    /// How new space is written, and the treatment of extents shared with other files.
    pub fn with_pace(mut self, pace: Pace, shared: Shared) -> Self {
        (self.pace, self.shared) = (pace, shared);
        self
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn SpaceFile> {
        &self.file
    }

    /// It is a disk, not a file.
    pub fn is_disk(&self) -> bool {
        self.is_disk
    }

    /// Refuses a pace that a disk does not keep.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check_pace(&self) -> Result<()> {
        if self.is_disk && !matches!(self.pace, Pace::Full) {
            return Err(Self::refuse(
                "a rate and the background are for files, not for a disk that holds an image",
            ));
        }
        Ok(())
    }

    pub(crate) fn cluster_image(&self) -> Option<&Arc<Image>> {
        self.cluster_image.as_ref()
    }

    pub(crate) fn data_file(&self) -> Option<&ImageFile> {
        self.data_file.as_deref()
    }

    pub(crate) fn backing(&self) -> Option<&Layer> {
        self.backing.as_ref()
    }

    /// The image for reading, with its data file.
    ///
    /// # Errors
    /// Those of [`Layer::open`].
    pub fn layer(&self, format: Format) -> Result<Layer> {
        let layer = Layer::open(Arc::clone(&self.file), format)?;
        Ok(match &self.data_file {
            None => layer,
            Some(data) => layer.with_data_file(Arc::clone(&data.file)),
        })
    }

    /// # Errors
    /// `NoSpace` with the missing bytes, for a block device of less than `file_bytes`.
    pub(crate) fn check_fits(&self, file_bytes: u64) -> Result<()> {
        if self.is_disk {
            check_fits(file_bytes, self.file.size()?).map_err(|error| {
                error
                    .advice("make the disk larger")
                    .remedy(Remedy::RepairLeaks)
            })
        } else {
            Ok(())
        }
    }

    /// The file gets at least `file_bytes`.
    ///
    /// # Errors
    /// As [`check_fits`](Self::check_fits); and those of the file.
    pub(crate) fn lengthen(&self, file_bytes: u64) -> Result<()> {
        self.check_fits(file_bytes)?;
        if self.file.size()? < file_bytes {
            self.file.resize(file_bytes)
        } else {
            Ok(())
        }
    }

    /// Truncates a file to `file_bytes`, or extends it again; a block device keeps its size.
    pub(crate) fn truncate(&self, file_bytes: u64) -> Result<()> {
        if self.is_disk {
            Ok(())
        } else {
            self.file.resize(file_bytes)
        }
    }

    /// Zeros in `range` of a block device, freeing its space if that is not preallocated, as for a
    /// new image.
    pub(crate) fn zero(&self, range: ByteRange, preallocation: Preallocation) -> Result<()> {
        let ways: &[FallocateMode] = match preallocation {
            Preallocation::Off => &[FallocateMode::PunchHole, FallocateMode::ZeroRangeKeepSize],
            Preallocation::Falloc | Preallocation::Full => &[FallocateMode::ZeroRangeKeepSize],
        };
        for &way in ways {
            match self.file.fallocate(way, range) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                done => return done,
            }
        }
        let zeros = vec![0; TRANSFER_BYTES_MAX.min(range.len()) as usize];
        range.chunks(TRANSFER_BYTES_MAX).try_for_each(|piece| {
            self.file
                .write_at(&zeros[..piece.len() as usize], piece.start())
        })
    }

    /// Allocates or writes the space of `range`, inside the file, as `preallocation` requires.
    /// Existing data is preserved. A disk has its space.
    pub(crate) fn make_space(
        &self,
        range: ByteRange,
        preallocation: Preallocation,
        control: Control<'_>,
    ) -> Result<()> {
        if range.is_empty() || self.is_disk {
            return Ok(());
        }
        let provisioner = Provisioner::new(&*self.file, range, control).at_pace(&self.pace);
        match preallocation {
            Preallocation::Off => Ok(()),
            Preallocation::Falloc => match provisioner.allocate()? {
                None => Ok(()),
                Some(refused) => Err(Error::new(ErrorKind::Unsupported)
                    .detail(format!("this file system cannot reserve space: {refused}"))),
            },
            Preallocation::Full => provisioner.materialize(self.shared).map(drop),
        }
    }

    /// Refuses a change that would lose data silently.
    pub(crate) fn refuse(detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported).detail(detail)
    }
}
