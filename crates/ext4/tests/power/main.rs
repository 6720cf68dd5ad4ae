//! Power cuts at every write of a file system's life.
//!
//! - `step`, `scripts`, `random`: what is done; `life`: doing it on a disk that records, and what was promised;
//! - `cuts`: the states that are left; `view`: a file system as it can be seen; `judge`: what a cut has left, held against the life;
//! - `oracle`: e2fsck on a spread sample; `survive`: all cuts of one life; `bare`: those without a journal.
//!
//! `EXTANT_POWER_SEEDS=A..B` runs those random lives instead of the few of every day, and
//! `EXTANT_POWER_CUTS=N` looks at up to N states of each position. A failure names its seed, position and state,
//! and leaves the image beside the test's other files.

mod bare;
mod cuts;
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
mod view;
