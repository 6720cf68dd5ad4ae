//! Elements of a foreign description of a pool or volume that mean nothing here.

use extant_space::Result;
use serde::{Deserialize, Serialize};

use crate::storage::VolumeFile;

/// The attribute of a volume's file that holds them.
const ATTRIBUTE: &str = "user.extant.libvirt";

/// The elements as text, in the syntax of their description. They are stored with a definition or
/// a volume, and are checked by their reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ForeignElements(String);

impl ForeignElements {
    /// Elements in the form that their reader expects.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Stores the elements with the file.
pub(crate) fn store_foreign(file: &dyn VolumeFile, foreign: &ForeignElements) -> Result<()> {
    file.set_attribute(ATTRIBUTE, foreign.as_str().as_bytes())
        .map_err(|error| error.during("store unknown XML elements"))
}

/// The elements stored with a file. Every process that may write to the file can set them.
pub(crate) fn foreign_of(file: &dyn VolumeFile) -> Result<Option<ForeignElements>> {
    let bytes = file.attribute(ATTRIBUTE)?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
    Ok(bytes.map(|bytes| ForeignElements::new(text(bytes))))
}
