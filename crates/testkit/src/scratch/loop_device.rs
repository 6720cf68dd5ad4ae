//! A loop device over a file.
//!
//! `losetup --find` asks the kernel for a free number and then claims it. Another process may claim
//! it first, and the kernel creates device nodes asynchronously. Both are transient failures, so
//! attaching is retried for `ATTACH_TIMEOUT`.
//!
//! The kernel detaches at the last close. A process that scans all devices may have it open for a
//! moment; drop waits for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{self, run, tool};

const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a loop device accesses its backing file through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Buffered.
    Off,
    /// `O_DIRECT` on the backing file.
    On,
}

/// An attached loop device. Detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    node: PathBuf,
}

impl LoopDevice {
    /// A device over `file`, buffered, with sectors of 512 bytes.
    ///
    /// # Panics
    /// As [`attach_with`](Self::attach_with).
    #[track_caller]
    pub fn attach(file: &Path) -> Self {
        Self::attach_with(file, DirectIo::Off, 512)
    }

    /// A device over `file`.
    ///
    /// # Panics
    /// When none can be had within 10 seconds.
    #[track_caller]
    pub fn attach_with(file: &Path, direct_io: DirectIo, sector_bytes: u32) -> Self {
        let direct = match direct_io {
            DirectIo::Off => "off",
            DirectIo::On => "on",
        };
        let start = Instant::now();
        loop {
            let answer = command::text(
                tool("losetup")
                    .args(["--find", "--show"])
                    .arg(format!("--direct-io={direct}"))
                    .arg(format!("--sector-size={sector_bytes}"))
                    .arg(file),
            );
            match answer {
                Ok(node) => {
                    let device = Self {
                        node: node.trim_end().into(),
                    };
                    device.forget_partitions();
                    return device;
                }
                Err(failure) if start.elapsed() > ATTACH_TIMEOUT => panic!("{failure}"),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Its node, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.node
    }

    /// Sets the device's size to that of its backing file.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn update_size(&self) {
        command::must(tool("losetup").arg("--set-capacity").arg(&self.node));
    }
}

impl LoopDevice {
    fn sysfs(&self) -> PathBuf {
        let name = self.node.file_name().expect("a node");
        Path::new("/sys/block").join(name)
    }

    /// The file behind it, as the kernel names it; none once detached.
    fn backing(&self) -> Option<String> {
        fs::read_to_string(self.sysfs().join("loop/backing_file")).ok()
    }

    /// The kernel's partitions outlive the device, and would be those of the next one of its
    /// number.
    fn forget_partitions(&self) {
        let is_partition = |entry: &fs::DirEntry| entry.path().join("partition").exists();
        let entries = fs::read_dir(self.sysfs());
        let mut entries = entries.into_iter().flatten().flatten();
        if entries.any(|entry| is_partition(&entry))
            && let Err(failure) = run(tool("partx").arg("--delete").arg(&self.node))
        {
            eprintln!("left behind: {failure}");
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.forget_partitions();
        let file = self.backing();
        if let Err(failure) = run(tool("losetup").arg("--detach").arg(&self.node)) {
            eprintln!("left behind: {failure}");
        }
        // Another file under the number is another device. One kept busy by a detached mount is
        // removed later, with its last open file.
        let start = Instant::now();
        while file.is_some() && self.backing() == file && start.elapsed() < DETACH_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
