//! The engine under random operations, compared with a reference in memory.
//!
//! Every sequence follows from a seed. `EXTANT_MODEL_SEEDS=A..B` runs other ones than the few of
//! every day; a failure prints its seed, and the shortest part of the sequence found that fails as
//! well.

mod engine;
mod found;
mod generate;
mod image;
mod operation;
mod reference;
mod run;
mod sequences;
mod threads;
mod tree;
