//! Block devices: one trait, drivers over files and memory, wrappers over drivers.
#![doc = include_str!("../README.md")]
//!
//! A [`Device`] takes batches of [`Request`]s from any thread, of any size: the driver splits them
//! at its [`Limits`] and keeps the parts in flight together, so that no caller ever splits.
//!
//! Definitions: `docs/internals/blockdev.md`.
//!
//! Module layers, lowest first:
//!
//! 1. `request`, `foreground`: requests and their buffers; how busy a device is
//! 2. `geometry`, `kind`: limits and features; kinds of requests
//! 3. `served`, `split`, `stream`: policies for clients of a server; requests cut at limits;
//!    transfers in order
//! 4. `device`: the trait
//! 5. `runs`, `statistics`, `stoppable`, `throttle`: parts of drivers, and wrappers
//! 6. `host`, `loop_device`, `memory`: drivers
//! 7. `simulation`: devices with faults and power cuts

#![forbid(unsafe_code)]

mod device;
mod foreground;
mod geometry;
mod host;
mod kind;
mod loop_device;
mod memory;
mod request;
mod runs;
mod served;
pub mod simulation;
mod split;
mod statistics;
mod stoppable;
mod stream;
mod throttle;

pub use device::{Assigned, Device, RangeStatus};
pub use geometry::{Features, Geometry, Limits, RangeLimit, SECTOR_BYTES};
pub use host::{HostAccess, HostCache, HostDevice, HostEnd, HostEngine, HostOptions};
pub use kind::OperationKind;
pub use loop_device::{LoopAccess, LoopDevice, LoopOptions};
pub use memory::{MemoryDevice, MemoryOptions};
pub use request::{
    Operation, Persistence, ReadBuffers, Request, Speed, WriteBuffers, ZeroedSpace, Zeroing,
};
pub use served::{Access, DiscardPolicy};
pub use split::submit_within;
pub use statistics::{Histogram, OperationStatistics, Statistics, StatisticsSnapshot};
pub use stoppable::StoppableDevice;
pub use stream::{Transfer, TransferKind, TransferMemory, TransferStream};
pub use throttle::{Throttle, ThrottleOptions};
