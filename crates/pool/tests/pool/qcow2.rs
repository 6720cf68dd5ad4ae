//! qcow2 volumes, with qemu-img as the oracle; and files whose content contradicts their format.

mod formats;
mod inside;
mod jobs;
mod space;
mod volumes;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use extant_image::{Format, Preallocation};
use extant_pool::{CreateVolume, Operation, Pool, Resize, Upload};
use extant_testkit::command;
use extant_testkit::requires::{Requirement, tool};
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::stand::{KIB, MIB, in_memory, materialize, name, perform, pool_at, wipe};

const CLUSTER: u64 = 64 * KIB;
const MODES: [Preallocation; 4] = Preallocation::ALL;

fn qemu_img() -> Requirement {
    tool("qemu-img")
}

#[track_caller]
fn qemu(program: &str, arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = command::tool(program);
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command::text(&mut command).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Neither an error nor a leak, and of this size.
#[track_caller]
fn assert_image(path: &Path, virtual_bytes: u64) {
    qemu("qemu-img", &[&"check", &"-q", &"-f", &"qcow2", &path]);
    let info = qemu(
        "qemu-img",
        &[&"info", &"-f", &"qcow2", &"--output=json", &path],
    );
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], virtual_bytes, "{info}");
}

/// The disk reads as these bytes.
#[track_caller]
fn assert_reads(path: &Path, content: &[u8]) {
    let layer = extant_image::open_path(
        path,
        Some(Format::Qcow2),
        extant_image::ReferencedFiles::Ignore,
    );
    let layer = layer.unwrap();
    assert_eq!(layer.virtual_bytes(), content.len() as u64);
    let mut found = vec![0; content.len()];
    layer.read_at(&mut found, 0).unwrap();
    assert!(found == content, "{}", path.display());
}

fn image(volume: &str, bytes: u64, preallocation: Preallocation) -> CreateVolume {
    let mut create = CreateVolume::new(name(volume), bytes, preallocation);
    create.format = Format::Qcow2;
    create
}

fn resize(volume: &str, bytes: u64, preallocation: Preallocation, shrink: bool) -> Operation {
    Operation::Resize(Resize {
        volume: name(volume),
        capacity_bytes: bytes,
        preallocation,
        shrink,
    })
}

fn upload(volume: &str, source: &Path, format: Option<Format>) -> Upload {
    Upload {
        format,
        ..crate::stand::upload(volume, source)
    }
}

struct Stand {
    // Dropped in this order: an open directory cannot be unmounted.
    pool: Pool,
    scratch: Scratch,
    outside: PathBuf,
}

impl Stand {
    fn new() -> Self {
        let scratch = in_memory(Filesystem::Ext4, 256 * MIB);
        let outside = scratch.directory_beside("outside");
        let pool = pool_at(scratch.path());
        Self {
            pool,
            scratch,
            outside,
        }
    }

    fn path(&self, volume: &str) -> PathBuf {
        self.scratch.path().join(volume)
    }

    /// A thin image of 8 MiB with data in it; returns the content of its virtual disk.
    fn with_data(&self, volume: &str) -> Vec<u8> {
        let create = image(volume, 8 * MIB, Preallocation::Off);
        perform(&self.pool, Operation::Create(create)).unwrap();
        self.write_data(volume);
        let mut content = vec![0; 8 << 20];
        content[1 << 20..4 << 20].fill(7);
        content[5 << 20..(5 << 20) + 1000].fill(9);
        content
    }

    fn write_data(&self, volume: &str) {
        let path = self.path(volume);
        for write in ["write -P 7 1M 3M", "write -P 9 5M 1000"] {
            qemu("qemu-io", &[&"-f", &"qcow2", &"-c", &write, &path]);
        }
    }
}
