//! The library as programs in C and Python use it: compiled, linked and run.

mod header;
mod library;
mod programs;
mod python;
mod symbols;
