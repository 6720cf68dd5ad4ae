//! Images as devices, beside QEMU's tools: what is written here is read there, and the reverse.

mod disk;
mod growth;
mod hostile;
mod locks;
mod model;
mod power;
mod space;
mod stream;
mod support;
mod through;
mod windows;
