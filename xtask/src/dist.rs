//! The files that are installed and packaged.
//!
//! `target/dist` holds `extant`, `man/man*/*.gz`, `completions/*`, `sbin/*` (the
//! names by which mount(8) and umount(8) find the program) and the licences. The
//! binary itself writes its man pages and completions, so that they cannot differ
//! from `--help`. `include`, `lib` and `python` are libextant: header, shared and static
//! library, the file of pkg-config, and the module for Python.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{notices, reproducible, step};

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
const ARCHIVE: &str = "libextant.a";

/// How the files are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// As for tests, and no new one where there is an earlier one: for tests of packages.
    Quick,
    /// For this machine.
    Release,
    /// For others: the profile `distribution`, without paths of this machine.
    Dist,
}

impl Build {
    /// A command of cargo for a package.
    fn cargo(self, workspace: &Workspace, verb: &str, package: &str) -> Result<Command> {
        let arguments: &[&str] = match self {
            Self::Dist => return reproducible::cargo(workspace, verb, &gnu_target(), package),
            Self::Release => &["--release"],
            Self::Quick => &[],
        };
        let mut cargo = workspace.cargo(&[verb, "--locked", "--package", package]);
        cargo.args(arguments);
        Ok(cargo)
    }

    /// Where cargo puts the results.
    fn directory(self, workspace: &Workspace) -> Result<PathBuf> {
        match self {
            Self::Quick => Ok(workspace.target_dir()?.join("debug/deps")),
            Self::Release => Ok(workspace.target_dir()?.join("release")),
            Self::Dist => reproducible::directory(workspace, &gnu_target()),
        }
    }
}

/// The target of packages, whose C library is glibc.
fn gnu_target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// Builds the release binary and rewrites `target/dist`.
pub fn files(workspace: &Workspace) -> Result<()> {
    write(
        workspace,
        Build::Release,
        &workspace.target_dir()?.join("dist"),
    )
}

/// Builds program and libraries, and rewrites `dist`.
pub fn write(workspace: &Workspace, build: Build, dist: &Path) -> Result<()> {
    let built = build.directory(workspace)?;
    let program = match build {
        Build::Quick => built.with_file_name("extant"),
        Build::Release | Build::Dist => built.join("extant"),
    };
    step::heading("build");
    // The programs of all tests need both, and build them with other features than these commands.
    if build != Build::Quick || !(program.exists() && built.join(ARCHIVE).exists()) {
        step::run(&mut build.cargo(workspace, "build", "extant")?)?;
        build_library(workspace, build)?;
    }

    step::heading(&format!("write {}", dist.display()));
    write_program(workspace, &program, dist)?;
    add_library(workspace, &built, dist)?;
    if build == Build::Quick {
        relink(workspace, dist)?;
    }
    if build == Build::Dist {
        for name in ["extant", "lib/libextant.so"] {
            reproducible::check(workspace, &dist.join(name))?;
        }
    }
    Ok(())
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

    fs::copy(program, dist.join("extant"))
        .with_context(|| format!("{}: cannot copy", program.display()))?;
    notices::write_all(workspace, dist)?;
    Ok(())
}

/// Builds the libraries: the shared one, with soname and versions of symbols, of the static one;
/// where the shared one is.
pub fn build_library(workspace: &Workspace, build: Build) -> Result<PathBuf> {
    let mut cargo = build.cargo(workspace, "rustc", "extant-capi")?;
    step::run(cargo.args(["--crate-type", "staticlib"]))?;
    let built = build.directory(workspace)?;
    let shared = built.join("libextant.so");
    link(workspace, &built.join(ARCHIVE), &shared)?;
    Ok(shared)
}

fn link(workspace: &Workspace, archive: &Path, shared: &Path) -> Result<()> {
    let mut link = Command::new(workspace.root().join("crates/capi/link.sh"));
    step::run(link.args([archive, shared]).arg(SONAME))
}

/// Replaces a shared library that was linked for tests, without a soname; and strips all.
fn relink(workspace: &Workspace, dist: &Path) -> Result<()> {
    let lib = dist.join("lib");
    // Programs may replace a link by a file.
    let shared = lib.join(SONAME).canonicalize()?;
    link(workspace, &lib.join(ARCHIVE), &shared)?;
    // Debugging information would take the tools for packages half of their time.
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg(dist.join("extant"));
    step::run(strip.args([lib.join(ARCHIVE), shared]))
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
        (built.join(ARCHIVE), lib.join(ARCHIVE)),
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
    let text = pkg_config(version, "${pcfiledir}/../..", "${prefix}/lib");
    fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))
}

/// The pkg-config file for a prefix, which may be a variable of pkg-config.
pub fn pkg_config(version: &str, prefix: &str, libdir: &str) -> String {
    format!(
        "prefix={prefix}\n\
         libdir={libdir}\n\
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
