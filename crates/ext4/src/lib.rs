//! The ext4 engine: reads and writes real ext4 file systems, without root and without a mount.
#![doc = include_str!("../README.md")]
//!
//! Definitions: `docs/internals/ext4.md`.
//!
//! Module layers, lowest first:
//!
//! 1. `io`, `new_node`, `options`, `pinned_cache`, `recovered`, `sync`, `system_zone`, `time`:
//!    values, locking, and memory that a user pins
//! 2. `cache`, `tree`: blocks of metadata; extent trees over any store of nodes
//! 3. `block_map`, `inode_cell`: block maps; an inode in memory
//! 4. `commit_notes`, `directory`: the content of the next fast commit; the names of one directory,
//!    linear and hashed, over any store of blocks
//! 5. `transaction`: the changes of the running transaction
//! 6. `groups`: bitmaps and descriptors
//! 7. `inode`: inode tables, and changes of inodes
//! 8. `mapping`, `orphan_list`: the map of one inode; orphans in memory
//! 9. `state`: the shared state of an open file system
//! 10. `engine`, `store`: the state and its journal; block allocation of one inode
//! 11. `orphan`, `xattr`: unfinished work; extended attributes
//! 12. `fast_commit`, `file`: recovery and writing of fast commits; data and `fallocate`
//! 13. `filesystem`, `namespace`: opening, committing and closing; names
//! 14. `node`: files and directories as users of the engine see them
//! 15. `inspect`: the file system as a whole

#![forbid(unsafe_code)]

mod block_map;
mod cache;
mod commit_notes;
mod directory;
mod engine;
mod fast_commit;
mod file;
mod filesystem;
mod groups;
mod inode;
mod inode_cell;
mod inspect;
mod io;
mod mapping;
mod namespace;
mod new_node;
mod node;
mod options;
mod orphan;
mod orphan_list;
mod pinned_cache;
mod recovered;
mod state;
mod store;
mod sync;
mod system_zone;
mod time;
mod transaction;
mod tree;
mod xattr;

pub use extant_ondisk::ext4::inode::{DeviceNumber, FileType, InodeFlags, Timestamp};
pub use extant_ondisk::ext4::{Access, InodeNumber};

pub use file::{WriteTimes, Written};
pub use filesystem::{Filesystem, Shutdown};
pub use inspect::{FoundInode, JournalLook, TreeEntry, TreeNode};
pub use namespace::{ListedName, RenameMode};
pub use new_node::{NewKind, NewNode};
pub use node::{AccessTime, AttributeChange, Attributes, File, FollowLast, Node, Times};
pub use options::{
    AllocatorPolicy, Assign, DeviceZeroes, Discard, GroupScan, OnError, Options, Replay,
    Reservation, Reserve,
};
pub use state::{CacheStatistics, Counters, Statistics};
pub use time::ClockSource;
pub use xattr::XattrMode;
