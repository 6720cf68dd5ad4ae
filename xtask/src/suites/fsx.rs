//! fsx reads, writes, maps, truncates, allocates and punches at random.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Environment, command};
use crate::cargo_tool::CargoTool;
use crate::step;

pub(super) const FSX: CargoTool = CargoTool {
    name: "fsx",
    version: "0.3.2",
    features: None,
};
/// Every operation that fsx has.
const FILE: &str = "
flen = 1048576
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 20
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 2
posix_fadvise = 2
copy_file_range = 5
";
/// Those that keep the size.
const DEVICE: &str = "
blockmode = true
[weights]
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 20
truncate = 0
fsync = 1
fdatasync = 1
punch_hole = 5
sendfile = 2
posix_fadvise = 2
copy_file_range = 5
";
const OPERATIONS: &str = "20000";
/// Fixed, so that a failure can be repeated.
const SEEDS: [&str; 3] = ["1", "2", "3"];
const IMAGE_BYTES: &str = "4M";

/// On files of the mount.
pub(super) fn run_in_mount(environment: &Environment, fsx: &Path) -> Result<()> {
    let configuration = environment.directory.join("fsx.toml");
    fs::write(&configuration, FILE)?;
    for seed in SEEDS {
        let file = environment.mount().join(format!("fsx-{seed}"));
        fs::File::create(&file)?;
        run(environment, fsx, &configuration, seed, &file)?;
    }
    Ok(())
}

/// On the file of a qcow2 image.
pub(super) fn run_on_image(environment: &Environment, fsx: &Path) -> Result<()> {
    let configuration = environment.directory.join("fsx-device.toml");
    fs::write(&configuration, DEVICE)?;
    let image = environment.directory.join("fsx.qcow2");
    let mut create = Command::new(&environment.extant);
    create.args(["image", "create", "-f", "qcow2"]).arg(&image);
    step::run(create.arg(IMAGE_BYTES))?;
    let file = environment.directory.join("fsx.raw");
    fs::File::create(&file)?;
    let mut mount = Command::new(&environment.extant);
    step::run(mount.args(["image", "mount"]).arg(&image).arg(&file))?;
    let found = SEEDS
        .iter()
        .try_for_each(|seed| run(environment, fsx, &configuration, seed, &file));
    step::run(Command::new(&environment.extant).arg("umount").arg(&file))?;
    found?;
    step::run(command("qemu-img", &["check"]).arg(&image))
}

fn run(
    environment: &Environment,
    fsx: &Path,
    configuration: &Path,
    seed: &str,
    file: &Path,
) -> Result<()> {
    let mut command = Command::new(fsx);
    command.args(["-N", OPERATIONS, "-S", seed]);
    command.arg("-f").arg(configuration);
    command.arg("-P").arg(&environment.directory);
    step::run(command.arg(file))
}
