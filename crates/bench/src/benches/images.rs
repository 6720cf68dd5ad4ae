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
pub(super) mod image;
mod load;
pub(super) mod server;

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

/// Names of the locations: ext4 and XFS, on the machine's disk and over memory.
pub(super) const DISK: &str = "disk";
pub(super) const LOOP: &str = "loop";
pub(super) const DISK_XFS: &str = "xfs on disk";
pub(super) const LOOP_XFS: &str = "xfs on loop";

/// A location of the images.
pub(super) struct ImageLocation {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    pub(super) size: u64,
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
        let size = size(&context.options);
        let mut outcome = Outcome {
            title: format!("images of {} on the disk", ByteSize(size)),
            ..Outcome::default()
        };
        let selects = |part: &str| context.options.selects(part);
        if selects("creation") {
            let place = ImageLocation::new(context, DISK, size)?;
            creation::measure(context, &place, &mut outcome)?;
        }
        if selects("load") || selects("floor") {
            let mut places = vec![ImageLocation::new(context, DISK, size)?];
            if !context.options.quick {
                // Uses twice that memory: the file below the device, and qemu-img's data in the
                // page cache.
                let in_memory = size.min(4 << 30);
                outcome.title += &format!(", {} in memory", ByteSize(in_memory));
                places.push(ImageLocation::new(context, LOOP, in_memory)?);
            }
            if selects("load") {
                load::measure(context, &places, &mut outcome)?;
            }
            if selects("floor") {
                floor::measure(context, &places, &mut outcome)?;
            }
        }
        Ok(outcome)
    }
}

impl ImageLocation {
    /// Of images of `size`.
    pub(super) fn new(context: &Context, name: &'static str, size: u64) -> Result<Self> {
        let device = size + size / 4 + (512 << 20);
        let in_memory = |filesystem| {
            let scratch = Scratch::builder(filesystem, device).memory(device + (device >> 4));
            Some(scratch.build())
        };
        let scratch = match name {
            LOOP => in_memory(Filesystem::Ext4),
            LOOP_XFS => in_memory(Filesystem::Xfs),
            DISK_XFS => {
                let scratch = Scratch::builder(Filesystem::Xfs, device);
                Some(scratch.backed_in(context.path()).direct_io().build())
            }
            _ => None,
        };
        let path = match &scratch {
            None => context.path().to_owned(),
            Some(scratch) => {
                context.step(name);
                let path = scratch.path().to_owned();
                touch_all(&path.join("touch"))?;
                path
            }
        };
        Ok(Self {
            name,
            path,
            size,
            _scratch: scratch,
        })
    }
}

/// Writes all of a file system's space once, so that no sample pays for page faults of the memory
/// below, nor for holes of the file below.
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
