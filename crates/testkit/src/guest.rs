//! A guest with a newer kernel, for operations that this machine's kernel or disks do not support.
//!
//! QEMU boots Debian's newest backported kernel with a small userland. Its disks may be
//! NVMe whose write zeroes unmap, as `FALLOC_FL_WRITE_ZEROES` requires; under virtio the same
//! kernel refuses. A run takes some seconds, also without KVM: then QEMU translates.
//!
//! Everything, including QEMU, is in one directory ([`prepare`](Guest::prepare)) and runs from
//! there; nothing is installed, mounted or chrooted. The guest sees the directory read-only
//! below an overlay in memory, so any number of guests may run at once.

mod image;
mod run;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::{self, Recipe, Result};
use crate::requires::{self, Requirement};
use crate::{command, debian};

/// The guest's directory is made for this architecture only.
const ARCHITECTURE: &str = "amd64";

/// How a disk appears in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// NVMe with write zeroes that unmap.
    Nvme,
    /// virtio-blk, which has no unmapping write zeroes.
    Virtio,
    /// virtio-blk of another process, whose socket is the file. Its serial number must be `disk`
    /// with the place of the disk among all of them. QEMU connects again when the process is
    /// replaced.
    VhostUser,
}

/// A disk of the guest over a raw file of the host.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The file, or another QEMU file name such as the URI of an NBD export.
    pub file: PathBuf,
    /// How it appears.
    pub bus: Bus,
}

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual processors.
    pub processors: u32,
    /// The guest is killed after this time.
    pub timeout: Duration,
    /// Disks, in the guest `/dev/disk0`, `/dev/disk1`, and so on.
    pub disks: Vec<Disk>,
    /// A directory of the host, in the guest `/host`, writable.
    pub shared: Option<PathBuf>,
}

impl Default for Options {
    /// 1 GiB, two processors, two minutes, no disks.
    fn default() -> Self {
        Self {
            memory_mib: 1024,
            processors: 2,
            timeout: Duration::from_secs(300),
            disks: Vec::new(),
            shared: None,
        }
    }
}

/// How a script in the guest ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its status.
    pub status: i32,
    /// Output, with stderr.
    pub text: String,
}

impl Output {
    /// The text between the line `### NAME` and the next such line.
    pub fn section(&self, name: &str) -> Option<&str> {
        let begin = format!("\n### {name}\n");
        let (_, rest) = self.text.split_once(&begin)?;
        Some(rest.split("\n### ").next().unwrap_or_default().trim())
    }
}

/// The guest.
#[derive(Debug)]
pub struct Guest;

impl Guest {
    /// Fetches kernel, userland and QEMU, unless that was done before: some 290 MB, about
    /// two minutes, as root.
    ///
    /// The directory is `$EXTANT_GUEST_LAB`, or `guest` among the [oracles](lab::directory).
    pub fn prepare() -> Result<()> {
        let machine = debian::architecture()?;
        if machine != ARCHITECTURE {
            return Err(format!("the guest is for {ARCHITECTURE}, not {machine}").into());
        }
        recipe().prepare(image::make)
    }

    /// For [`require!`](crate::require): it was prepared, and the user may run it.
    pub fn requirement() -> Requirement {
        let needs = [requires::root(), requires::tool("timeout")];
        let met = needs.iter().all(Requirement::is_met) && recipe().is_ready();
        Requirement::new("root and the guest (oracles prepare)", met)
    }

    /// QEMU with its modules and firmware, without a guest: for machines of a test's own. It is
    /// killed after `timeout`.
    ///
    /// # Panics
    /// When the guest cannot be prepared.
    #[track_caller]
    pub fn qemu(timeout: Duration) -> std::process::Command {
        let prepared = Self::prepare().and_then(|()| qemu(&recipe().directory, timeout));
        prepared.unwrap_or_else(|error| panic!("guest: {error}"))
    }

    /// The accelerator of QEMU: `kvm`, or `tcg` with its options where processors are emulated.
    pub fn accelerator() -> &'static str {
        accelerator().0
    }

    /// Boots a guest, runs `script` in it as root by the interpreter of its first line,
    /// and ends it. Prepares the guest first where need be.
    ///
    /// # Panics
    /// When the guest cannot be prepared or started, or ends without a status of the
    /// script: then with the last output of QEMU and the kernel.
    #[track_caller]
    pub fn run(script: &str, options: &Options) -> Output {
        Self::prepare().unwrap_or_else(|error| panic!("guest: {error}"));
        run::run(&recipe().directory, script, options)
            .unwrap_or_else(|error| panic!("guest: {error}"))
    }
}

fn recipe() -> Recipe {
    let chosen = std::env::var_os("EXTANT_GUEST_LAB").map(PathBuf::from);
    Recipe {
        directory: chosen.unwrap_or_else(|| lab::directory().join("guest")),
        version: "5: trixie with fio, nbd-client, qemu-nbd, lvm2 and mdadm, kernel and QEMU of its backports",
    }
}

/// The system that the guest sees, and that QEMU runs from.
fn root(lab: &Path) -> PathBuf {
    lab.join("root")
}

/// KVM, where it boots a stock kernel: not under pvm, where such a guest dies.
fn accelerator() -> (&'static str, &'static str) {
    let is_pvm = Path::new("/sys/module/kvm_pvm").exists();
    let opened = std::fs::OpenOptions::new().write(true).open("/dev/kvm");
    if opened.is_ok() && !is_pvm {
        ("kvm", "host")
    } else {
        ("tcg,thread=multi", "max")
    }
}

/// QEMU of the guest's directory, for a limited time even when the test is killed.
fn qemu(lab: &Path, timeout: Duration) -> Result<std::process::Command> {
    let root = root(lab);
    let loaded = lab::foreign(&root, "usr/bin/qemu-system-x86_64")?;
    let mut command = command::tool("timeout");
    command
        .env(
            "QEMU_MODULE_DIR",
            root.join("usr/lib/x86_64-linux-gnu/qemu"),
        )
        .arg("--kill-after=5")
        .arg(timeout.as_secs_f64().to_string())
        .arg(loaded.get_program())
        .args(loaded.get_args())
        .arg("-L")
        .arg(root.join("usr/share/qemu"))
        .arg("-L")
        .arg(root.join("usr/share/seabios"));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_ends_at_the_next_mark_or_with_the_output() {
        let output = Output {
            status: 0,
            text: "boot\n\n### a\none\ntwo\n\n### ab\nthree\n".to_owned(),
        };
        assert_eq!(output.section("a"), Some("one\ntwo"));
        assert_eq!(output.section("ab"), Some("three"));
        assert_eq!(output.section("b"), None);
    }
}
