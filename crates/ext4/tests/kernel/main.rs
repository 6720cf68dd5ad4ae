//! The engine and the kernel on the same file systems: the same steps, alternating on one image;
//! after a crash of one, the other reads the image.
//!
//! The reference and the steps are those of the model test.

#[path = "../model/engine.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod engine;
#[path = "../model/generate.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod generate;
#[path = "../model/image.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod image;
#[path = "../model/operation.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod operation;
#[path = "../model/reference.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod reference;
#[path = "../model/tree.rs"]
#[allow(dead_code, reason = "shared with the model test")]
mod tree;

mod attributes;
mod edges;
mod mounted;
mod sequences;
mod system;
