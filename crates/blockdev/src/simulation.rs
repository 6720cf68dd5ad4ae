//! Devices that fail as real ones do, reproducibly for a seed.
//!
//! Two wrappers, which may be stacked:
//!
//! - [`CrashDevice`] is a disk with a volatile cache over memory. It records every change, and
//!   produces the states that a power cut may leave: at a moment of the run
//!   ([`CrashDevice::power_cut`]), or afterwards at every moment of it ([`WriteLog::crashes`]).
//! - [`FaultyDevice`] wraps any device and injects faults by rules: errors, delays, lost, torn and
//!   misdirected writes, flipped bits. Over a `CrashDevice`, the log contains the changes that
//!   reached the disk.
//!
//! State of the device after a power cut, by the rules of the kernel's block layer:
//!
//! - A change is durable when it was written with FUA and has completed, or when a flush has
//!   completed that was submitted after the change had completed. Requests of one batch, and those
//!   of threads that do not wait for each other, are unordered: a flush covers none of its own
//!   batch.
//! - Of every other change each block is kept or lost independently: writes are torn and reordered.
//!   A block written by several changes holds the data of one of them, or the durable data before
//!   them; nothing older than that.
//!
//! The test of a layer above looks like this:
//!
//! ```
//! use extant_blockdev::simulation::{CrashDevice, CrashOptions};
//! use extant_blockdev::{Device, MemoryDevice, Persistence};
//!
//! # fn main() -> extant_space::Result<()> {
//! let device = CrashDevice::new(MemoryDevice::new(1 << 20));
//! device.write_at(&[1; 512], 0, Persistence::Cached)?;
//! device.flush()?;
//! device.mark("first is promised");
//! device.write_at(&[2; 512], 4096, Persistence::Cached)?;
//!
//! for crash in device.into_log().crashes(CrashOptions::seeded(7)) {
//!     let mut block = [0; 512];
//!     crash.image.read_at(&mut block, 0)?;
//!     assert!(crash.mark().is_none() || block == [1; 512], "{crash}");
//! }
//! # Ok(())
//! # }
//! ```

mod cache;
mod change;
mod crash;
mod crash_device;
mod faults;
mod log;
mod seed;
mod tear;

pub use change::Change;
pub use crash::{CrashOptions, CrashState, Crashes};
pub use crash_device::{CacheMode, CrashDevice, Survivors};
pub use faults::{Clock, Done, Fault, FaultRule, FaultyDevice, When};
pub use log::{Event, LogCursor, WriteLog};
