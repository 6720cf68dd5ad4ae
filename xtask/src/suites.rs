//! `cargo xtask suites`: test suites of others against a mount, as root.
//!
//! pjdfstest asks what POSIX says of each call on names, permissions, times and links. Linux has no file flags nor NFSv4
//! lists, and FUSE tells nobody how many links a file may have: those of its tests leave themselves out. All others have to
//! pass. A run takes a minute, and building the suite another, so it is no step of CI.

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
/// What Linux and the file system can, and two users that every Debian has. `allow_remount` is for each run to say.
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
/// The runs, by what their tests are called, and whether they may remount. Tests before leave files open, and the kernel's
/// own ext4 cannot be remounted then: those of a read-only file system are a run of their own.
const RUNS: [(&[&str], &str); 2] = [(&["erofs"], "true"), (&[], "false")];
/// Runs its arguments with a /sbin of its own, of links to what is in the real one and to the program.
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
    let ground = Ground::new(workspace)?;
    for cache in ["writeback", "no_writeback"] {
        step::heading(&format!("pjdfstest, {cache}"));
        ground.run(&suite, cache)?;
    }
    Ok(())
}

/// A folder of its own for an image, and two places to mount at. Whatever is mounted goes with the value.
struct Ground {
    extant: PathBuf,
    folder: PathBuf,
}

impl Ground {
    fn new(workspace: &Workspace) -> Result<Self> {
        let target = workspace.target_dir()?;
        // Other users have to reach it, which they may not in the target folder.
        let folder = std::env::temp_dir().join(format!("extant-suites-{}", std::process::id()));
        let ground = Self {
            extant: target.join("debug/extant"),
            folder,
        };
        for place in [ground.mount(), ground.other()] {
            fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        }
        Ok(ground)
    }

    fn mount(&self) -> PathBuf {
        self.folder.join("mount")
    }

    /// A file system of another kind, for links and renames that would leave theirs.
    fn other(&self) -> PathBuf {
        self.folder.join("other")
    }

    fn run(&self, suite: &Path, cache: &str) -> Result<()> {
        let image = self.folder.join("image");
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
        let configuration = self.folder.join("pjdfstest.toml");
        fs::write(
            &configuration,
            CONFIGURATION.replace("REMOUNT", may_remount),
        )?;
        // Its remounts call mount(8), which looks for a program of this kind of file system in /sbin.
        let mut command = command("unshare", &["--mount", "--propagation", "private"]);
        command.args(["sh", "-euc", WITH_HELPER, "sh"]).arg(suite);
        command
            .env("work", &self.folder)
            .env("extant", &self.extant);
        command.arg("--configuration-file").arg(&configuration);
        command.arg("--path").arg(self.mount());
        command.arg("--secondary-fs").arg(self.other());
        step::run(command.args(tests))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for place in [self.mount(), self.other()] {
            // After a success there is nothing to unmount.
            let _ = command("umount", &["-q", "-l"]).arg(place).status();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}
