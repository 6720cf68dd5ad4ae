//! System calls that need `unsafe`, each behind a safe function.
//!
//! Everything else of the crate forbids `unsafe`. System calls that other crates use as well are in
//! `extant-sys`.

pub(crate) mod calls;
pub(crate) mod lease;
