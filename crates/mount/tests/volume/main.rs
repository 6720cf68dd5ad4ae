//! The engine as `Operations`, asked as the kernel asks; no mount is needed.

mod attributes;
mod control;
mod data;
mod directories;
mod image;
mod kernel;
mod names;
mod space;
mod threads;
mod xattrs;
