//! The block allocator: concurrent allocation of long runs of blocks for files.
//!
//! An algorithm over the bitmaps of block groups: it does no I/O of its own, and knows files as
//! opaque numbers. From the bottom:
//! - `bits`: the bitmap of a group and its summary;
//! - `group`, `index`: groups, and groups ordered by their free runs;
//! - `search`: the criteria;
//! - `owner`: windows of growing files, and blocks reused inside a transaction;
//! - `pending`: blocks freed until a commit; `resize`, `check`.
//!
//! Definitions: `docs/internals/mballoc.md`. The design follows the Linux kernel's ext4 allocator
//! and its scalability patches (`docs/background.md`); [`Options`] can switch off each part.

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
