//! The block allocator: turns requests of files into long runs of blocks, for many threads at a
//! time.
#![doc = include_str!("../README.md")]
//!
//! Pure algorithm over the bitmaps of block groups: it does no I/O and knows a file only by an
//! opaque number. It follows the ext4 allocator of the Linux kernel with the mballoc scalability
//! patches (docs/background.md); the feature `ablation` adds switches that turn each improvement
//! off.
//!
//! Definitions: `docs/internals/mballoc.md`.
//!
//! Module layers, lowest first:
//!
//! 1. `address`, `options`, `segments`, `sync`: numbers, switches, primitives
//! 2. `bits`, `counters`, `geometry`, `request`: the bitmap of a group, and values
//! 3. `goals`, `index`, `source`, `uncommitted`, `windows`: the parts of the shared state
//! 4. `group`, `pending`, `registry`: groups, freed runs, all owners
//! 5. `shared`: the state that the allocator and its owners share
//! 6. `freeing`, `search`: blocks to and from the groups
//! 7. `owner`: requests of one file
//! 8. `allocator`: the public interface
//! 9. `check`, `resize`: the consistency check and online resize

#![forbid(unsafe_code)]

mod address;
mod allocator;
mod bits;
mod check;
mod counters;
mod freeing;
mod geometry;
mod goals;
mod group;
mod index;
mod options;
mod owner;
mod pending;
mod registry;
mod request;
mod resize;
mod search;
mod segments;
mod shared;
mod source;
mod sync;
mod uncommitted;
mod windows;

pub use address::{Block, BlockRange, GroupNumber};
pub use allocator::{Allocator, InFlightDiscard};
pub use counters::{CriterionCounts, Statistics};
pub use geometry::Geometry;
#[cfg(feature = "ablation")]
pub use options::{BusyGroups, FreedExtents, FullGroups, IndexKind, SharedState, StreamGoals};
pub use options::{Options, Policy, Reservation, Reuse, Windows};
pub use owner::{Allocation, Free, Owner};
pub use request::{Alignment, Goal, Request, RequestFlags, TransactionId};
pub use shared::CorruptGroup;
pub use source::BitmapSource;
