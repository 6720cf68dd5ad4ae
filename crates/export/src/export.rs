//! What is served: a device under a name, and what clients are told of it.
//!
//! Nothing is remembered of a device but that it is there: its size is asked for with every batch of requests, and looked at
//! anew for every client that comes, so that one that grows or shrinks is served as it is.

use std::fmt;
use std::sync::Arc;

use extant_blockdev::{Device, Features, Geometry};
use extant_space::{Error, ErrorKind, Result};

use crate::wire::STRING_MAX;
use crate::wire::negotiation::transmission_flag as flag;
use crate::wire::reply::ReplyStyle;

/// What a client that asks for no block sizes is free to use.
const MINIMUM_BLOCK_ASSUMED: u32 = 512;
/// The smallest that is worth preferring.
const PREFERRED_BLOCK: u32 = 4096;

/// Whether clients may change the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They may, unless the device is read-only itself.
    ReadWrite,
    /// They may not.
    ReadOnly,
}

/// What becomes of space that clients need no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unneeded {
    /// Trims and zeros give it back where the device does so.
    #[default]
    GivenBack,
    /// It stays: trims are not offered, and zeros leave space behind.
    Kept,
}

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    access: Access,
    unneeded: Unneeded,
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
            unneeded: Unneeded::default(),
            device,
        })
    }

    /// The same, with space that clients need no more given back or kept. Given back unless said.
    #[must_use]
    pub fn with_unneeded(self, unneeded: Unneeded) -> Self {
        Self { unneeded, ..self }
    }

    /// What clients ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For the users of clients.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn is_read_only(&self, geometry: &Geometry) -> bool {
        self.access == Access::ReadOnly || geometry.features.contains(Features::READ_ONLY)
    }

    pub(crate) fn keeps_space(&self) -> bool {
        self.unneeded == Unneeded::Kept
    }

    /// The extent map is offered as a metadata context.
    pub(crate) fn tells_extents(&self) -> bool {
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
            if geometry.features.contains(Features::DISCARD) && !self.keeps_space() {
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

    /// The unit of offsets and lengths, and the unit that is best.
    pub(crate) fn block_sizes(&self) -> (u32, u32) {
        let geometry = self.device.geometry();
        let preferred = geometry.physical_block.max(PREFERRED_BLOCK);
        (
            geometry.logical_block,
            preferred.max(geometry.logical_block),
        )
    }

    /// Clients that know nothing of block sizes would use smaller ones.
    pub(crate) fn needs_block_sizes(&self) -> bool {
        self.device.geometry().logical_block > MINIMUM_BLOCK_ASSUMED
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
    /// The first one is the default: what a client gets that gives no name.
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

    /// The export of that name; an export that is itself named by no bytes goes before the default.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Export>> {
        let named = self.iter().find(|export| export.name == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}
