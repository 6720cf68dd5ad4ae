//! The protocol's structures and numbers, under the names of its specification.
//!
//! All integers are big-endian. Flags and types are plain numbers here; the modules that receive
//! them validate them.

#![expect(missing_docs, reason = "the specification documents its names")]

pub mod error;
pub mod negotiation;
pub mod reply;
pub mod request;
pub mod status;

/// The longest string of the protocol, in bytes.
pub const STRING_MAX: usize = 4096;
