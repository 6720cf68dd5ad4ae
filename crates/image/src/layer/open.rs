//! Images of the host, and the files that they name, where these may be opened.

use std::path::Path;
use std::sync::Arc;

use extant_hostfs::HostFile;
use extant_space::Result;

use super::Layer;
use crate::image_format::Format;
use crate::referenced_file::{backing_format, beside};

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

/// Opens the image in `path` for reading; without `format` its first bytes decide.
///
/// # Errors
/// Those of [`Layer::open`]; `Unsupported` for names and formats that cannot be read here.
pub fn open_path(path: &Path, format: Option<Format>, follow: ReferencedFiles) -> Result<Layer> {
    open_in_chain(path, format, follow, 0)
}

fn open_in_chain(
    path: &Path,
    format: Option<Format>,
    follow: ReferencedFiles,
    depth: u32,
) -> Result<Layer> {
    let file = Arc::new(HostFile::open_read(path)?);
    let format = match format {
        Some(format) => format,
        None => Layer::probe(&*file)?,
    };
    let mut layer = Layer::open(file, format).map_err(|error| error.at(path))?;
    let Some(header) = layer.header().filter(|_| follow == ReferencedFiles::Open) else {
        return Ok(layer);
    };
    let header = header.clone();
    if let Some(name) = header.data_file() {
        let place = beside(path, name).map_err(|error| error.at(path))?;
        layer = layer.with_data_file(Arc::new(HostFile::open_read(&place)?));
    }
    if let Some(name) = &header.backing_file {
        let format = backing_format(&header, depth).map_err(|error| error.at(path))?;
        let place = beside(path, name).map_err(|error| error.at(path))?;
        layer = layer.with_backing(open_in_chain(&place, Some(format), follow, depth + 1)?);
    }
    Ok(layer)
}
