//! Location of a file: on the host, or inside a file-system image.

use std::path::{Path, PathBuf};

use extant_image::hold;
use extant_space::Result;
use serde::{Serialize, Serializer};

/// Refuses an NBD export and an image of a cluster where only a file of the host has a meaning.
///
/// # Errors
/// `Unsupported`.
pub fn refuse_export(path: &Path) -> Result<()> {
    hold::refuse_export(path)
        .map_err(|error| error.advice("these are for fs, mount, serve, map, image, pools and --in"))
}

/// A path of the host, or inside a file-system image.
#[derive(Clone, Debug, Serialize)]
pub struct FileLocation {
    /// The file-system image that contains it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "lossy_some")]
    image: Option<PathBuf>,
    #[serde(serialize_with = "lossy")]
    path: PathBuf,
}

impl FileLocation {
    /// A path of the host, or inside `image`.
    pub fn new(path: &Path, image: Option<&Path>) -> Self {
        Self {
            image: image.map(Path::to_path_buf),
            path: path.to_path_buf(),
        }
    }

    /// The path on the host or inside the ext4 image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// In one line, `IMAGE:/path` inside an ext4 image.
    pub fn shown(&self) -> PathBuf {
        let Some(image) = &self.image else {
            return self.path.clone();
        };
        let mut shown = image.as_os_str().to_owned();
        shown.push(":");
        shown.push(&self.path);
        PathBuf::from(shown)
    }

    /// It is a file of the host.
    pub fn is_on_host(&self) -> bool {
        self.image.is_none()
    }
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.to_string_lossy())
}

fn lossy_some<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match path {
        Some(path) => lossy(path, serializer),
        None => serializer.serialize_none(),
    }
}
