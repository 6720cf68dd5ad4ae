//! The journal on devices in memory: its guarantees, and its behaviour with a damaged log.

#![cfg(not(feature = "shuttle"))]

mod corrupt;
mod device;
mod fast;
mod formats;
mod log;
mod power_cut;
mod threads;
mod toy;
mod trouble;
