//! What lies in a qcow2 file: header, tables, refcounts, snapshots.
//!
//! As in `extant-ondisk`, a declaration holds every field of a structure once, and nothing is believed before it was judged:
//! what cannot be true is [`Corrupt`](extant_space::ErrorKind::Corrupt), what is not known
//! [`Unsupported`](extant_space::ErrorKind::Unsupported), both on a line that names the field and its value.
//!
//! Invariants:
//! - no input makes anything here panic, loop or take memory that the [limits](Header) do not bound;
//! - what is not understood in a header survives its rewriting.
//!
//! Format: docs/formats/qcow2.md.

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
pub use table::{CompressedPlace, L1Entry, L2Entry, Mapping};
