//! Devices that fail, file systems that are full, images that are wrong.
//!
//! - `failing`: errors of the device at every request of a scenario; `reads`: reads that are wrong;
//! - `orphans`: orphans that are not as they should be;
//! - `full`: no space at every allocation; `policy`: the recorded error, and the behaviour after
//!   it;
//! - `panics`: panics in the middle of changes;
//! - `device`: devices that are short or read-only; `through`: layers below that refuse zeros;
//! - `corrupt`: damaged images, under a watch (`watch`) for time, and a bound of memory.
//!
//! `EXTANT_TROUBLE_SEEDS=A..B` runs those seeds of damage instead of the few of every day.

mod corrupt;
mod device;
mod failing;
mod full;
mod image;
mod orphans;
mod panics;
mod policy;
mod reads;
mod scenario;
mod through;
mod watch;
