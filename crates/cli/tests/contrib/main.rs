//! The plugins and examples of `contrib`, with the real command.

#[path = "../support/mod.rs"]
mod support;

mod ansible;
mod proxmox;

use std::path::{Path, PathBuf};

/// A path in `contrib`.
fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../contrib")
        .join(name)
        .canonicalize()
        .expect("a file in contrib")
}

/// The directory of the built `extant`.
fn programs() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_extant"));
    program.parent().expect("a program is in a directory")
}
