//! Images as devices, compared with QEMU's tools: each side reads the other's writes.

mod disk;
mod example;
mod growth;
mod hostile;
mod locks;
mod model;
mod power;
mod rebuild;
mod space;
mod stream;
mod support;
mod through;
mod windows;
