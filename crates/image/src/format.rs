//! The structures of a qcow2 file: header, tables, refcounts, snapshots.
//!
//! As in `extant-ondisk`, a declaration holds every field of a structure once, and values are
//! validated before use: an impossible value is [`Corrupt`](extant_space::ErrorKind::Corrupt), an
//! unknown one [`Unsupported`](extant_space::ErrorKind::Unsupported). The message names the field
//! and its value.
//!
//! Invariants:
//! - no input causes a panic, an endless loop, or memory use beyond the [limits](Header);
//! - unknown parts of a header survive rewriting it.
//!
//! Format: docs/formats/qcow2.md.

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod bitmap;
mod extensions;
mod fault;
mod features;
mod geometry;
mod header;
mod refcount;
mod snapshot;
mod table;

pub(crate) use bitmap::{RawBitmap, RawBitmaps};
pub use extensions::{Extension, Extensions, FeatureName};
pub use features::{Autoclear, Compatible, Incompatible};
pub use geometry::Geometry;
pub use header::{Compression, Header, SnapshotTable, Version};
pub(crate) use header::{RawHeader, RawHeaderV3};
pub use refcount::{RefcountBlock, RefcountTableEntry};
pub use snapshot::{Snapshot, read_snapshots};
pub use table::{CompressedPlace, EntryRules, L1Entry, L2Entry, Mapping};
