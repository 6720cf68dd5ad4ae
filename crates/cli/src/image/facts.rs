//! Properties of an image in the JSON of every report: docs/formats/json.md, "file / image".

use extant_image::{ImageInfo, Layer};
use extant_space::Result;
use serde::Serialize;

use crate::file_location::FileLocation;

/// An image and its place.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    #[serde(flatten)]
    pub place: FileLocation,
    #[serde(flatten)]
    pub info: ImageInfo,
}

impl Facts {
    /// Those of an open image.
    ///
    /// # Errors
    /// Those of [`Layer::info`].
    pub fn of(place: FileLocation, layer: &Layer) -> Result<Self> {
        let info = layer.info().map_err(|error| error.at(place.path()))?;
        Ok(Self { place, info })
    }
}
