//! Policies of servers for the clients of a device.

/// Whether clients may change the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They may, unless the device is read-only itself.
    ReadWrite,
    /// They may not.
    ReadOnly,
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
