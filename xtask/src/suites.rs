//! `cargo xtask suites`: third-party test suites, as root.
//!
//! - e2fsprogs: `fs check` of the damaged file systems of its tests.
//! - pjdfstest: the POSIX semantics of calls on names, permissions, times and links.
//! - fsx: a file against a copy in memory; also the file of an image (`extant image mount`).
//!
//! A run takes four minutes and building the suites as long, so it is no step of CI.

mod e2fsprogs;
mod fsx;
mod pjdfstest;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::step;
use crate::workspace::Workspace;

const IMAGE_BYTES: u64 = 256 << 20;

/// Runs the suites with a cache that writes back, and without.
pub fn run(workspace: &Workspace) -> Result<()> {
    let e2fsprogs = e2fsprogs::tests(workspace)?;
    let pjdfstest = pjdfstest::PJDFSTEST.program(workspace)?;
    let fsx = fsx::FSX.program(workspace)?;
    step::run(&mut workspace.cargo(&["build", "--locked", "-p", "extant"]))?;
    let environment = Environment::new(workspace)?;
    step::heading("damaged file systems of e2fsprogs");
    e2fsprogs::run(&environment, &e2fsprogs)?;
    for cache in ["writeback", "no_writeback"] {
        step::heading(&format!("a mount, {cache}"));
        environment.mounted(cache, || {
            pjdfstest::run(&environment, &pjdfstest)?;
            fsx::run_in_mount(&environment, &fsx)
        })?;
    }
    step::heading("the file of an image");
    fsx::run_on_image(&environment, &fsx)
}

/// A temporary directory with an image and two mount points. Drop unmounts them.
struct Environment {
    extant: PathBuf,
    directory: PathBuf,
}

impl Environment {
    fn new(workspace: &Workspace) -> Result<Self> {
        let target = workspace.target_dir()?;
        // Other users have no access to the target directory.
        let directory = std::env::temp_dir().join(format!("extant-suites-{}", std::process::id()));
        let environment = Self {
            extant: target.join("debug/extant"),
            directory,
        };
        for place in [environment.mount(), environment.other()] {
            fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        }
        Ok(environment)
    }

    fn mount(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// Another file system, for links and renames across file systems.
    fn other(&self) -> PathBuf {
        self.directory.join("other")
    }

    /// Runs the tests in a mount of a new file system, and checks it with e2fsck.
    fn mounted(&self, cache: &str, tests: impl FnOnce() -> Result<()>) -> Result<()> {
        let image = self.directory.join("image");
        fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        step::run(command("mke2fs", &["-q", "-F", "-t", "ext4"]).arg(&image))?;
        step::run(command("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(self.other()))?;
        let options = format!("allow_other,dev,suid,{cache}");
        let mut mount = Command::new(&self.extant);
        step::run(
            mount
                .args(["mount", "-o", &options])
                .arg(&image)
                .arg(self.mount()),
        )?;
        let found = tests();
        step::run(Command::new(&self.extant).arg("umount").arg(self.mount()))?;
        step::run(command("umount", &[]).arg(self.other()))?;
        found?;
        step::run(command("e2fsck", &["-f", "-n"]).arg(&image))
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        for place in [self.mount(), self.other()] {
            // After a success there is nothing to unmount.
            let _ = command("umount", &["-q", "-l"]).arg(place).status();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}
