//! Images of the host, of NBD servers and of Ceph clusters, and the files that they name, where
//! these may be opened.

use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{HostAccess, HostOptions};
use extant_hostfs::HostFile;
use extant_space::{Result, SpaceFile};

use super::Layer;
use crate::hold::{OpenDevice, is_export, open_device, open_export};
use crate::image_format::Format;
use crate::lock::{LockAccess, lock};
use crate::referenced_file::{backing_format, beside, data_file_path, explain_missing_data};
use crate::store::{Store, StoreFile};

/// Treatment of files that an image names: backing file and data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferencedFiles {
    /// They are not opened.
    #[default]
    Ignore,
    /// They are opened for reading, and those that they name. The creator of the image chooses
    /// which files of the host are read.
    Open,
}

/// Opens the file, disk, NBD export or RBD image at `path` for reading, without locks.
///
/// # Errors
/// Those of [`HostFile::open_read`] and [`open_export`].
pub fn open_file(path: &Path) -> Result<Arc<dyn SpaceFile>> {
    Ok(match open_export(path) {
        Some(export) => Arc::new(StoreFile(export?)),
        None => Arc::new(HostFile::open_read(path)?),
    })
}

/// As [`open_file`], for an export or an image of a cluster. Other clients that change the image
/// are refused; those of an export are not known. `None` for other paths.
///
/// # Errors
/// Those of [`open_device`]; `InUse` with the writer.
pub fn hold_export(path: &Path) -> Option<Result<Arc<dyn SpaceFile>>> {
    if !is_export(path) {
        return None;
    }
    let options = HostOptions {
        access: HostAccess::ReadOnly,
        ..HostOptions::default()
    };
    let store = open_device(path, &options).map(|opened| -> Arc<dyn Store> {
        match opened {
            OpenDevice::Host(device) => Arc::new(device),
            OpenDevice::Nbd(export) => Arc::new(export),
            OpenDevice::Rbd(image) => Arc::new(image),
        }
    });
    Some(store.map(|store| Arc::new(StoreFile(store)) as _))
}

/// As [`open_file`], with a lock against writers until the file is dropped.
///
/// # Errors
/// As [`open_file`]; `InUse` with the writer.
pub fn hold_file(path: &Path) -> Result<Arc<dyn SpaceFile>> {
    if let Some(held) = hold_export(path) {
        return held;
    }
    let file = HostFile::open_read(path)?;
    lock(&file, LockAccess::Read).map_err(|error| error.at(path))?;
    Ok(Arc::new(file))
}

/// Opens the image in `path` for reading; without `format` its first bytes decide.
///
/// # Errors
/// Those of [`Layer::open`]; `Unsupported` for names and formats that cannot be read here.
pub fn open_path(path: &Path, format: Option<Format>, follow: ReferencedFiles) -> Result<Layer> {
    let file = open_file(path)?;
    let format = match format {
        Some(format) => format,
        None => Layer::probe(&*file)?,
    };
    open_layer(file, path, format, follow)
}

/// Opens the image in `file`, which is that at `path`, for reading.
///
/// # Errors
/// As [`open_path`].
pub fn open_layer(
    file: Arc<dyn SpaceFile>,
    path: &Path,
    format: Format,
    follow: ReferencedFiles,
) -> Result<Layer> {
    open_in_chain(file, path, format, follow, 0)
}

fn open_in_chain(
    file: Arc<dyn SpaceFile>,
    path: &Path,
    format: Format,
    follow: ReferencedFiles,
    depth: u32,
) -> Result<Layer> {
    let mut layer = Layer::open(file, format).map_err(|error| error.at(path))?;
    let Some(header) = layer.header().filter(|_| follow == ReferencedFiles::Open) else {
        return Ok(layer);
    };
    let header = header.clone();
    if let Some(name) = header.data_file() {
        let place = data_file_path(name).map_err(|error| error.at(path))?;
        let data = open_file(place).map_err(|error| explain_missing_data(error, name))?;
        layer = layer.with_data_file(data);
    }
    if let Some(name) = &header.backing_file {
        let format = backing_format(&header, depth).map_err(|error| error.at(path))?;
        let place = beside(path, name).map_err(|error| error.at(path))?;
        let file = open_file(&place)?;
        layer = layer.with_backing(open_in_chain(file, &place, format, follow, depth + 1)?);
    }
    Ok(layer)
}
