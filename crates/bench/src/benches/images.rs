//! `images`: disk images made and served, compared with qemu-img and qemu-nbd.
//!
//! - The table of "Preallocation modes of qcow2" (docs/background.md) over NBD: 4 KiB random writes
//!   to images of each format and preallocation mode, at queue depths 1 and 64, with a new image
//!   for each; and reads, and sequential 1 MiB requests.
//! - Each side makes its images ([`image`]) and serves them from a process without the page cache
//!   ([`server`]). fio's NBD engine is the client of both ([`load`]).
//! - On the machine's disk, and on ext4 over a loop device over memory, where the disk is no limit
//!   (not with `--quick`).
//! - Reference: the kernel without a server ([`floor`]).
//! - Creation times of the images ([`creation`]).

mod creation;
mod floor;
mod image;
mod load;
mod server;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use extant_space::ByteSize;
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

/// The bench.
pub struct Images;

/// A location of the images.
struct ImageLocation {
    name: &'static str,
    path: PathBuf,
    size: u64,
    /// Mounted as long as this lives.
    _scratch: Option<Scratch>,
}

impl Bench for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn about(&self) -> &'static str {
        "disk images made and served: extant create and serve beside qemu-img and qemu-nbd"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("qemu-img"),
            Need::Program("qemu-nbd"),
            Need::Program("fallocate"),
            Need::Program("filefrag"),
            Need::Program("mkfs.ext4"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(load::DEPTH_1, 0.95, ""),
                Goal::at_least(load::DEPTH_64_OFF, 1.8, ""),
                Goal::at_least(load::DEPTH_64_MAPPED, 1.6, ""),
                Goal::at_least(load::DEPTH_64_FULL, 2.2, ""),
                Goal::at_least(load::READS, 0.95, ""),
                Goal::at_least(load::HOLES, 1.0, ""),
                Goal::at_most(load::HOLES_CPU, 1.0, ""),
                Goal::at_least(load::IN_ORDER, 0.95, ""),
                Goal::at_most(load::CPU, 1.0, ""),
                Goal::at_most(load::PEAK, 64.0, "MiB"),
                Goal::at_least(creation::ALL_MODES, 1.0, ""),
                Goal::at_least(creation::FULL_WARM, 1.2, ""),
                Goal::at_least(creation::FULL_COLD, 4.0, ""),
                Goal::at_most(creation::EXTENTS, 1.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        size(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let places = places(context)?;
        let shown: Vec<_> = places
            .iter()
            .map(|place| format!("{} on {}", ByteSize(place.size), place.name))
            .collect();
        let mut outcome = Outcome {
            title: format!("images of {}", shown.join(", ")),
            ..Outcome::default()
        };
        creation::measure(context, &places[0], &mut outcome)?;
        load::measure(context, &places, &mut outcome)?;
        floor::measure(context, &places, &mut outcome)?;
        Ok(outcome)
    }
}

/// Writes all of a file system's space once, so that the first sample does not pay for the page
/// faults of the memory below.
fn touch_all(file: &Path) -> Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut all = File::create(file)?;
    let full = loop {
        if let Err(error) = all.write_all(&zeros) {
            break error;
        }
    };
    ensure!(full.kind() == ErrorKind::StorageFull, full);
    all.sync_all()?;
    fs::remove_file(file)?;
    Ok(())
}

fn size(options: &Options) -> u64 {
    options.size(8 << 30, 256 << 20)
}

fn places(context: &Context) -> Result<Vec<ImageLocation>> {
    let size = size(&context.options);
    let disk = ImageLocation {
        name: "disk",
        path: context.path().to_owned(),
        size,
        _scratch: None,
    };
    if context.options.quick {
        return Ok(vec![disk]);
    }
    // Uses twice that memory: the file below the device, and qemu-img's data in the page cache.
    let in_memory = size.min(4 << 30);
    context.step("loop, in memory");
    let device = in_memory + in_memory / 4 + (512 << 20);
    let scratch = Scratch::builder(Filesystem::Ext4, device)
        .memory(device + (device >> 4))
        .build();
    touch_all(&scratch.path().join("touch"))?;
    Ok(vec![
        disk,
        ImageLocation {
            name: "loop",
            path: scratch.path().to_owned(),
            size: in_memory,
            _scratch: Some(scratch),
        },
    ])
}
