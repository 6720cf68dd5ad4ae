//! What other programs say of a file or a file system.
//!
//! An oracle shares no code with what it judges: it asks the kernel through somebody
//! else's tool and reads the answer. Answers are typed; a tool that fails, or prints what
//! is not understood, panics with the command and its output.

mod bytes;
mod e2fsck;
mod e4defrag;
mod filefrag;
pub mod qemu;

pub use bytes::{allocated_bytes, assert_same_bytes, assert_zeros, sha256};
pub use e2fsck::{E2fsck, assert_e2fsck_clean, e2fsck};
pub use e4defrag::{Defrag, e4defrag};
pub use filefrag::{FileMap, filefrag, filefrag_count};
