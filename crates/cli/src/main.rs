//! `extant`: the command.
//!
//! It adds arguments and output to the libraries: `extant-hostfs` for host files, `extant-ext4` for
//! files inside file-system images, `extant-image` for disk images, `extant-pool` for pools. One
//! file per subcommand. Results are printed on stdout, progress and errors on stderr; `exit.rs`
//! defines the exit status.
//!
//! Module layers, lowest first:
//!
//! 1. `background`, `complete`, `help`, `print`, `remedy`, `system_log`, `table`, `terminal`,
//!    `trace`, `words`: output
//! 2. `file_location`, `image_format`, `image_options`, `layers`: single values
//! 3. `exit`, `fs_image`, `log`: exit status, ext4 file systems in files, the log of a server
//! 4. `in_image`, `man`, `map`, `progress`, `signals`, `ublk`, `umount`: files inside file-system
//!    images, and commands that need no others
//! 5. `arguments`, `fallocate`, `generate`, `mount`: arguments of long operations
//! 6. `assign`, `create`, `fs`, `pool`: layers below files, new files, file-system images, pools
//! 7. `source`: the devices of servers
//! 8. `image`, `probe`, `serve`, `vol`: disk images, servers, volumes
//! 9. `job`, `materialize`: jobs, and commands that use those above

#![forbid(unsafe_code)]

mod arguments;
mod assign;
mod background;
mod complete;
mod create;
mod exit;
mod fallocate;
mod file_location;
mod fs;
mod fs_image;
mod generate;
mod help;
mod image;
mod image_format;
mod image_options;
mod in_image;
mod job;
mod layers;
mod log;
mod man;
mod map;
mod materialize;
mod mount;
mod pool;
mod print;
mod probe;
mod progress;
mod remedy;
mod serve;
mod signals;
mod source;
mod system_log;
mod table;
mod terminal;
mod trace;
mod ublk;
mod umount;
mod vol;
mod words;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names of links to the program that stand for other programs.
const OTHER_NAMES: [&str; 3] = ["fallocate", "mount.fuse.extant", "umount.fuse.extant"];

/// Disk space that is really there: zeroed, written, in few pieces.
#[derive(Debug, Parser)]
#[command(
    name = "extant",
    version,
    arg_required_else_help = true,
    after_help = exit::HELP,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    trace: trace::TraceArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::CreateArgs),
    Fallocate(fallocate::FallocateArgs),
    Materialize(materialize::MaterializeArgs),
    Assign(assign::AssignArgs),
    Map(map::MapArgs),
    Image(image::ImageArgs),
    Fs(fs::FsArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Serve(serve::ServeArgs),
    Ublk(ublk::UblkArgs),
    Pool(pool::PoolCommandArgs),
    Vol(vol::VolArgs),
    Job(job::JobArgs),
    Probe(probe::ProbeArgs),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    // Before anything is printed, and before signals are caught: a shell may end it.
    complete::answer();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments
        .first()
        .is_some_and(|name| name == extant_hostfs::HELPER)
    {
        return extant_hostfs::help(arguments.get(1).map(OsString::as_os_str));
    }
    extant_hostfs::use_helper();
    let cancel = match signals::catch() {
        Ok(cancel) => cancel,
        Err(error) => return exit::report(&error, exit::Style::Line),
    };
    note_json(&arguments);
    // Under another name it takes the arguments of another program alone.
    let has_options = called_as(&arguments).is_none_or(|name| !OTHER_NAMES.contains(&name));
    let traced = if has_options {
        trace::start(&mut arguments)
    } else {
        trace::start(&mut Vec::new())
    };
    if let Err(error) = traced {
        return if has_options && fallocate_arguments(&arguments).is_none() {
            exit::report(&error, exit::Style::Line)
        } else {
            exit::report_as(&error, exit::Style::Line, 1)
        };
    }
    match called_as(&arguments) {
        Some("mount.fuse.extant") => return mount::mount_helper(&arguments, &cancel),
        Some("umount.fuse.extant") => return mount::umount_helper(&arguments, &cancel),
        _ => {}
    }
    // fallocate(1) has exit codes and usage messages of its own, also under its own name.
    if let Some(rest) = fallocate_arguments(&arguments) {
        return fallocate::run(rest, &cancel);
    }
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            return match image::refusal(&arguments, &error) {
                Some(refusal) => exit::report(&refusal, exit::Style::Line),
                None => exit::usage(&error),
            };
        }
    };
    match cli.command {
        Command::Create(args) => create::run(&args, &cancel),
        Command::Materialize(args) => materialize::run(&args, &cancel),
        Command::Assign(args) => assign::run(&args, &cancel),
        Command::Map(args) => match map::run(&args) {
            Ok(code) => code,
            Err(error) => exit::report(&error, exit::Style::Line),
        },
        Command::Image(args) => image::run(&args, &arguments, &cancel),
        Command::Fs(args) => fs::run(&args, &cancel),
        Command::Mount(args) => mount::run(&args, &cancel),
        Command::Umount(args) => umount::run(&args, &cancel),
        Command::Serve(args) => serve::run(&args, &arguments, &cancel),
        Command::Ublk(args) => ublk::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Vol(args) => vol::run(&args, &cancel),
        Command::Job(args) => job::run(&args, &cancel),
        Command::Probe(args) => probe::run(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
        Command::Fallocate(_) => unreachable!("taken by fallocate_arguments"),
    }
}

/// Errors are JSON with `--json`, also those of wrong arguments.
fn note_json(arguments: &[OsString]) {
    let mut options = arguments.iter().take_while(|word| *word != "--");
    if options.any(|word| word == "--json") {
        exit::use_json();
    }
}

/// The command, and whether it is quiet.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let command = || help::lay_out(Cli::command());
    let matches = command()
        .try_get_matches_from(arguments)
        .map_err(|error| help::better_error(error, command, arguments))?;
    let mut innermost = &matches;
    while let Some((_, below)) = innermost.subcommand() {
        innermost = below;
    }
    if matches!(innermost.try_get_one("quiet"), Ok(Some(true))) {
        print::be_quiet();
    }
    Cli::from_arg_matches(&matches)
}

/// The name of the link that the program was started by.
fn called_as(arguments: &[OsString]) -> Option<&str> {
    Path::new(arguments.first()?).file_name()?.to_str()
}

/// Arguments after `extant fallocate`, or after the name of a link called `fallocate`.
fn fallocate_arguments(arguments: &[OsString]) -> Option<Vec<OsString>> {
    if called_as(arguments) == Some("fallocate") {
        return Some(arguments[1..].to_vec());
    }
    (arguments.get(1)? == "fallocate").then(|| arguments[2..].to_vec())
}
