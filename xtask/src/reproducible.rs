//! Builds for users: the profile `distribution`, without paths of the machine that builds.
//!
//! Paths of the workspace, of cargo's home and of the toolchain are replaced in what Rust and C
//! compile. Times are those of the last commit (`SOURCE_DATE_EPOCH`, unless the caller sets it).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step;
use crate::workspace::Workspace;

/// A command of cargo that builds a package for `target`.
pub fn cargo(workspace: &Workspace, verb: &str, target: &str, package: &str) -> Result<Command> {
    let mut cargo = workspace.cargo(&[verb, "--locked", "--profile", "distribution"]);
    cargo.args(["--target", target, "--package", package]);
    let replaced = replaced_paths(workspace)?;
    let flags = |option: &str, separator: &str| {
        let flags = replaced.iter().map(|pair| format!("{option}={pair}"));
        flags.collect::<Vec<_>>().join(separator)
    };
    // An optimisation level of one package has cargo forget that everything is to be stripped.
    let mut rustflags = vec![
        flags("--remap-path-prefix", "\x1f"),
        "-Cstrip=symbols".into(),
    ];
    // With glibc they would ask for version 2.36.
    if target.ends_with("-musl") {
        rustflags.push("-Clink-arg=-Wl,-z,pack-relative-relocs".into());
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"));
    cargo.env("TARGET_CFLAGS", flags("-ffile-prefix-map", " "));
    // Incremental builds split crates otherwise than whole ones.
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo.env("SOURCE_DATE_EPOCH", epoch(workspace)?);
    Ok(cargo)
}

/// Fails if a path of this machine is in a program.
pub fn check(workspace: &Workspace, program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("{}: cannot read", program.display()))?;
    for path in [workspace.root().to_owned(), cargo_home()?] {
        let sought = path.as_os_str().as_encoded_bytes();
        ensure!(
            !bytes.windows(sought.len()).any(|found| found == sought),
            "{}: contains the path {}",
            program.display(),
            path.display()
        );
    }
    Ok(())
}

/// Where cargo keeps the sources of dependencies.
fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")
}

/// Seconds since 1970 that stand in what is made.
pub fn epoch(workspace: &Workspace) -> Result<String> {
    if let Ok(seconds) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(seconds);
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]);
    let seconds = step::output(git.current_dir(workspace.root()))
        .context("SOURCE_DATE_EPOCH is not set, and the last commit has no time")?;
    Ok(seconds.trim().to_owned())
}

/// Where the results of a build for `target` are.
pub fn directory(workspace: &Workspace, target: &str) -> Result<PathBuf> {
    Ok(workspace.target_dir()?.join(target).join("distribution"))
}

/// Pairs `FROM=TO`; of two that fit, the compilers take the last.
fn replaced_paths(workspace: &Workspace) -> Result<Vec<String>> {
    let home = cargo_home()?;
    let mut rustc = Command::new("rustc");
    let sysroot = step::output(rustc.args(["--print", "sysroot"]))?;
    Ok([
        (Path::new(sysroot.trim()), "/rust"),
        (&home, "/cargo"),
        (workspace.root(), "/extant"),
        (&workspace.target_dir()?, "/extant/target"),
    ]
    .map(|(from, to)| format!("{}={to}", from.display()))
    .into())
}
