//! The protocol's structures and numbers, under the names of its specification.
//!
//! All integers are big-endian. Flags and types are plain numbers here; the modules that receive
//! them validate them.

pub(crate) mod error;
pub(crate) mod negotiation;
pub(crate) mod reply;
pub(crate) mod request;

/// The longest string of the protocol, in bytes.
pub(crate) const STRING_MAX: usize = 4096;
