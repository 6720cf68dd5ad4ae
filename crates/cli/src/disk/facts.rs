//! What an image is, as the JSON of every result has it: docs/formats/json.md, "file / image".

use std::path::{Path, PathBuf};

use extant_image::{ImageInfo, Layer};
use extant_space::Result;
use serde::{Serialize, Serializer};

/// Where an image is.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The ext4 image that it is inside of.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "lossy_some")]
    image: Option<PathBuf>,
    #[serde(serialize_with = "lossy")]
    path: PathBuf,
}

impl Place {
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

/// An image and its place.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    #[serde(flatten)]
    pub place: Place,
    #[serde(flatten)]
    pub info: ImageInfo,
}

impl Facts {
    /// Those of an open image.
    ///
    /// # Errors
    /// Those of [`Layer::info`].
    pub fn of(place: Place, layer: &Layer) -> Result<Self> {
        let info = layer.info().map_err(|error| error.at(place.path()))?;
        Ok(Self { place, info })
    }
}
