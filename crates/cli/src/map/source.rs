//! Where the files are that are mapped: on the host, or inside an image.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use extant_ext4::{FileType, FollowLast};
use extant_hostfs::HostFile;
use extant_space::{MapSummary, Result, SpaceFile};

use super::geometry::Geometry;
use super::walk::{Boundary, Walk};
use crate::image::walk::{Enter, walk};
use crate::image::{At, Image, path_of};

/// Finds and opens files.
pub(super) trait Source {
    /// The files that `paths` stand for; an error stands for one file or directory.
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<PathBuf>> + 'a>;

    /// Opens one.
    fn open(&self, path: &Path) -> Result<Box<dyn SpaceFile>>;

    /// The empty summary that scores it as its file system asks for.
    fn summary_for(&self, path: &Path) -> MapSummary;
}

/// The host.
pub(super) struct HostSource {
    boundary: Boundary,
    geometry: RefCell<Geometry>,
}

impl HostSource {
    pub(super) fn new(boundary: Boundary) -> Self {
        Self {
            boundary,
            geometry: RefCell::default(),
        }
    }
}

impl Source for HostSource {
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<PathBuf>> + 'a> {
        Box::new(Walk::new(paths, self.boundary))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn SpaceFile>> {
        Ok(Box::new(HostFile::open_read(path)?))
    }

    fn summary_for(&self, path: &Path) -> MapSummary {
        self.geometry.borrow_mut().summary_for(path)
    }
}

/// An image.
pub(super) struct ImageSource(pub(super) Image);

impl Source for ImageSource {
    fn files<'a>(&'a self, paths: &[PathBuf]) -> Box<dyn Iterator<Item = Result<PathBuf>> + 'a> {
        let found = paths.iter().flat_map(|path| self.below(path));
        Box::new(found.collect::<Vec<_>>().into_iter())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn SpaceFile>> {
        let node = self.0.resolve(path, FollowLast::Yes)?;
        let file = node
            .file()
            .at_inner(&self.0, path.as_os_str().as_encoded_bytes())?;
        Ok(Box::new(file))
    }

    fn summary_for(&self, _: &Path) -> MapSummary {
        self.0.summary()
    }
}

impl ImageSource {
    /// The file at `path`, or the regular files below it.
    fn below(&self, path: &Path) -> Vec<Result<PathBuf>> {
        let node = match self.0.resolve(path, FollowLast::Yes) {
            Ok(node) => node,
            Err(error) => return vec![Err(error)],
        };
        if node.file_type() != FileType::Directory {
            return vec![Ok(path.to_path_buf())];
        }
        let mut found = Vec::new();
        let bytes = path.as_os_str().as_encoded_bytes();
        let walked = walk(&self.0, &node, bytes, &mut |step| {
            if step.node.file_type() == FileType::Regular {
                found.push(Ok(path_of(step.path.to_vec())));
            }
            Ok(Enter::Yes)
        });
        found.extend(walked.err().map(Err));
        found
    }
}
