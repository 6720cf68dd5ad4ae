//! pjdfstest skips tests of features that Linux or FUSE lacks: file flags, NFSv4 ACLs, the maximal
//! link count. All others have to pass.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{Environment, command};
use crate::cargo_tool::CargoTool;
use crate::step;

pub(super) const PJDFSTEST: CargoTool = CargoTool {
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
/// Runs all of it in the mount.
pub(super) fn run(environment: &Environment, suite: &Path) -> Result<()> {
    RUNS.iter()
        .try_for_each(|(tests, may_remount)| run_tests(environment, suite, tests, may_remount))
}

fn run_tests(
    environment: &Environment,
    suite: &Path,
    tests: &[&str],
    may_remount: &str,
) -> Result<()> {
    let configuration = environment.directory.join("pjdfstest.toml");
    fs::write(
        &configuration,
        CONFIGURATION.replace("REMOUNT", may_remount),
    )?;
    // Its remounts call mount(8), which searches /sbin for the mount helper.
    let mut command = command("unshare", &["--mount", "--propagation", "private"]);
    command.args(["sh", "-euc", WITH_HELPER, "sh"]).arg(suite);
    command
        .env("work", &environment.directory)
        .env("extant", &environment.extant);
    command.arg("--configuration-file").arg(&configuration);
    command.arg("--path").arg(environment.mount());
    command.arg("--secondary-fs").arg(environment.other());
    step::run(command.args(tests))
}
