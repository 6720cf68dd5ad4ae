//! Creates a qcow2 image whose space is written, writes through it, and reads it back.
//!
//!     cargo run -p extant-image --example qcow2_disk -- /tmp/disk.qcow2
//!
//! `qemu-img check` and `qemu-img map` show the result.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use extant_blockdev::{Device, Persistence};
use extant_hostfs::CreateOptions;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::{Format, ImageOptions, create};
use extant_space::{CancelToken, Control, Result, Silent};

const CAPACITY: u64 = 64 << 20;
const AT: u64 = 10 << 20;

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: qcow2_disk FILE");
        std::process::exit(2);
    };
    if let Err(error) = run(&path) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(path: &Path) -> Result<()> {
    let cancel = CancelToken::new();
    let options = ImageOptions::new(Format::Qcow2, CAPACITY);
    let file = CreateOptions::new(options.virtual_bytes);
    create(path, &options, &file, Control::new(&cancel, &Silent))?;

    let disk = ImageDevice::open(path, &DeviceOptions::default())?;
    disk.write_at(&[0x5A; 4096], AT, Persistence::Cached)?;
    disk.flush()?;
    // Another process can open the image from here on.
    drop(disk);

    let disk = ImageDevice::open(path, &DeviceOptions::default())?;
    let mut bytes = [0; 4096];
    disk.read_at(&mut bytes, AT)?;
    assert_eq!(bytes, [0x5A; 4096]);
    println!(
        "{}: a disk of {} bytes, 4096 of them written at {AT}",
        path.display(),
        disk.geometry().size
    );
    Ok(())
}
