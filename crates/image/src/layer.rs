//! One image and its backing chain, for offline work: reads guest bytes and their map.
//!
//! Model: a layer is a raw or a qcow2 file. Unallocated clusters of a qcow2 file are read from the
//! layer below (its backing file), and its data may be in another file. Names in a header are never
//! followed here: the caller provides the layers below, or calls [`open_path`], which follows names
//! on request.
//!
//! Several threads may read concurrently.

mod extents;
mod open;
mod read;

use std::path::Path;
use std::sync::Arc;

use extant_space::{CancelToken, Error, ErrorKind, Remedy, Result, SpaceFile};

use crate::detect;
use crate::format::Header;
use crate::image_format::Format;
use crate::qcow2::Qcow2;
use crate::referenced_file::unnamed_data_file;

pub use extents::ImageExtent;
pub(crate) use extents::states;
pub use open::{ReferencedFiles, hold_export, hold_file, open_file, open_layer, open_path};

/// An image for reading.
pub struct Layer {
    kind: Kind,
    virtual_bytes: u64,
    /// The file of the guest's data, if separate.
    data_file: Option<Arc<dyn SpaceFile>>,
    backing: Option<Box<Layer>>,
}

enum Kind {
    Raw(Arc<dyn SpaceFile>),
    Qcow2(Qcow2),
}

impl Layer {
    /// Opens the image in `file` without its backing chain.
    ///
    /// # Errors
    /// Those of [`Header::read`]; read errors.
    pub fn open(file: Arc<dyn SpaceFile>, format: Format) -> Result<Self> {
        let kind = match format {
            Format::Raw => Kind::Raw(file),
            Format::Qcow2 => Kind::Qcow2(Qcow2::open(file)?),
        };
        let virtual_bytes = match &kind {
            Kind::Raw(file) => file.size()?,
            Kind::Qcow2(qcow2) => qcow2.header.virtual_bytes,
        };
        Ok(Self {
            kind,
            virtual_bytes,
            data_file: None,
            backing: None,
        })
    }

    /// The format that the first bytes of `file` stand for. A guest can write those of a raw image:
    /// name the format where it is known.
    ///
    /// # Errors
    /// `Unsupported` for images of other formats and compressed files; those of reading.
    pub fn probe(file: &dyn SpaceFile) -> Result<Format> {
        match detect::of_file(file)? {
            None => Ok(Format::Raw),
            Some(detect::Kind::Qcow2) => Ok(Format::Qcow2),
            Some(kind) => Err(kind.refused()),
        }
    }

    /// The layer that is read where this one has nothing.
    pub fn with_backing(mut self, backing: Layer) -> Self {
        self.backing = Some(Box::new(backing));
        self
    }

    /// The file that holds this layer's data.
    pub fn with_data_file(mut self, file: Arc<dyn SpaceFile>) -> Self {
        self.data_file = Some(file);
        self
    }

    /// Walks through the tables of this layer and of those below stop after `cancel`.
    pub fn with_cancel(mut self, cancel: &CancelToken) -> Self {
        if let Kind::Qcow2(qcow2) = &mut self.kind {
            qcow2.cancel = cancel.clone();
        }
        let backing = self.backing.take();
        self.backing = backing.map(|backing| Box::new(backing.with_cancel(cancel)));
        self
    }

    /// Its format.
    pub fn format(&self) -> Format {
        match self.kind {
            Kind::Raw(_) => Format::Raw,
            Kind::Qcow2(_) => Format::Qcow2,
        }
    }

    /// Size of the guest's disk, bytes.
    pub fn virtual_bytes(&self) -> u64 {
        self.virtual_bytes
    }

    /// The header of a qcow2 image.
    pub fn header(&self) -> Option<&Header> {
        self.qcow2().map(|qcow2| &qcow2.header)
    }

    /// Nothing that the image needs is missing.
    ///
    /// # Errors
    /// `InvalidArgument` that names the file that was not given.
    pub fn check_complete(&self) -> Result<()> {
        let Some(header) = self.header() else {
            return Ok(());
        };
        self.check_data_file()?;
        match (&header.backing_file, &self.backing) {
            (Some(name), None) => Err(missing("backing file", name)),
            (_, Some(backing)) => backing.check_complete(),
            (None, None) => Ok(()),
        }
    }

    /// No data file is missing that has no name, so that nothing could open it.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_data_names(&self) -> Result<()> {
        match self.header() {
            Some(header) if header.data_file().is_none() => self.check_data_file()?,
            _ => {}
        }
        let below = self.backing.as_deref();
        below.map_or(Ok(()), Self::check_data_names)
    }

    /// The file of the guest's data exists.
    pub(crate) fn check_data_file(&self) -> Result<()> {
        match self.header() {
            Some(header) if header.has_data_file() && self.data_file.is_none() => {
                Err(missing_data(header))
            }
            _ => Ok(()),
        }
    }

    /// The image's own file.
    pub(crate) fn file(&self) -> &Arc<dyn SpaceFile> {
        match &self.kind {
            Kind::Raw(file) => file,
            Kind::Qcow2(qcow2) => &qcow2.file,
        }
    }

    pub(crate) fn qcow2(&self) -> Option<&Qcow2> {
        match &self.kind {
            Kind::Raw(_) => None,
            Kind::Qcow2(qcow2) => Some(qcow2),
        }
    }

    /// The file that holds the data of clusters.
    fn data(&self) -> Result<&Arc<dyn SpaceFile>> {
        match &self.kind {
            Kind::Raw(file) => Ok(file),
            Kind::Qcow2(qcow2) if qcow2.header.has_data_file() => match &self.data_file {
                Some(file) => Ok(file),
                None => Err(missing_data(&qcow2.header)),
            },
            Kind::Qcow2(qcow2) => Ok(&qcow2.file),
        }
    }
}

/// The data file was not opened.
fn missing_data(header: &Header) -> Error {
    match header.data_file() {
        Some(name) => missing("data file", name),
        None => unnamed_data_file(),
    }
}

/// A file that the image names was not opened.
fn missing(what: &str, name: &Path) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!(
            "the image has a {what} ({}), which was not opened",
            name.display()
        ))
        .remedy(Remedy::OpenNamedFiles)
}
