//! On-disk structures of ext4 and of its journal, jbd2.
#![doc = include_str!("../README.md")]
//!
//! The crate does no I/O and keeps no state: everything works on `&[u8]` and `&mut [u8]`. Two
//! steps, always in this order:
//!
//! 1. raw: one declaration per structure holds offset, name and byte order of every field, and the
//!    compiler checks it against the size (`structure.rs`). Names are the specification's;
//! 2. meaning: a validated type in the terms of the field. An impossible value is refused with
//!    [`Corrupt`](extant_space::ErrorKind::Corrupt), an unknown one with
//!    [`Unsupported`](extant_space::ErrorKind::Unsupported); the message names structure, field and
//!    value.
//!
//! Invariants:
//! - no input causes a panic, an endless loop or unbounded allocation;
//! - a value is read, changed and written into the same bytes: unknown parts are kept unchanged;
//! - arguments that only a mistake of the caller can produce are asserted.
//!
//! Formats: docs/formats/ext4.md and docs/formats/jbd2.md.
//!
//! Module layers, lowest first:
//!
//! 1. `address`, `checksum`, `fault`, `feature_set`, `narrow`, `structure`: block numbers,
//!    checksums, errors, lossy casts, and the declaration of structures
//! 2. `jbd2`: the journal
//! 3. `ext4`: the file system, with the fast commits in its journal

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod address;
mod checksum;
pub mod ext4;
mod fault;
mod feature_set;
pub mod jbd2;
pub mod narrow;
mod structure;
