//! Power cuts at every write of a workload.
//!
//! - `step`, `scripts`, `random`: the steps; `life`: running them on a recording device, with the
//!   guarantees given;
//! - `cuts`: the states that remain; `view`: a file system as it can be read; `judge`: a state
//!   after a cut, compared with the workload;
//! - `oracle`: e2fsck on a spread sample; `survive`: all cuts of one workload; `bare`: those
//!   without a journal; `through`: those of space that is written in every layer below;
//! - `every`: all sequences of one and two operations.
//!
//! `EXTANT_POWER_SEEDS=A..B` runs those random workloads instead of the default ones, and
//! `EXTANT_POWER_CUTS=N` verifies up to N states of each position. A failure names its seed,
//! position and state, and keeps the image with the test's other files.

mod bare;
mod cuts;
mod every;
mod image;
mod judge;
mod life;
mod lives;
mod oracle;
mod random;
mod scripts;
mod step;
mod survive;
mod sync;
mod through;
mod view;
