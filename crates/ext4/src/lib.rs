//! The ext4 engine: reads and writes real ext4 file systems, without root and without a mount.
//!
//! From the bottom:
//! - `cache`, `transaction`: blocks of metadata, and what the running transaction has changed;
//! - `groups`, `inode`: bitmaps and descriptors, inode tables; `store`, `orphan`;
//! - `tree`, `block_map`: where the blocks of one file are, over any store of nodes;
//! - `directory`: the names of one directory, linear and hashed, over any store of blocks;
//! - `file`: data and `fallocate`; `namespace`: names; `xattr`: extended attributes;
//! - `filesystem`: opening, committing, closing; `node`: what users of the engine see;
//! - `inspect`: looking at the file system as a whole.
//!
//! Definitions: `docs/design.md`, "ext4".

#![forbid(unsafe_code)]

mod block_map;
mod cache;
mod directory;
mod fast_commit;
mod file;
mod filesystem;
mod groups;
mod held;
mod inode;
mod inspect;
mod io;
mod mapping;
mod namespace;
mod node;
mod options;
mod orphan;
mod recovered;
mod store;
mod sync;
mod system_zone;
mod time;
mod transaction;
mod tree;
mod xattr;

pub use extant_ondisk::ext4::inode::{DeviceNumber, FileType, InodeFlags, Timestamp};
pub use extant_ondisk::ext4::{Access, InodeNumber};

pub use filesystem::{Filesystem, Shutdown, Statistics};
pub use inspect::{FoundInode, JournalLook, TreeEntry, TreeNode};
pub use namespace::{ListedName, NewKind, NewNode, RenameMode};
pub use node::{AccessTime, AttributeChange, Attributes, File, FollowLast, Node, Times};
pub use options::{Assign, DeviceZeroes, Discard, OnError, Options, Replay, Reserve};
pub use xattr::XattrMode;
