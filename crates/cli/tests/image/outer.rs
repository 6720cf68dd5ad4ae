//! A file-system image that contains disk images.

use std::path::{Path, PathBuf};

use extant_testkit::workdir::Workdir;

use crate::support::{Answer, extant, run};

/// A file system of 64 MiB in a file.
pub struct Outer {
    work: Workdir,
    image: PathBuf,
}

impl Outer {
    #[track_caller]
    pub fn new() -> Self {
        let work = Workdir::new();
        let image = work.path().join("outer.img");
        run(extant().args(["fs", "mkfs"]).arg(&image).arg("64MiB")).success();
        Self { work, image }
    }

    /// The file that it is.
    pub fn path(&self) -> &Path {
        &self.image
    }

    /// Beside it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Runs a command on a file inside.
    pub fn on(&self, words: &[&str], name: &str, more: &[&str]) -> Answer {
        let mut command = extant();
        command.args(words).arg("--in").arg(&self.image);
        run(command.arg(name).args(more))
    }

    /// Copies a file out, over the copy of before.
    #[track_caller]
    pub fn get(&self, name: &str) -> PathBuf {
        let copy = self.beside("copy");
        let _ = std::fs::remove_file(&copy);
        let mut command = extant();
        command.args(["fs", "get"]).arg(&self.image).arg(name);
        run(command.arg(&copy)).success();
        copy
    }

    #[track_caller]
    pub fn remove(&self, name: &str) {
        run(extant().args(["fs", "rm"]).arg(&self.image).arg(name)).success();
    }

    /// The file system is consistent.
    #[track_caller]
    pub fn check(&self) {
        run(extant().args(["fs", "check"]).arg(&self.image)).success();
    }
}
