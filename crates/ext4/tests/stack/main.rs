//! File systems in files of file systems: the effect at the bottom of an allocation at the top.

mod assign;
mod contents;
mod full;
mod program;
mod required;
mod tower;
