//! How an image is opened.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, HostCache, HostEngine};
use extant_space::{Error, ErrorKind};

use super::Store;
use crate::Format;

/// Memory for L2 tables: enough to map 256 GiB at the usual sizes.
const CACHE_BYTES: u64 = 32 << 20;

/// How an image is opened.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Whether anything may be changed.
    pub access: ImageAccess,
    /// The format; `None`: by the first bytes. A guest can write those of a raw image, which is
    /// then taken for another format when it is opened again: state the format if it is known.
    pub format: Option<Format>,
    /// Treatment of files that the image names.
    pub referenced: ReferencedStores,
    /// Whether the kernel's page cache is used, for files of the host.
    pub cache: HostCache,
    /// How reads and writes reach the kernel, for files of the host.
    pub engine: HostEngine,
    /// Memory for L2 tables, at least two of them.
    pub cache_bytes: u64,
}

/// Permitted access to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageAccess {
    /// Everything.
    ReadWrite,
    /// Reading. Backing files are always opened so.
    ReadOnly,
}

/// Treatment of the files that an image names: backing file and data file.
#[derive(Clone)]
pub enum ReferencedStores {
    /// An image that needs one is refused.
    Refused,
    /// The files that the image names are opened, and those that they name. The creator of the
    /// image chooses which files of the host are read, and in the case of a data file written.
    Followed,
    /// These files; names in the image are ignored.
    Given {
        /// The source of unallocated clusters.
        backing: Option<Arc<dyn Device>>,
        /// File of the guest's data.
        data: Option<Arc<dyn Store>>,
    },
}

impl Default for DeviceOptions {
    /// For reading and writing through the page cache, without files that the image names.
    fn default() -> Self {
        Self {
            access: ImageAccess::ReadWrite,
            format: None,
            referenced: ReferencedStores::Refused,
            cache: HostCache::Buffered,
            engine: HostEngine::Auto,
            cache_bytes: CACHE_BYTES,
        }
    }
}

impl fmt::Debug for ReferencedStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "Refused",
            Self::Followed => "Followed",
            Self::Given { .. } => "Given",
        })
    }
}

/// The image needs a companion and may not open it.
pub(super) fn not_allowed(what: &str, name: &Path) -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail(format!(
            "the image has a {what} ({}), which was not allowed",
            name.display()
        ))
        .advice(format!("give the {what}, or allow the image to name it"))
}
