//! The block allocator: turns requests of files into runs of blocks, for many threads at a time, and keeps the
//! runs long.
//!
//! Pure algorithm over the bitmaps of block groups: no I/O of its own, and of files it knows an opaque number.
//! From the bottom:
//! - `bits`: the bitmap of a group and its summary;
//! - `group`, `index`: groups, and groups in the order of what they have free;
//! - `search`: the criteria;
//! - `owner`: windows of files that grow, and blocks reused inside a transaction;
//! - `pending`: blocks freed until a commit; `resize`, `check`.
//!
//! Definitions: `docs/design.md`, "mballoc". It stands on the experience of the Linux kernel's ext4 allocator
//! and of the series that made that one scale; [`Options`] can switch each of those parts off.

#![forbid(unsafe_code)]

mod address;
mod allocator;
mod bits;
mod check;
mod counters;
mod geometry;
mod goals;
mod group;
mod index;
mod options;
mod owner;
mod pending;
mod request;
mod resize;
mod search;
mod segments;
mod shared;
mod source;
mod sync;

pub use address::{Block, BlockRange, GroupNumber};
pub use allocator::{Allocator, WithheldBlocks};
pub use counters::{CriterionCounts, Statistics};
pub use geometry::Geometry;
pub use options::{
    BusyGroups, FreedExtents, FullGroups, IndexKind, Options, Policy, Reservation, Reuse,
    SharedState, StreamGoals,
};
pub use owner::{Allocation, Free, Owner};
pub use request::{Alignment, Goal, Request, RequestFlags, TransactionId};
pub use shared::OutOfUse;
pub use source::BitmapSource;
