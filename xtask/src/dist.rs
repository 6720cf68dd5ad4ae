//! `cargo xtask dist`: what users get.
//!
//! Part `files`: `target/dist` then holds `extant`, `man/man*/*.gz`, `completions/*`, `sbin/*` (the
//! names by which mount(8) and umount(8) find the program) and the licences. The
//! binary itself writes its man pages and completions, so that they cannot differ
//! from `--help`. `include`, `lib` and `python` are libextant: header, shared and static
//! library, the file of pkg-config, and the module for Python. Part `static`: the program in one
//! file ([`static_program`]). Part `wheel`: the module for Python with libextant ([`wheel`]).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{static_program, step, wheel};

/// A part's name and work.
type Part = (&'static str, fn(&Workspace) -> Result<()>);

const PARTS: [Part; 3] = [
    ("files", files),
    ("static", static_program::write),
    ("wheel", with_library),
];

/// Shells and the names of their completion files.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "extant.bash"),
    ("zsh", "_extant"),
    ("fish", "extant.fish"),
];

/// Links to the program, to be put into /sbin.
pub const MOUNT_HELPERS: [&str; 2] = ["mount.fuse.extant", "umount.fuse.extant"];

/// The soname, which changes with the ABI.
const SONAME: &str = "libextant.so.0";

/// The names of the parts, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, _)| *name)
}

/// Makes the named parts, or all.
pub fn run(workspace: &Workspace, only: &[String]) -> Result<()> {
    let is_wanted = |(name, _): &&Part| only.is_empty() || only.iter().any(|part| part == name);
    PARTS
        .iter()
        .filter(is_wanted)
        .try_for_each(|(_, make)| make(workspace))
}

/// Builds the release binary and rewrites `target/dist`.
pub fn files(workspace: &Workspace) -> Result<()> {
    step::heading("build");
    step::run(&mut workspace.cargo(&["build", "--release", "--locked", "--package", "extant"]))?;
    build_library(workspace)?;

    let target = workspace.target_dir()?;
    let built = target.join("release/extant");
    let dist = target.join("dist");
    step::heading(&format!("write {}", dist.display()));
    write_program(workspace, &built, &dist)?;
    add_library(workspace, &target.join("release"), &dist)
}

/// Rewrites `dist` with a program, the pages and completions that it makes, and the licences.
pub fn write_program(workspace: &Workspace, program: &Path, dist: &Path) -> Result<()> {
    if dist.exists() {
        fs::remove_dir_all(dist).with_context(|| format!("{}: cannot empty", dist.display()))?;
    }
    let (completions, man) = (dist.join("completions"), dist.join("man"));
    let sbin = dist.join("sbin");
    for directory in [&completions, &man, &sbin] {
        fs::create_dir_all(directory)
            .with_context(|| format!("{}: cannot create", directory.display()))?;
    }

    for (shell, name) in COMPLETIONS {
        let text = step::output(Command::new(program).args(["completions", shell]))?;
        let path = completions.join(name);
        fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    step::run(Command::new(program).arg("man").arg(&man))?;
    // Without a time stamp: the same pages are the same files.
    let mut pages = Vec::new();
    for section in fs::read_dir(&man)? {
        for page in fs::read_dir(section?.path())? {
            pages.push(page?.path());
        }
    }
    step::run(Command::new("gzip").arg("-9n").args(pages))?;
    for name in MOUNT_HELPERS {
        let link = sbin.join(name);
        symlink("../extant", &link).with_context(|| format!("{}: cannot link", link.display()))?;
    }

    let root = workspace.root();
    for (from, name) in [
        (program.to_owned(), "extant"),
        (root.join("LICENSE-MIT"), "LICENSE-MIT"),
        (root.join("LICENSE-APACHE"), "LICENSE-APACHE"),
    ] {
        fs::copy(&from, dist.join(name))
            .with_context(|| format!("{}: cannot copy", from.display()))?;
    }
    Ok(())
}

/// Builds the libraries: the shared one, with soname and versions of symbols, of the static one.
fn build_library(workspace: &Workspace) -> Result<()> {
    let package = ["--release", "--locked", "--package", "extant-capi"];
    let mut arguments = vec!["rustc"];
    arguments.extend(package);
    arguments.extend(["--crate-type", "staticlib"]);
    step::run(&mut workspace.cargo(&arguments))?;
    let built = workspace.target_dir()?.join("release");
    let mut link = Command::new(workspace.root().join("crates/capi/link.sh"));
    link.arg(built.join("libextant.a"));
    step::run(link.arg(built.join("libextant.so")).arg(SONAME))
}

/// Builds the library and its wheel.
fn with_library(workspace: &Workspace) -> Result<()> {
    step::heading("build");
    build_library(workspace)?;
    wheel::write(
        workspace,
        &workspace.target_dir()?.join("release/libextant.so"),
    )
}

fn add_library(workspace: &Workspace, built: &Path, dist: &Path) -> Result<()> {
    let source = workspace.root().join("crates/capi");
    let (include, lib) = (dist.join("include"), dist.join("lib"));
    let (pkgconfig, python) = (lib.join("pkgconfig"), dist.join("python"));
    for directory in [&include, &pkgconfig, &python.join("extant")] {
        fs::create_dir_all(directory)
            .with_context(|| format!("{}: cannot create", directory.display()))?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut copies = vec![
        (source.join("include/extant.h"), include.join("extant.h")),
        (built.join("libextant.a"), lib.join("libextant.a")),
        (
            built.join("libextant.so"),
            lib.join(format!("libextant.so.{version}")),
        ),
    ];
    for name in ["pyproject.toml", "README.md"] {
        copies.push((source.join("python").join(name), python.join(name)));
    }
    for entry in fs::read_dir(source.join("python/extant"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copies.push((entry.path(), python.join("extant").join(entry.file_name())));
        }
    }
    for (from, to) in copies {
        fs::copy(&from, &to).with_context(|| format!("{}: cannot copy", from.display()))?;
    }
    for (name, target) in [
        (SONAME, format!("libextant.so.{version}")),
        ("libextant.so", SONAME.to_owned()),
    ] {
        let link = lib.join(name);
        symlink(target, &link).with_context(|| format!("{}: cannot link", link.display()))?;
    }
    let path = pkgconfig.join("extant.pc");
    fs::write(&path, pkg_config(version))
        .with_context(|| format!("{}: cannot write", path.display()))
}

/// The relocatable pkg-config file.
fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: extant\n\
         Description: Files whose space is really there\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lextant\n\
         Libs.private: -lpthread -lm -ldl\n\
         Cflags: -I${{includedir}}\n"
    )
}
