//! An export: a device under a name, and the properties that the server advertises for it.
//!
//! The server caches no property of the device. It queries the geometry for every batch of
//! requests and for every new client, so a device may be resized while it is served.

use std::fmt;
use std::sync::Arc;

use extant_blockdev::{Access, Device, DiscardPolicy, Features, Geometry};
use extant_space::{Error, ErrorKind, Result};

use extant_nbd::wire::STRING_MAX;
use extant_nbd::wire::negotiation::transmission_flag as flag;
use extant_nbd::wire::reply::ReplyStyle;

/// A client that does not request block sizes may assume this one (NBD, "Block size constraints").
const ASSUMED_BLOCK_BYTES: u32 = 512;
/// Lower bound of the preferred block size.
const PREFERRED_BLOCK_BYTES_MIN: u32 = 4096;

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    access: Access,
    discard: DiscardPolicy,
    device: Arc<dyn Device>,
}

impl Export {
    /// `device` under `name`, which clients see, with `description` for their users (may be empty).
    ///
    /// # Errors
    /// `InvalidArgument` when a text is longer than 4096 bytes or has a NUL in it.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        device: Arc<dyn Device>,
        access: Access,
    ) -> Result<Self> {
        let (name, description) = (name.into(), description.into());
        for (what, text) in [("name", &name), ("description", &description)] {
            if text.len() > STRING_MAX || text.contains('\0') {
                return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                    "the {what} of an export is at most {STRING_MAX} bytes without NUL"
                )));
            }
        }
        Ok(Self {
            name,
            description,
            access,
            discard: DiscardPolicy::default(),
            device,
        })
    }

    /// The same export with another discard policy; the default is `Unmap`.
    #[must_use]
    pub fn with_discard_policy(self, discard: DiscardPolicy) -> Self {
        Self { discard, ..self }
    }

    /// The name that clients request.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description that clients show to their users.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn is_read_only(&self, geometry: &Geometry) -> bool {
        self.access.is_read_only(geometry)
    }

    pub(crate) fn discard_policy(&self) -> DiscardPolicy {
        self.discard
    }

    /// The metadata context `extant:state` is offered.
    pub(crate) fn reports_extents(&self) -> bool {
        self.device.geometry().features.contains(Features::EXTENTS)
    }

    pub(crate) fn transmission_flags(&self, style: ReplyStyle) -> u16 {
        let geometry = self.device.geometry();
        let mut flags = flag::HAS_FLAGS | flag::CAN_MULTI_CONN | flag::SEND_FLUSH | flag::SEND_FUA;
        flags |= flag::SEND_CACHE;
        if self.is_read_only(&geometry) {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
            if self.discard.offers_discard(&geometry) {
                flags |= flag::SEND_TRIM;
            }
        }
        if style >= ReplyStyle::Structured {
            flags |= flag::SEND_DF;
        }
        if style == ReplyStyle::Extended {
            flags |= flag::BLOCK_STAT_PAYLOAD;
        }
        flags
    }

    /// Minimum and preferred block size.
    pub(crate) fn block_sizes(&self) -> (u32, u32) {
        let geometry = self.device.geometry();
        let preferred = geometry.physical_block.max(PREFERRED_BLOCK_BYTES_MIN);
        (
            geometry.logical_block,
            preferred.max(geometry.logical_block),
        )
    }

    /// A client that does not request block sizes could send unaligned requests.
    pub(crate) fn needs_block_sizes(&self) -> bool {
        self.device.geometry().logical_block > ASSUMED_BLOCK_BYTES
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.device.geometry().size;
        write!(
            f,
            "Export({:?}, {:?}, {size} bytes)",
            self.name, self.access
        )
    }
}

/// The exports of a server.
#[derive(Clone, Debug)]
pub struct Exports(Vec<Arc<Export>>);

impl Exports {
    /// The first one is the default export, which the empty name selects.
    ///
    /// # Errors
    /// `InvalidArgument` without an export, `AlreadyExists` for two of a name.
    pub fn new(exports: Vec<Export>) -> Result<Self> {
        if exports.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail("nothing to export"));
        }
        for (at, export) in exports.iter().enumerate() {
            if exports[..at].iter().any(|other| other.name == export.name) {
                return Err(Error::new(ErrorKind::AlreadyExists)
                    .detail(format!("two exports are named {:?}", export.name)));
            }
        }
        Ok(Self(exports.into_iter().map(Arc::new).collect()))
    }

    /// All of them, the default first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }

    /// The export of that name. The empty name selects the export with an empty name if there is
    /// one, otherwise the default.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Export>> {
        let named = self.iter().find(|export| export.name == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}
