//! The receiver of a map, extent by extent: the terminal or a JSON document.

use std::io;
use std::path::Path;

use extant_image::Format;
use extant_space::{Error, Extent, LayerStates, MapSummary};

use super::cells::Cells;
use super::names;

/// A file whose map begins.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    /// The path as it is shown.
    pub(super) name: String,
    /// The path in JSON: bytes that are no UTF-8 are replaced.
    pub(super) path: String,
    /// Raw if the file is mapped literally.
    pub(super) format: Format,
    pub(super) size_bytes: u64,
    /// Layers between the file and this one; 0 for the file itself.
    pub(super) depth: u32,
}

impl Opened {
    pub(super) fn new(path: &Path, format: Format, size_bytes: u64) -> Self {
        Self {
            name: names::shown(path),
            path: path.to_string_lossy().into_owned(),
            format,
            size_bytes,
            depth: 0,
        }
    }

    /// A layer below a file of `size_bytes`.
    pub(super) fn layer(layer: &LayerStates, size_bytes: u64) -> Self {
        let path = Path::new(&layer.layer);
        // The end of the path: a column has little room, and JSON has all of it.
        let name = path.file_name().map_or(path, Path::new);
        let mark = "> ".repeat(layer.depth as usize);
        Self {
            name: format!("{mark}{}", names::shown(name)),
            depth: layer.depth,
            ..Self::new(path, Format::Raw, size_bytes)
        }
    }
}

/// A file whose map was read to its end.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    pub(super) opened: Opened,
    pub(super) summary: MapSummary,
    /// At the resolution that was asked for.
    pub(super) cells: Cells,
}

/// Takes maps as they are read. Every `begin` is followed by one `end` or `fail`.
pub(super) trait Listing {
    fn begin(&mut self, file: &Opened) -> io::Result<()>;

    /// The next extent; `fragment` counts the runs on the device so far.
    fn extent(&mut self, extent: &Extent, fragment: u64) -> io::Result<()>;

    fn end(&mut self, file: &Mapped) -> io::Result<()>;

    /// The map of the file that was begun ends early.
    fn fail(&mut self, _error: &Error) -> io::Result<()> {
        Ok(())
    }

    /// After the last file. Errors were reported if there was no file for another reason than that
    /// none was found.
    fn finish(&mut self, total: &MapSummary, files: u64, errors: u64) -> io::Result<()>;
}
