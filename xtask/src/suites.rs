//! `cargo xtask suites`: third-party test suites against a mount, as root.
//!
//! pjdfstest tests the POSIX semantics of calls on names, permissions, times and links. It skips
//! tests of features that Linux or FUSE lacks: file flags, NFSv4 ACLs, the maximal link count. All
//! others have to pass. A run takes a minute and building the suite another, so it is no step of
//! CI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo_tool::CargoTool;
use crate::step;
use crate::workspace::Workspace;

const PJDFSTEST: CargoTool = CargoTool {
    name: "pjdfstest",
    version: "0.2.2",
    features: None,
};
/// Features of Linux and the file system, and two users of every Debian system. Each run sets
/// `allow_remount`.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;
/// The runs: test name patterns, and whether they may remount. Some tests leave files open, and
/// then even the kernel's ext4 cannot be remounted: the tests of a read-only file system are a
/// separate run.
const RUNS: [(&[&str], &str); 2] = [(&["erofs"], "true"), (&[], "false")];
/// Runs its arguments with a private /sbin: links to the real one's files and to the program.
const WITH_HELPER: &str = r#"
    sbin=$(readlink -f /sbin)
    mkdir -p "$work/sbin.old" "$work/sbin"
    mount --bind "$sbin" "$work/sbin.old"
    ln -sf "$work"/sbin.old/* "$work/sbin"
    ln -sf "$extant" "$work/sbin/mount.fuse.extant"
    mount --bind "$work/sbin" "$sbin"
    exec "$@"
"#;
const IMAGE_BYTES: u64 = 256 << 20;

/// Runs the suites with a cache that writes back, and without.
pub fn run(workspace: &Workspace) -> Result<()> {
    let suite = PJDFSTEST.program(workspace)?;
    step::run(&mut workspace.cargo(&["build", "--locked", "-p", "extant"]))?;
    let environment = Environment::new(workspace)?;
    for cache in ["writeback", "no_writeback"] {
        step::heading(&format!("pjdfstest, {cache}"));
        environment.run(&suite, cache)?;
    }
    Ok(())
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

    fn run(&self, suite: &Path, cache: &str) -> Result<()> {
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
        let found = RUNS
            .iter()
            .try_for_each(|(tests, may_remount)| self.run_tests(suite, tests, may_remount));
        step::run(Command::new(&self.extant).arg("umount").arg(self.mount()))?;
        step::run(command("umount", &[]).arg(self.other()))?;
        found?;
        step::run(command("e2fsck", &["-f", "-n"]).arg(&image))
    }

    fn run_tests(&self, suite: &Path, tests: &[&str], may_remount: &str) -> Result<()> {
        let configuration = self.directory.join("pjdfstest.toml");
        fs::write(
            &configuration,
            CONFIGURATION.replace("REMOUNT", may_remount),
        )?;
        // Its remounts call mount(8), which searches /sbin for the mount helper.
        let mut command = command("unshare", &["--mount", "--propagation", "private"]);
        command.args(["sh", "-euc", WITH_HELPER, "sh"]).arg(suite);
        command
            .env("work", &self.directory)
            .env("extant", &self.extant);
        command.arg("--configuration-file").arg(&configuration);
        command.arg("--path").arg(self.mount());
        command.arg("--secondary-fs").arg(self.other());
        step::run(command.args(tests))
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
