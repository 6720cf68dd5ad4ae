//! `pool`: volumes created, listed and cancelled, compared with libvirt.
//!
//! libvirt's side is virsh with a private libvirtd (testkit), which runs for the whole bench and
//! has a pool on the same file system. `extant` has no daemon: each command is a process that opens
//! the pool; each virsh is a process that connects to the daemon. Separate rows show the cost
//! without process start ([`create`]).
//!
//! - [`create`]: one volume at a time on the machine's disk;
//! - [`callers`]: concurrent callers on new file systems in memory, where the disk is no limit;
//! - [`list`]: a list of ten thousand volumes;
//! - [`cancel`]: jobs cancelled at random moments.

mod callers;
mod cancel;
mod create;
mod list;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use extant_testkit::command::{run, text};
use extant_testkit::libvirt::{Libvirt, give};

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

/// The name of libvirt's pool.
const POOL: &str = "bench";

/// The bench.
pub struct Pool;

impl Bench for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn about(&self) -> &'static str {
        "volumes made, listed and cancelled: extant vol and job beside virsh with a libvirtd"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("libvirtd"),
            Need::Program("virsh"),
            Need::Program("setpriv"),
            Need::Program("fio"),
            Need::Program("qemu-img"),
            Need::Program("fallocate"),
            Need::Program("filefrag"),
            Need::Program("mkfs.ext4"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most(create::OVER_VIRSH, 1.0, ""),
                Goal::at_most(create::ALONE_OVER_LIBVIRTD, 1.0, ""),
                Goal::at_most(create::OVER_CEILING, 1.2, ""),
                Goal::at_most(callers::FAILURES, 0.0, "volumes"),
                Goal::at_most(callers::ACCOUNTING, 0.0, "B"),
                Goal::at_most(callers::OVER_TOTAL, 0.0, "volumes"),
                Goal::at_most(callers::EXTENTS, 1.0, ""),
                Goal::at_most(list::TIME, 200.0, "ms"),
                Goal::at_most(cancel::TIME, 100.0, "ms"),
                Goal::at_most(cancel::LEFTOVERS, 0.0, "files"),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        (create::ALONE + 2) * size(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let sides = Sides::start(context)?;
        create::measure(context, &sides, &mut outcome)?;
        callers::measure(context, &sides.libvirt, &mut outcome)?;
        list::measure(context, &sides, &mut outcome)?;
        cancel::measure(context, &mut outcome)?;
        outcome.title = outcome.title.trim_end_matches("; ").to_owned();
        Ok(outcome)
    }
}

/// Size of a volume that is created alone.
fn size(options: &Options) -> u64 {
    options.size(1 << 30, 256 << 20)
}

/// Pools of both sides, on the same disk.
struct Sides {
    libvirt: Libvirt,
    ours: PathBuf,
    theirs: PathBuf,
}

impl Sides {
    fn start(context: &Context) -> Result<Self> {
        context.step("libvirtd");
        let directory = |name: &str| -> Result<PathBuf> {
            let path = context.file(name);
            std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
            Ok(path)
        };
        let sides = Self {
            libvirt: Libvirt::start(),
            ours: directory("extant")?,
            theirs: directory("virsh")?,
        };
        make_pool(&sides.libvirt, POOL, &sides.theirs)?;
        Ok(sides)
    }
}

/// Makes `directory` a pool of libvirt's.
fn make_pool(libvirt: &Libvirt, name: &str, directory: &Path) -> Result<()> {
    give(directory);
    let mut command = libvirt.virsh();
    command.args(["pool-create-as", name, "dir", "--target"]);
    run(command.arg(directory))?;
    Ok(())
}

/// A command of virsh, all of it on one line.
fn virsh(libvirt: &Libvirt, line: &str) -> Command {
    let mut command = libvirt.virsh();
    command.arg(line);
    command
}

/// The line that has libvirt make a volume whose space is reserved.
fn vol_create_as(pool: &str, name: &str, size: u64) -> String {
    format!("vol-create-as {pool} {name} {size}B --allocation {size}B")
}

/// As one would type it.
fn shown(context: &Context, libvirt: &Libvirt, command: &Command) -> String {
    let work = libvirt.work().path().display().to_string();
    context.shown(command).replace(&work, "RUN")
}

/// Runs `extant` and parses its JSON output.
fn ask(command: &mut Command) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(&text(command)?)?)
}
