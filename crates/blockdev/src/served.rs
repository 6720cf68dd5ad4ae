//! Policies of servers for the clients of a device.

use crate::{Features, Geometry, ZeroedSpace};

/// Whether clients may change the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They may, unless the device is read-only itself.
    ReadWrite,
    /// They may not.
    ReadOnly,
}

impl Access {
    /// Whether nothing may be changed, by this policy or by the device itself.
    #[must_use]
    pub fn is_read_only(self, device: &Geometry) -> bool {
        self == Self::ReadOnly || device.features.contains(Features::READ_ONLY)
    }

    /// A word for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
        }
    }
}

/// How a server handles discards and write-zeroes requests that allow a hole (QEMU: `discard=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardPolicy {
    /// Both deallocate where the device supports it.
    #[default]
    Unmap,
    /// Discards are not offered, and zeroed ranges stay allocated.
    Ignore,
}

impl DiscardPolicy {
    /// Whether clients are offered discards; a read-only server offers none.
    #[must_use]
    pub fn offers_discard(self, device: &Geometry) -> bool {
        self == Self::Unmap && device.features.contains(Features::DISCARD)
    }

    /// The space of a range after a write zeroes whose client permits a hole or not.
    #[must_use]
    pub fn zeroed_space(self, may_unmap: bool) -> ZeroedSpace {
        if may_unmap && self == Self::Unmap {
            ZeroedSpace::MayUnmap
        } else {
            ZeroedSpace::Allocated
        }
    }
}
