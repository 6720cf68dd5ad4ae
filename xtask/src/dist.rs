//! `cargo xtask dist`: what a package of the command consists of.
//!
//! `target/dist` then holds `extant`, `man/*.1`, `completions/*`, `sbin/*` (the
//! names by which mount(8) and umount(8) find the program) and the licences. The
//! binary itself writes its man pages and completions, so that they cannot differ
//! from `--help`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result};

use crate::step;
use crate::workspace::Workspace;

/// Shells and the names under which each looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "extant.bash"),
    ("zsh", "_extant"),
    ("fish", "extant.fish"),
];

/// Links to the program, to be put into /sbin.
const MOUNT_HELPERS: [&str; 2] = ["mount.fuse.extant", "umount.fuse.extant"];

/// Builds the release binary and writes everything anew.
pub fn run(workspace: &Workspace) -> Result<()> {
    step::heading("build");
    step::run(&mut workspace.cargo(&["build", "--release", "--locked", "--package", "extant"]))?;

    let target = workspace.target_dir()?;
    let built = target.join("release/extant");
    let dist = target.join("dist");
    step::heading(&format!("write {}", dist.display()));
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("{}: cannot empty", dist.display()))?;
    }
    let (completions, man) = (dist.join("completions"), dist.join("man"));
    let sbin = dist.join("sbin");
    for folder in [&completions, &man, &sbin] {
        fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot create", folder.display()))?;
    }

    for (shell, name) in COMPLETIONS {
        let text = step::output(Command::new(&built).args(["completions", shell]))?;
        let path = completions.join(name);
        fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    step::run(Command::new(&built).arg("man").arg(&man))?;
    for name in MOUNT_HELPERS {
        let link = sbin.join(name);
        symlink("../extant", &link).with_context(|| format!("{}: cannot link", link.display()))?;
    }

    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| workspace.root().join(name));
    for from in [built].iter().chain(&licences) {
        let name = from.file_name().context("a file without a name")?;
        fs::copy(from, dist.join(name))
            .with_context(|| format!("{}: cannot copy", from.display()))?;
    }
    Ok(())
}
