//! The consistency check compared with e2fsck: the two must agree, on whole images and on broken
//! ones.
//!
//! Where they do not, the difference is named here with its reason (`flips.rs`).

mod clean;
mod damage;
mod features;
mod flips;
mod image;
mod population;
