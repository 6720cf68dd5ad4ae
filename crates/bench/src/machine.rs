//! The machine that a number belongs to.

use std::fs;
use std::path::Path;

use anyhow::Result;
use extant_space::ByteSize;
use serde::{Deserialize, Serialize};

use crate::disk::Disk;

/// The machine, as context of the numbers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors this program may use.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// The disk measured on.
    pub disk: String,
    /// The file system measured on, with its mount options.
    pub file_system: String,
    /// Load average of the last minute when the bench began: above 0.5, other processes are active.
    pub load: f64,
}

impl Machine {
    /// This machine, with the disk and file system of `directory`.
    pub fn of(directory: &Path, disk: &Disk) -> Result<Self> {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let load = read("/proc/loadavg");
        Ok(Self {
            cpu: value(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism()?.get(),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            disk: disk.describe(),
            file_system: mount_of(&read("/proc/self/mounts"), directory).unwrap_or_default(),
            load: load
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
        })
    }

    /// The properties by which figures are comparable: everything but the load.
    pub fn comparable_line(&self) -> String {
        format!(
            "{}, {} processors, {}, kernel {}, disk {}, {}",
            self.cpu,
            self.cores,
            ByteSize(self.memory_bytes >> 28 << 28),
            self.kernel,
            self.disk,
            self.file_system
        )
    }

    /// In one line.
    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {}, kernel {}, disk {}, {}, load {}",
            self.cpu,
            self.cores,
            ByteSize(self.memory_bytes >> 28 << 28),
            self.kernel,
            self.disk,
            self.file_system,
            self.load
        )
    }
}

/// The value behind `key` and a colon.
fn value(text: &str, key: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

fn memory(text: &str) -> u64 {
    let total = value(text, "MemTotal").unwrap_or_default();
    let kib: u64 = total.trim_end_matches(" kB").parse().unwrap_or_default();
    kib << 10
}

/// Type and options of the mount that holds `directory`: the longest that is a prefix, the
/// last of equals.
fn mount_of(mounts: &str, directory: &Path) -> Option<String> {
    let fields = mounts.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        Some((*fields.get(1)?, *fields.get(2)?, *fields.get(3)?))
    });
    let holding = fields.filter(|(place, ..)| directory.starts_with(place));
    let (_, kind, options) = holding.max_by_key(|(place, ..)| place.len())?;
    Some(format!("{kind} ({options})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_the_innermost_and_the_last() {
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /x xfs rw 0 0\n/dev/c /x btrfs ro 0 0\n";
        let mount = |directory| mount_of(mounts, Path::new(directory));
        assert_eq!(mount("/x/y").as_deref(), Some("btrfs (ro)"));
        assert_eq!(mount("/xy").as_deref(), Some("ext4 (rw)"));
    }

    #[test]
    fn memory_and_model_are_read_from_the_kernels_texts() {
        assert_eq!(
            memory("MemTotal:       24683520 kB\nMemFree: 1 kB\n"),
            24_683_520 << 10
        );
        let cpu = "processor\t: 0\nmodel name\t: A: B\n";
        assert_eq!(value(cpu, "model name").as_deref(), Some("A: B"));
    }
}
