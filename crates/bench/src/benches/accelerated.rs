//! `accelerated`: written files by a disk's own write zeroes, in a guest.
//!
//! The three tables of "Forced zeroes" (docs/background.md) need an NVMe disk whose write zeroes
//! unmap (DEAC) and Linux 6.17 or later. The test kit's guest has both: QEMU emulates the disk, and
//! where there is no KVM the processor as well. So absolute rates are those of the emulation, and
//! only ratios of one run count.
//!
//! One script runs all samples in one guest, each printing behind a mark; this program composes the
//! commands and reads what they print. Disks of the guest: 0 NVMe and 1 virtio, on sparse files of
//! the run's directory; 2 to 4 NVMe on files in memory, so that a flush waits for no other disk.

mod beside;
mod creation;
pub(in crate::benches) mod guest;
mod sync;

use std::fs;
use std::path::Path;

use anyhow::Result;
use extant_space::ByteSize;
use extant_testkit::guest::{Bus, Disk, Guest};
use extant_testkit::scratch::Mount;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;
use beside::Jobs;
use guest::{Script, sparse};

const RATE: &str = "MiB/s";

/// The bench.
pub struct Accelerated;

impl Bench for Accelerated {
    fn name(&self) -> &'static str {
        "accelerated"
    }

    fn about(&self) -> &'static str {
        "written files by an NVMe disk's write zeroes, in a guest with a newer kernel: ratios"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("dd"),
            Need::Program("fallocate"),
            Need::Guest,
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                creation::GOALS[0],
                creation::GOALS[1],
                creation::GOALS[2],
                creation::GOALS[3],
                beside::GOALS[0],
                beside::GOALS[1],
                sync::GOALS[0],
                sync::GOALS[1],
                sync::GOALS[2],
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        Sizes::of(options).disk
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let options = &context.options;
        let runs = options.runs(3, 1);
        let sizes = Sizes::of(options);
        let jobs = Jobs::of(options, sizes.beside);

        let mut script = Script::new();
        for (disk, place) in [("/dev/disk0", "/nvme"), ("/dev/disk1", "/virtio")] {
            script.prepare(&format!(
                "formatted {disk} {place} ext4 -E lazy_itable_init=0,lazy_journal_init=0"
            ));
        }
        creation::add(&mut script, runs, sizes.small, sizes.large);
        beside::add(&mut script, runs, &jobs);
        sync::add(&mut script, runs, options);

        let memory = context.file("memory");
        fs::create_dir(&memory)?;
        let memory = Mount::new("tmpfs", Path::new("tmpfs"), &memory, "");
        let disks = disks(context, &sizes, memory.path())?;
        context.step("the guest, all samples");
        let (mut metrics, kernel) = script.run(context, disks)?;
        drop(memory);

        let mut outcome = Outcome {
            title: format!(
                "guest kernel {kernel}, QEMU {}; {} and {}, {runs} rounds",
                Guest::accelerator(),
                ByteSize(sizes.small),
                ByteSize(sizes.large),
            ),
            notes: vec![
                "disks are emulated by QEMU (and processors, with tcg): absolute rates are the \
                 emulation's, ratios are what counts"
                    .to_owned(),
                format!("dd of {} runs once", ByteSize(sizes.large)),
            ],
            ..Outcome::default()
        };
        creation::report(&metrics, sizes.small, sizes.large, &mut outcome)?;
        beside::report(&mut metrics, &mut outcome)?;
        sync::report(&metrics, &mut outcome)?;
        outcome.metrics = metrics;
        Ok(outcome)
    }
}

/// Sizes of files and of the first disk.
struct Sizes {
    small: u64,
    large: u64,
    /// Of the file made beside the jobs: start and end of the command are a small part.
    beside: u64,
    disk: u64,
}

impl Sizes {
    /// The seed's 1 and 10 GB, or as asked for and a tenth of that.
    fn of(options: &Options) -> Self {
        const BLOCK: u64 = 2 << 20;
        let large = options.size(10 << 30, 1 << 30);
        let small = (large / 10).next_multiple_of(BLOCK);
        let beside = 4 * small;
        let jobs = Jobs::of(options, beside);
        Self {
            small,
            large,
            beside,
            disk: large + 4 * small + jobs.disk_bytes() + (2 << 30),
        }
    }
}

fn disks(context: &Context, sizes: &Sizes, memory: &Path) -> Result<Vec<Disk>> {
    let mut disks = vec![
        Disk {
            file: sparse(context.file("nvme"), sizes.disk)?,
            bus: Bus::Nvme,
        },
        Disk {
            file: sparse(context.file("virtio"), 2 * sizes.small + (1 << 30))?,
            bus: Bus::Virtio,
        },
    ];
    let bytes = 2 * sync::file_bytes(&context.options) + (1 << 30);
    for number in 0..sync::FILESYSTEMS.len() {
        disks.push(Disk {
            file: sparse(memory.join(number.to_string()), bytes)?,
            bus: Bus::Nvme,
        });
    }
    Ok(disks)
}
