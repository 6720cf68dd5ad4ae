//! `exports`: the front ends of disk images, compared with QEMU's.
//!
//! - vhost-user-blk ([`front`]): `extant serve --vhost-user` and qemu-storage-daemon. The client is
//!   the driver of a virtio disk without a guest ([`sys`]), which polls or sleeps ([`driver`]).
//! - NBD: `extant serve` and qemu-nbd. A file by FUSE: `extant image mount` and
//!   qemu-storage-daemon. fio is the client of both.
//! - The images and modes are those of `images`, in memory (tmpfs) and on the machine's disk.
//!   4 KiB random requests at depths 1 to 256, and 1 MiB in order ([`job`]).
//! - ublk: `extant serve --ublk`, and qemu-nbd with the kernel's NBD client, both in the test kit's
//!   guest ([`guest`]), as this machine's kernel need not have the driver.
//! - Limits: a device that does nothing behind our vhost-user server ([`noop`]), and fio on the
//!   file without a server.

mod driver;
mod front;
mod guest;
mod job;
pub(crate) mod noop;
mod results;
mod samples;
#[allow(unsafe_code)]
mod sys;

use anyhow::Result;
use extant_space::ByteSize;

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

/// The bench.
pub struct Exports;

impl Bench for Exports {
    fn name(&self) -> &'static str {
        "exports"
    }

    fn about(&self) -> &'static str {
        "front ends of images: vhost-user, NBD, FUSE and ublk beside those of QEMU"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("qemu-img"),
            Need::Program("qemu-nbd"),
            Need::Program("qemu-storage-daemon"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        results::GOALS
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        4 * size(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let size = size(&context.options);
        let mut outcome = Outcome {
            title: format!(
                "images of {}, thin ones of {}",
                ByteSize(size),
                ByteSize(4 * size)
            ),
            ..Outcome::default()
        };
        samples::take(context, size, &mut outcome)?;
        results::evaluate(&mut outcome)?;
        guest::take(context, &mut outcome)?;
        Ok(outcome)
    }
}

fn size(options: &Options) -> u64 {
    options.size(1 << 30, 512 << 20)
}
