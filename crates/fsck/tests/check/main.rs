//! The consistency check compared with e2fsck: the two must agree, on whole images and on broken
//! ones.
//!
//! Differences are listed with their reasons (`flips.rs`).

mod clean;
mod damage;
mod features;
mod flips;
mod image;
mod population;
