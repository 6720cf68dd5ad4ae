//! `pool`: volumes made, listed and cancelled, beside libvirt.
//!
//! libvirt's side is virsh and a libvirtd of its own (testkit), which stays for the whole run and keeps a pool in the same place.
//! `extant` has no daemon: each command is a process that opens the pool, and so is each virsh, which connects to the daemon. What the
//! processes take by themselves has rows of its own ([`create`]).
//!
//! One volume at a time on the machine's disk ([`create`]); many callers at once on fresh file systems in memory, where the disk
//! is no limit ([`callers`]); ten thousand volumes in a list ([`list`]); jobs cancelled at random moments ([`cancel`]).

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

/// Of a volume that is made alone.
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
        let folder = |name: &str| -> Result<PathBuf> {
            let path = context.file(name);
            std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
            Ok(path)
        };
        let sides = Self {
            libvirt: Libvirt::start(),
            ours: folder("extant")?,
            theirs: folder("virsh")?,
        };
        make_pool(&sides.libvirt, POOL, &sides.theirs)?;
        Ok(sides)
    }
}

/// Makes `folder` a pool of libvirt's.
fn make_pool(libvirt: &Libvirt, name: &str, folder: &Path) -> Result<()> {
    give(folder);
    let mut command = libvirt.virsh();
    command.args(["pool-create-as", name, "dir", "--target"]);
    run(command.arg(folder))?;
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

/// What `extant` answers as JSON.
fn ask(command: &mut Command) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(&text(command)?)?)
}
