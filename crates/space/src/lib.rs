//! The vocabulary of all layers: ranges, extents and their states,
//! fallocate modes, errors, progress and cancellation.
#![doc = include_str!("../README.md")]
//!
//! Definitions: `docs/design.md`, "Vocabulary".
//!
//! Module layers, lowest first:
//!
//! 1. `corruption`, `digest`, `fallocate`, `range`, `remedy`, `size`, `trace`: values without
//!    errors of their own, and events
//! 2. `error`, `extent`: values that name ranges and sizes
//! 3. `background_share`, `cancel`, `layer`, `preallocation`, `summary`, `thread`: a share of a
//!    disk, errors of cancels, values of extents, and the start of threads
//! 4. `file`: the trait
//! 5. `layer_states`, `progress`, `rate`: figures of layers; reports, cancellation and pacing of
//!    long work

#![forbid(unsafe_code)]

mod background_share;
mod cancel;
mod corruption;
mod digest;
mod error;
mod extent;
mod fallocate;
mod file;
mod layer;
mod layer_states;
mod preallocation;
mod progress;
mod range;
mod rate;
mod remedy;
mod size;
mod summary;
pub mod thread;
pub mod trace;

pub use background_share::BackgroundShare;
pub use cancel::CancelToken;
pub use corruption::Corruption;
pub use digest::fnv1a;
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, ExtentFlags, ExtentState};
pub use fallocate::FallocateMode;
pub use file::{HostIo, MapDetail, SpaceFile, SyncMode};
pub use layer::{LayerExtent, LayerRange, LayerVisitor};
pub use layer_states::LayerStates;
pub use preallocation::Preallocation;
pub use progress::{Control, MappedProgress, Phase, Progress, ProgressSink, Silent};
pub use range::ByteRange;
pub use rate::{RateLimiter, SharedRate, TokenBucket};
pub use remedy::Remedy;
pub use size::{ByteSize, ParseSizeError};
pub use summary::MapSummary;
