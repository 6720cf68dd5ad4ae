//! The calls of librados and librbd: owned handles, lists in memory, requests in flight.
//!
//! All `unsafe` code of the crate is here. There is no policy: each function is one call (or the
//! repetition that a list of unknown length needs), and an error is the negative number that it
//! returned. Every handle keeps those below it open.
//!
//! Both libraries permit calls on one handle from several threads at a time.

mod aio;
mod cluster;
mod image;
mod library;
mod list;
mod pool;
mod progress;
mod text;

pub(crate) use aio::{Aio, Flights, Memory, Piece};
pub(crate) use cluster::ClusterHandle;
pub(crate) use image::{ImageHandle, Opening};
pub use library::availability;
pub(crate) use pool::{ImageOption, PoolHandle};
