//! The peers' commands.

use std::path::Path;
use std::process::Command;

use extant_testkit::command::tool;

/// `dd` of zeros by direct I/O, synced at its end.
pub fn dd(file: &Path, size_bytes: u64) -> Command {
    let mut command = tool("dd");
    command.arg("if=/dev/zero");
    command.arg(format!("of={}", file.display()));
    command.args(["bs=2M", "oflag=direct", "conv=fsync"]);
    command.arg(format!("count={}", size_bytes >> 21));
    command
}

/// `fallocate`, by default of unwritten space.
pub fn fallocate(file: &Path, size_bytes: u64, options: &[&str]) -> Command {
    let mut command = tool("fallocate");
    command.args(options);
    command.args(["-l", &size_bytes.to_string()]).arg(file);
    command
}

/// `qemu-img` making a raw image, zeroed and written, through the page cache.
pub fn qemu_img(file: &Path, size_bytes: u64) -> Command {
    qemu_img_create(file, size_bytes, "raw", "full")
}

/// `qemu-img` making an image of a format, with a mode of preallocation.
pub fn qemu_img_create(file: &Path, size_bytes: u64, format: &str, mode: &str) -> Command {
    let mut command = tool("qemu-img");
    let preallocation = format!("preallocation={mode}");
    command.args(["create", "-q", "-f", format, "-o", &preallocation]);
    command.arg(file).arg(size_bytes.to_string());
    command
}
