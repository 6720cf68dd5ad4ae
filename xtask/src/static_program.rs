//! The static program: one file that runs on every Linux of its processor, without installation.
//!
//! `target/dist-static` then holds the program, its bill of materials, the licences of all that is
//! in it, and `SHA256SUMS`. musl is its C library; what it needs to build is installed.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{notices, reproducible, sbom, setup, step};

/// Of the program, which has 11.6 MB.
const BYTES_MAX: u64 = 12_000_000;

/// The target for which it is built.
fn target() -> String {
    format!("{ARCH}-unknown-linux-musl")
}

/// Installs the C compiler and Rust's standard library for musl.
fn prepare() -> Result<()> {
    setup::packages(&["musl-tools"])?;
    let target = target();
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", &target]);
    let library = step::output(&mut rustc)?;
    if !Path::new(library.trim()).exists() {
        step::run(Command::new("rustup").args(["target", "add", &target]))
            .with_context(|| format!("Rust's standard library for {target} is missing"))?;
    }
    Ok(())
}

/// Builds the program and checks its promises; where it is.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    prepare()?;
    let target = target();
    step::heading(&format!("build for {target}"));
    step::run(&mut reproducible::cargo(
        workspace, "build", &target, "extant",
    )?)?;
    let program = reproducible::directory(workspace, &target)?.join("extant");
    check(workspace, &program)?;
    Ok(program)
}

/// Writes the contents of `target/dist-static`.
pub fn write(workspace: &Workspace) -> Result<()> {
    let program = build(workspace)?;
    let directory = workspace.target_dir()?.join("dist-static");
    step::heading(&format!("write {}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    fs::create_dir_all(&directory)
        .with_context(|| format!("{}: cannot create", directory.display()))?;
    let name = format!("extant-{}-{ARCH}-linux", env!("CARGO_PKG_VERSION"));
    let materials = format!("{name}.cdx.json");
    sbom::write(workspace, &target(), &directory.join(&materials))?;
    finish(workspace, &program, &directory, &[&name, &materials])
}

/// Adds the program, the first of `names`, and the licences; and the checksums of all.
fn finish(workspace: &Workspace, program: &Path, directory: &Path, names: &[&str]) -> Result<()> {
    fs::copy(program, directory.join(names[0]))
        .with_context(|| format!("{}: cannot copy", program.display()))?;
    let licences = notices::write_all(workspace, directory)?;
    write_sums(directory, &[names, &licences].concat())
}

/// Writes `SHA256SUMS` of files in a directory, as sha256sum --check reads it.
pub fn write_sums(directory: &Path, names: &[&str]) -> Result<()> {
    let mut command = Command::new("sha256sum");
    let sums = step::output(command.args(names).current_dir(directory))?;
    let path = directory.join("SHA256SUMS");
    fs::write(&path, sums).with_context(|| format!("{}: cannot write", path.display()))
}

fn check(workspace: &Workspace, program: &Path) -> Result<()> {
    reproducible::check(workspace, program)?;
    let bytes = fs::metadata(program)?.len();
    ensure!(
        bytes <= BYTES_MAX,
        "{}: {bytes} bytes, more than {BYTES_MAX}",
        program.display()
    );
    let mut readelf = Command::new("readelf");
    let headers = step::output(readelf.args(["--program-headers", "--wide"]).arg(program))?;
    ensure!(
        !headers.contains("INTERP"),
        "{}: needs a dynamic loader",
        program.display()
    );
    step::run(Command::new(program).arg("--version").stdout(Stdio::null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_beside_the_program_and_in_the_checksums() {
        let workspace = Workspace::find().unwrap();
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("extant.cdx.json"), "{}").unwrap();
        let program = std::env::current_exe().unwrap();
        let names = ["extant", "extant.cdx.json"];
        finish(&workspace, &program, place.path(), &names).unwrap();
        let sums = fs::read_to_string(place.path().join("SHA256SUMS")).unwrap();
        let summed: Vec<_> = sums.lines().map(|line| &line[66..]).collect();
        assert_eq!(
            summed,
            [
                "extant",
                "extant.cdx.json",
                "LICENSE-MIT",
                "LICENSE-APACHE",
                "LICENSES-THIRD-PARTY"
            ]
        );
        let others = fs::read_to_string(place.path().join(notices::FILE)).unwrap();
        assert!(others.contains("\nrustix "), "{others}");
    }
}
