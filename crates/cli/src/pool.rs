//! `extant pool`: directories and ext4 images with limits, by name.

mod define;
mod info;
pub mod json;
mod list;
mod place;
mod refresh;
pub mod xml;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use extant_space::Result;

use crate::exit::{self, Style};
use crate::signals::EndAtOnce;

pub use place::{AnyPoolArgs, ConfigArgs, PoolArgs};

/// Define pools: directories of volumes, with limits.
///
/// Any directory is a pool without a definition, and so is the root of any ext4 image, which needs
/// neither root nor a mount. A definition gives a pool a name and a limit for promised space.
/// Only existing space is promised, unless an overcommit allows more: of two volumes that do not
/// both fit, one is refused.
#[derive(Args, Clone, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant pool define vms /srv/vms
  extant pool info vms
  extant pool info /srv/other         a directory, with the default limits
  extant pool info ./disk.img         an ext4 image, without root or mount
  extant pool refresh vms             what killed processes have left

Definitions are kept in /etc/extant/pools, those of users in $XDG_CONFIG_HOME/extant/pools; users see both, their own first.
libvirt's tools can use the same directories: docs/libvirt.md.
Exit status: see extant --help."
)]
pub struct PoolCommandArgs {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PoolCommand {
    Define(Box<define::DefineArgs>),
    List(list::ListArgs),
    Info(info::InfoArgs),
    Refresh(refresh::RefreshArgs),
    Delete(define::DeleteArgs),
}

/// Runs one of the commands.
pub fn run(args: &PoolCommandArgs) -> ExitCode {
    let _ends =
        matches!(args.command, PoolCommand::List(_) | PoolCommand::Info(_)).then(EndAtOnce::new);
    let result: Result<ExitCode> = match &args.command {
        PoolCommand::Define(args) => define::run(args),
        PoolCommand::List(args) => list::run(args),
        PoolCommand::Info(args) => info::run(args),
        PoolCommand::Refresh(args) => refresh::run(args),
        PoolCommand::Delete(args) => define::delete(args),
    };
    result.unwrap_or_else(|error| exit::report(&error, Style::Line))
}
