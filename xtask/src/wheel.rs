//! The wheel: the module for Python with libextant in it, in `target/dist-wheel`.
//!
//! It needs no version of Python but 3.9, and no other library than glibc, whose least version is
//! in its name. Debian's setuptools builds it, without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{notices, setup, step};

/// Debian packages that build it.
const PACKAGES: [&str; 3] = ["binutils", "python3-setuptools", "python3-wheel"];

/// Rewrites the directory with the wheel of the shared `library`.
pub fn write(workspace: &Workspace, library: &Path) -> Result<()> {
    setup::packages(&PACKAGES)?;
    let directory = workspace.target_dir()?.join("dist-wheel");
    step::heading(&format!("write {}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    build(workspace, library, &directory)
}

/// Builds it with all licences in it.
fn build(workspace: &Workspace, library: &Path, directory: &Path) -> Result<()> {
    let work = tempfile::tempdir().context("a temporary directory")?;
    let licences = work.path().join(notices::FILE);
    notices::write(workspace, &licences)?;
    let mut build = Command::new(workspace.root().join("crates/capi/wheel.sh"));
    step::run(build.arg(library).arg(directory).arg(&licences))?;
    for entry in fs::read_dir(directory)? {
        check(&entry?.path())?;
    }
    Ok(())
}

/// Refuses a wheel without all licences.
fn check(wheel: &Path) -> Result<()> {
    let mut list = Command::new("/usr/bin/python3");
    let files = step::output(list.args(["-m", "zipfile", "--list"]).arg(wheel))?;
    for name in notices::OWN.iter().chain([&notices::FILE]) {
        let is_there = files.contains(&format!("/{name} "));
        ensure!(is_there, "{}: no {name} in it", wheel.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the machine can build wheels.
    fn has_tools() -> bool {
        let mut import = Command::new("/usr/bin/python3");
        let modules = import.args(["-c", "import setuptools, wheel"]).output();
        let is_there = modules.is_ok_and(|output| output.status.success());
        let is_strict = std::env::var_os("EXTANT_TEST_STRICT").is_some();
        assert!(is_there || !is_strict, "python3-wheel is not installed");
        is_there
    }

    #[test]
    fn wheel_has_all_licences() {
        if !has_tools() {
            eprintln!("skipped: python3-setuptools and python3-wheel are not installed");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("library.c");
        fs::write(
            &source,
            "#include <stdio.h>\nint say(void) { return puts(\"\"); }\n",
        )
        .unwrap();
        let library = place.path().join("libextant.so");
        let mut compile = Command::new("gcc");
        compile.args(["-shared", "-fPIC", "-o"]).arg(&library);
        step::run(compile.arg(&source)).unwrap();
        let workspace = Workspace::find().unwrap();
        let wheels = place.path().join("wheels");
        build(&workspace, &library, &wheels).unwrap();

        let without = place.path().join("without");
        let mut script = Command::new(workspace.root().join("crates/capi/wheel.sh"));
        step::run_quietly(script.arg(&library).arg(&without)).unwrap();
        let wheel = fs::read_dir(&without).unwrap().next().unwrap().unwrap();
        let error = check(&wheel.path()).unwrap_err().to_string();
        assert!(error.ends_with("no LICENSES-THIRD-PARTY in it"), "{error}");
    }
}
