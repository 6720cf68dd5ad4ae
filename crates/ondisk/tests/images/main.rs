//! Real images: made by mke2fs, filled by debugfs, indexed by e2fsck, unclean from the kernel.
//!
//! Everything on them is read and validated, compared with the output of e2fsprogs, and written
//! again to the same bytes.

mod census;
mod fast_commits;
mod groups;
mod hashes;
mod image;
mod journal;
mod kernel;
mod kinds;
mod protection;
mod walk;
