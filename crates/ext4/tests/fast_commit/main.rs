//! Fast commits: those of the kernel replayed by us, ours by the kernel and e2fsck, and made ones
//! by all.

mod cost;
mod kernel;
mod made;
mod ours;
mod power_cut;
mod records;
mod snapshot;
mod tree;
