//! File systems in files of file systems: what allocating at the top does at the bottom.

mod assign;
mod contents;
mod full;
mod program;
mod required;
mod tower;
