//! System calls on a mount, compared one by one with the kernel's ext4; and properties that only a
//! mount can show.
//!
//! Each case runs in an empty directory of each, and records the answer of every call; the notes
//! must be the same. A case that names a limit of the kernel's FUSE layer must differ: when it no
//! longer does, the limit is gone and `docs/semantics.md` is wrong. That document has a row for
//! every kind of call here, and here is a case for every row.

mod cache;
mod cases;
mod compare;
mod control;
mod document;
mod durable;
mod mounts;
mod notes;
mod shutdown;
mod stress;
mod times;
