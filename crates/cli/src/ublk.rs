//! `extant ublk`: the ublk disks of this machine. `extant serve --ublk` makes them.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use extant_space::{ByteSize, Result};
use serde::Serialize;

use crate::exit::{self, Style};
use crate::print;
use crate::table::Table;

/// List and remove the ublk disks of this machine; `extant serve --ublk` makes them.
#[derive(Args, Clone, Debug)]
pub struct UblkArgs {
    #[command(subcommand)]
    command: UblkCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum UblkCommand {
    List(ListArgs),
    Delete(DeleteArgs),
}

/// List ublk disks, also those of other programs.
///
/// A disk whose state is "waiting" lost its server: `extant serve FILE --ublk=N` continues it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant ublk list
  extant ublk list --json

Exit status: see extant --help.")]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a ublk disk that lost its server. Requests that wait for it fail.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant ublk delete 0                  /dev/ublkb0

Exit status: see extant --help; 4 while a server serves it.")]
struct DeleteArgs {
    /// The number of the disk
    #[arg(value_name = "N")]
    number: u32,
}

#[derive(Serialize)]
struct List {
    disks: Vec<DiskJson>,
}

#[derive(Serialize)]
struct DiskJson {
    number: u32,
    path: String,
    capacity_bytes: u64,
    state: &'static str,
    server_pid: i32,
    is_extant: bool,
}

/// Runs the command.
pub fn run(args: &UblkArgs) -> ExitCode {
    let done = match &args.command {
        UblkCommand::List(args) => list(args),
        UblkCommand::Delete(args) => extant_ublk::delete(args.number).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => exit::report(&error, Style::Line),
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let disks = extant_ublk::list()?;
    if args.json {
        let disks = disks.into_iter().map(|disk| DiskJson {
            number: disk.id,
            path: disk.path,
            capacity_bytes: disk.size_bytes,
            state: disk.state.name(),
            server_pid: disk.server_pid,
            is_extant: disk.is_own,
        });
        let disks = disks.collect();
        return Ok(print::json(&List { disks }));
    }
    let mut table = Table::new(&["disk", "size", "state", "server", "made by"]);
    for disk in disks {
        table.row([
            disk.path,
            ByteSize(disk.size_bytes).to_string(),
            disk.state.name().to_owned(),
            disk.server_pid.to_string(),
            if disk.is_own {
                "extant"
            } else {
                "another program"
            }
            .to_owned(),
        ]);
    }
    Ok(print::text(table))
}
