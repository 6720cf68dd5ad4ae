//! The engine on images of mke2fs, verified by our check and by e2fsck.

mod access;
mod attributes;
mod bigalloc;
mod counters;
mod cut;
mod data;
mod example;
mod image;
mod maps;
mod names;
mod open;
mod shutdown;
mod space;
mod trim;
