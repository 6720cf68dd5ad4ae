//! The receiver of a map, extent by extent: the terminal or a JSON document.

use std::io;
use std::path::Path;

use extant_hostfs::DeviceBelow;
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
    /// The block devices that it is on, down to the next file or disk, if layers are shown.
    pub(super) devices: Vec<DeviceBelow>,
}

impl Opened {
    pub(super) fn new(path: &Path, format: Format, size_bytes: u64) -> Self {
        Self {
            name: names::shown(path),
            path: path.to_string_lossy().into_owned(),
            format,
            size_bytes,
            depth: 0,
            devices: Vec::new(),
        }
    }

    /// As being on those of `devices` that store it.
    pub(super) fn on(self, devices: &[DeviceBelow]) -> Self {
        let own = devices.iter().filter(|device| device.layer == self.path);
        Self {
            devices: own.cloned().collect(),
            ..self
        }
    }

    /// The devices, from the top down: `/dev/loop0 (loop), /dev/vda (disk)`.
    pub(super) fn devices_text(&self) -> Option<String> {
        let devices = self.devices.iter().map(crate::layers::device);
        let devices: Vec<String> = devices.collect();
        (!devices.is_empty()).then(|| devices.join(", "))
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

/// Prints nothing, for pictures alone.
pub(super) struct Unlisted;

impl Listing for Unlisted {
    fn begin(&mut self, _: &Opened) -> io::Result<()> {
        Ok(())
    }

    fn extent(&mut self, _: &Extent, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self, _: &Mapped) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &MapSummary, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
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
