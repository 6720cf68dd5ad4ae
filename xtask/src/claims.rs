//! Which of several `cargo test` that run at the same time has a test program.
//!
//! Cargo runs one program after the other, and most wait for a part of their time. Each `cargo
//! test` has a list of all programs; its runner runs those that no other has claimed.

use std::env;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The directory of the claims.
pub const VARIABLE: &str = "EXTANT_TEST_CLAIMS";

/// Makes the runner of `cargo`'s programs claim them in `directory`.
pub fn share(cargo: &mut Command, directory: &Path) {
    cargo.env(VARIABLE, directory);
}

/// Claims `program`, if programs are [shared](share); whether it is the caller's to run.
pub fn claim(program: &Path) -> Result<bool> {
    match env::var_os(VARIABLE) {
        Some(directory) => claim_in(Path::new(&directory), program),
        None => Ok(true),
    }
}

fn claim_in(directory: &Path, program: &Path) -> Result<bool> {
    let file = directory.join(program.display().to_string().replace('/', "%"));
    match OpenOptions::new().write(true).create_new(true).open(&file) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let claim = |program: &str| claim_in(directory.path(), Path::new(program)).unwrap();
        assert!(claim("/t/deps/guest-06b907aadae772ff"));
        assert!(!claim("/t/deps/guest-06b907aadae772ff"));
        assert!(claim("/t/deps/serve-06b907aadae772ff"));
        assert!(claim_in(&directory.path().join("none"), Path::new("a")).is_err());
    }
}
