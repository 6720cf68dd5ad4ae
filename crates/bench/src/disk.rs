//! The disk under a directory: its name and its counters.
//!
//! Removing a file on a file system mounted with `discard` starts discards that continue
//! after the journal's commit. A sample taken meanwhile is too low, so [`Disk::settle`]
//! polls the disk's counters until they stop changing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use extant_space::ByteSize;
use rustix::fs::{major, minor};

/// Counters that rest this long count as quiet.
const QUIET: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Sectors in sysfs are of this size whatever the disk's own.
const SECTOR: u64 = 512;

/// A disk, as sysfs shows it.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its directory in sysfs; none for file systems without a disk (tmpfs, btrfs, FUSE).
    sysfs: Option<PathBuf>,
}

impl Disk {
    /// The disk that holds `path`.
    pub fn of(path: &Path) -> Result<Self> {
        let device = fs::metadata(path)
            .with_context(|| path.display().to_string())?
            .dev();
        let node = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        Ok(Self {
            sysfs: fs::canonicalize(node).ok(),
        })
    }

    /// Bytes written since boot, by all processes.
    pub fn written_bytes(&self) -> Option<u64> {
        Some(self.counters()?.get(6)? * SECTOR)
    }

    /// Returns when nothing has moved for a while, or after `patience`: a disk that others use
    /// is never quiet.
    pub fn settle(&self, patience: Duration) {
        let start = Instant::now();
        let (mut last, mut since) = (self.counters(), start);
        while since.elapsed() < QUIET && start.elapsed() < patience {
            thread::sleep(POLL_INTERVAL);
            let now = self.counters();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Description for the report.
    pub fn describe(&self) -> String {
        let Some(sysfs) = &self.sysfs else {
            return "no disk".to_owned();
        };
        let name = sysfs.file_name().unwrap_or_default().to_string_lossy();
        let size = number(sysfs, "size").map_or_else(String::new, |sectors| {
            format!(", {}", ByteSize(sectors * SECTOR))
        });
        // A partition has its disk's queue.
        let zeroes = number(sysfs, "queue/write_zeroes_max_bytes")
            .or_else(|| number(sysfs.parent()?, "queue/write_zeroes_max_bytes"));
        let zeroes = match zeroes {
            Some(0) => ", no write zeroes",
            Some(_) => ", write zeroes",
            None => "",
        };
        format!("{name}{size}{zeroes}")
    }

    /// The fields of Documentation/block/stat.rst, from the first.
    fn counters(&self) -> Option<Vec<u64>> {
        let text = fs::read_to_string(self.sysfs.as_ref()?.join("stat")).ok()?;
        Some(parse_counters(&text))
    }
}

fn parse_counters(text: &str) -> Vec<u64> {
    text.split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect()
}

fn number(directory: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(directory.join(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_numbered_as_in_the_kernels_document() {
        let text = "   10 1 2048 9   20 2 4096 8   0 7 6   3 0 512 1\n";
        let counters = parse_counters(text);
        assert_eq!((counters.len(), counters[6]), (15, 4096));
    }

    #[test]
    fn place_without_a_disk_settles_at_once() {
        let disk = Disk { sysfs: None };
        let start = Instant::now();
        disk.settle(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(disk.describe(), "no disk");
    }
}
