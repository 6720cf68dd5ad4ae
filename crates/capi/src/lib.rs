//! `libextant`: written preallocation for programs in C, and for whatever can call C.
//!
//! The library has no logic of its own: every call converts C's values (`sys`), runs a function of
//! `extant-hostfs`, `extant-image` or `extant-pool` and converts the outcome. `include/extant.h` is
//! made of `sys` by cbindgen; a test holds the two against each other.
//!
//! Guarantees to the caller:
//! - structures begin with their size, so that a program and a library of different versions
//!   understand each other ([`versioned`]);
//! - an error is a status, and a line for people if the caller wants it ([`outcome`]);
//! - a panic does not cross the border: it is `EXTANT_STATUS_INTERNAL`.
//!
//! Module layers, lowest first:
//!
//! 1. `outcome`, `versioned`: statuses and messages; structures that begin with their size
//! 2. `sys`: the functions that C calls

#![deny(unsafe_code)]

mod outcome;
#[allow(unsafe_code)]
mod sys;
mod versioned;
