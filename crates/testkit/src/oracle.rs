//! Results of other programs for a file or a file system.
//!
//! An oracle shares no code with the code under test: it runs another project's tool and parses
//! its output into a type. If the tool fails, or the output cannot be parsed, it panics with the
//! command and the output.

mod bytes;
mod e2fsck;
mod e4defrag;
mod filefrag;
pub mod qemu;

pub use bytes::{allocated_bytes, assert_same_bytes, assert_zeros, sha256};
pub use e2fsck::{E2fsck, assert_e2fsck_clean, e2fsck};
pub use e4defrag::{Defrag, e4defrag};
pub use filefrag::{FileMap, filefrag, filefrag_count, filefrag_map};
