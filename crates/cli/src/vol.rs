//! `extant vol`: the volumes of a pool.
//!
//! Long operations are jobs: `work.rs` runs it here with a bar, or hands it to a separate process.

mod clone;
mod create;
mod delete;
mod format;
mod info;
mod list;
mod resize;
mod transfer;
mod wipe;
mod work;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use extant_space::{CancelToken, Result};

use crate::exit::{self, Style};
use crate::print;
use crate::signals::EndAtOnce;

pub use work::{detach, finish};

/// Make and change the volumes of a pool.
///
/// A volume is a file in the pool's directory, or a partition of its disk. It appears under its
/// name only when it is complete. Long operations are jobs: `extant job` shows them, and cancels
/// them from elsewhere; an interrupted job can be resumed.
#[derive(Args, Clone, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant vol create vms web.raw 20GiB               zeroed and written
  extant vol create vms web.qcow2 20GiB             the same as a qcow2 image
  extant vol clone vms web.raw web-2.raw
  extant vol info vms web.raw
  extant vol list /srv/other                        any directory is a pool

libvirt sees changes after virsh pool-refresh: docs/libvirt.md. Volumes have the mode 0600; libvirt gives a volume to the
user of QEMU while a guest runs.
Exit status: see extant --help."
)]
pub struct VolArgs {
    #[command(subcommand)]
    command: VolCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum VolCommand {
    Create(create::CreateArgs),
    List(list::ListArgs),
    Info(info::InfoArgs),
    Format(format::FormatArgs),
    Resize(resize::ResizeArgs),
    Clone(clone::CloneArgs),
    Materialize(wipe::MaterializeArgs),
    Wipe(wipe::WipeArgs),
    Delete(delete::DeleteArgs),
    Upload(transfer::UploadArgs),
    Download(transfer::DownloadArgs),
}

/// Runs one of the commands.
pub fn run(args: &VolArgs, cancel: &CancelToken) -> ExitCode {
    let _ends =
        matches!(args.command, VolCommand::List(_) | VolCommand::Info(_)).then(EndAtOnce::new);
    let work = match &args.command {
        VolCommand::List(args) => return told(list::run(args)),
        VolCommand::Info(args) => return told(info::run(args)),
        VolCommand::Format(args) => return told(format::run(args)),
        VolCommand::Create(args) => &args.work.run,
        VolCommand::Resize(args) => &args.work.run,
        VolCommand::Clone(args) => &args.work.run,
        VolCommand::Materialize(args) => &args.work.run,
        VolCommand::Wipe(args) => &args.work.run,
        VolCommand::Upload(args) => &args.work.run,
        VolCommand::Download(args) => &args.work.run,
        VolCommand::Delete(args) => &args.run,
    };
    let progress = &work.output.progress;
    let said = progress.show(|display| match &args.command {
        VolCommand::Create(args) => create::run(args, display, cancel),
        VolCommand::Resize(args) => resize::run(args, display, cancel),
        VolCommand::Clone(args) => clone::run(args, display, cancel),
        VolCommand::Materialize(args) => wipe::materialize(args, display, cancel),
        VolCommand::Wipe(args) => wipe::run(args, display, cancel),
        VolCommand::Upload(args) => transfer::upload(args, display, cancel),
        VolCommand::Download(args) => transfer::download(args, display, cancel),
        VolCommand::Delete(args) => delete::run(args, display, cancel),
        VolCommand::List(_) | VolCommand::Info(_) | VolCommand::Format(_) => {
            unreachable!("run above")
        }
    });
    match said {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

fn told(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| exit::report(&error, Style::Line))
}
