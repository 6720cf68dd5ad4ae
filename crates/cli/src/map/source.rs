//! Location of the mapped files: on the host, or inside an image.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_ext4::{FileType, FollowLast, InodeNumber};
use extant_hostfs::DeviceBelow;
use extant_image::detect::{self, Kind};
use extant_image::{Format, open_file};
use extant_space::{ErrorKind, MapSummary, Result, SpaceFile};

use super::disk::Disk;
use super::geometry::Geometry;
use super::walk::{Boundary, Hidden, MapFile, Walk};
use crate::fs_image::names::last;
use crate::fs_image::walk::{Enter, OnError, walk};
use crate::fs_image::{At, Image, path_of};
use crate::image_format::{self, Meaning};

/// Finds and opens files.
pub(super) trait Source {
    /// The files that `paths` stand for; an error stands for one file or directory.
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<MapFile>> + 'a>;

    /// Opens one.
    fn open(&self, path: &Path) -> Result<Arc<dyn SpaceFile>>;

    /// The block devices below it on the host, those of all layers; none where they are not shown.
    fn devices_below(&self, path: &Path) -> Vec<DeviceBelow>;

    /// The empty summary that scores it as its file system asks for.
    fn summary_for(&self, path: &Path) -> MapSummary;
}

/// Selects the contents to map: the file itself, or the guest's disk in it. A file found below a
/// directory is shown by its certain format; only an argument is refused if its name and contents
/// contradict each other.
///
/// # Errors
/// Those of detection, and of opening the image.
pub(super) fn shown(
    found: &MapFile,
    said: Option<Format>,
    file: Arc<dyn SpaceFile>,
) -> Result<(Arc<dyn SpaceFile>, Format)> {
    let is_image_by_name = detect::of_name(&found.path) == Some(Kind::Qcow2);
    // The contents of all files below a directory are not read for their maps.
    if !found.is_argument && !is_image_by_name {
        return Ok((file, Format::Raw));
    }
    let meaning = match image_format::meaning(&found.path, said, &*file) {
        Err(error) if error.kind() == ErrorKind::Unsupported && !found.is_argument => Meaning::File,
        meaning => meaning?,
    };
    Ok(match meaning {
        Meaning::File => (file, Format::Raw),
        Meaning::Disk => match (
            Disk::open(Arc::clone(&file), &found.path),
            found.is_argument,
        ) {
            (Err(_), false) => (file, Format::Raw),
            (disk, _) => (Arc::new(disk?), Format::Qcow2),
        },
    })
}

/// The host.
pub(super) struct HostSource {
    boundary: Boundary,
    hidden: Hidden,
    geometry: RefCell<Geometry>,
}

impl HostSource {
    pub(super) fn new(boundary: Boundary, hidden: Hidden) -> Self {
        Self {
            boundary,
            hidden,
            geometry: RefCell::default(),
        }
    }
}

impl Source for HostSource {
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<MapFile>> + 'a> {
        Box::new(Walk::new(paths, self.boundary, self.hidden))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn SpaceFile>> {
        open_file(path)
    }

    fn devices_below(&self, path: &Path) -> Vec<DeviceBelow> {
        extant_hostfs::devices_below(path).unwrap_or_default()
    }

    fn summary_for(&self, path: &Path) -> MapSummary {
        self.geometry.borrow_mut().summary_for(path)
    }
}

/// An image.
pub(super) struct ImageSource(pub(super) Image, pub(super) Hidden);

impl Source for ImageSource {
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<MapFile>> + 'a> {
        let mut linked = HashSet::new();
        let found = paths.iter().flat_map(|path| self.below(path, &mut linked));
        Box::new(found.collect::<Vec<_>>().into_iter())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn SpaceFile>> {
        let node = self.0.resolve(path, FollowLast::Yes)?;
        let file = node
            .file()
            .at_inner(&self.0, path.as_os_str().as_encoded_bytes())?;
        Ok(Arc::new(file))
    }

    fn devices_below(&self, _: &Path) -> Vec<DeviceBelow> {
        extant_hostfs::devices_below(self.0.path()).unwrap_or_default()
    }

    fn summary_for(&self, _: &Path) -> MapSummary {
        self.0.summary()
    }
}

impl ImageSource {
    /// The file at `path`, or the regular files below it: of several names of a file the first.
    fn below(&self, path: &Path, linked: &mut HashSet<InodeNumber>) -> Vec<Result<MapFile>> {
        let node = match self.0.resolve(path, FollowLast::Yes) {
            Ok(node) => node,
            Err(error) => return vec![Err(error)],
        };
        if node.file_type() != FileType::Directory {
            return vec![Ok(MapFile {
                path: path.to_path_buf(),
                is_argument: true,
            })];
        }
        let mut found = Vec::new();
        let bytes = path.as_os_str().as_encoded_bytes();
        let walked = walk(&self.0, &node, bytes, OnError::Stop, &mut |step| {
            if !self.1.shows(last(step.path)) {
                return Ok(Enter::No);
            }
            let attributes = step.node.attributes();
            if attributes.file_type == FileType::Regular
                && (attributes.links < 2 || linked.insert(attributes.inode))
            {
                found.push(Ok(MapFile {
                    path: path_of(step.path.to_vec()),
                    is_argument: false,
                }));
            }
            Ok(Enter::Yes)
        });
        found.extend(walked.err().map(Err));
        found
    }
}
