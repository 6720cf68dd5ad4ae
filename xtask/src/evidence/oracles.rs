//! Other implementations that the tests compare with, and their versions here.

use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::provenance;

/// An oracle, the command that prints its version, and what it verifies.
const ORACLES: &[(&str, &[&str], &str)] = &[
    (
        "Linux",
        &["uname", "-r"],
        "file systems, FUSE, loop devices, extent maps",
    ),
    (
        "rustc",
        &["rustc", "--version"],
        "the compiler of all that ran",
    ),
    (
        "e2fsck",
        &["e2fsck", "-V"],
        "consistency of ext4 images, replay of journals",
    ),
    ("filefrag", &["filefrag", "-V"], "extents"),
    (
        "fallocate",
        &["fallocate", "--version"],
        "modes of fallocate, beside util-linux 2.42 in the tests",
    ),
    (
        "qemu-img",
        &["qemu-img", "--version"],
        "qcow2: check, compare, map, info, measure",
    ),
    ("nbdkit", &["nbdkit", "--version"], "NBD servers"),
    ("nbdinfo", &["nbdinfo", "--version"], "NBD clients (libnbd)"),
    ("libvirtd", &["libvirtd", "--version"], "pools and volumes"),
    ("sgdisk", &["sgdisk", "-V"], "partition tables"),
    ("lvm", &["lvm", "version"], "volume groups"),
    ("ceph", &["ceph", "--version"], "images of a cluster"),
    ("xfs_io", &["xfs_io", "-V"], "xfs"),
    ("btrfs", &["btrfs", "--version"], "btrfs"),
    ("strace", &["strace", "-V"], "failing system calls"),
    (
        "stress-ng",
        &["stress-ng", "--version"],
        "stress on a mount",
    ),
];

/// The versions of those that are installed.
pub fn collect() -> Result<Value> {
    let found = ORACLES.iter().filter_map(|(name, command, purpose)| {
        let version = version_of(command)?;
        Some(json!({ "oracle": name, "version": version, "purpose": purpose }))
    });
    Ok(json!({
        "date": provenance::today(),
        "processors": provenance::processors(),
        "oracles": found.collect::<Vec<_>>(),
    }))
}

fn version_of(command: &[&str]) -> Option<String> {
    let output = Command::new(command[0]).args(&command[1..]).output().ok()?;
    let texts =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    texts.iter().find_map(|text| version_in(text))
}

/// The first word that begins with a digit, and has a dot.
fn version_in(text: &str) -> Option<String> {
    let words = text.split([' ', '\t', '\n', ',', '(', ')']);
    let words = words.map(|word| word.strip_prefix('v').unwrap_or(word));
    let mut versions =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    versions.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (text, version) in [
            ("e2fsck 1.47.0 (5-Feb-2023)\n", "1.47.0"),
            ("btrfs-progs v6.2\n", "6.2"),
            ("stress-ng, version 0.15.06 (gcc 12.2.0)", "0.15.06"),
            ("  LVM version:     2.03.16(2) (2022-05-18)", "2.03.16"),
            ("6.18.44-x\n", "6.18.44-x"),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(version_in("none 5"), None);
    }
}
