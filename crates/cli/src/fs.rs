//! `extant fs`: the files of an ext4 image or disk, without root and without a mount.
//!
//! One file per command, with the options of the well-known programs: `ls`, `cp`, `chmod`, `df`,
//! `e2freefrag`, `e4defrag -c`, `dumpe2fs`. The operations are in the engine, `extant-ext4`.
//!
//! Paths inside an image begin at its root, with a slash or without. Names are bytes.

mod cat;
mod check;
mod chmod;
mod copy;
mod df;
mod dump;
mod entry;
mod frag;
mod freefrag;
mod get;
mod links;
mod ls;
mod mkfs;
mod mode;
mod owner;
mod put;
mod remove;
mod stat;
mod stats;
mod time;
mod tree;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use extant_space::{CancelToken, Result};

use crate::exit::{self, Style};
use crate::fs_image;
use crate::signals::EndAtOnce;

/// Inspect an ext4 image, disk or NBD export, and change it, without root and without a mount.
///
/// Commands that only read write nothing, even if the journal needs recovery: they show the state
/// after recovery. Commands that change the image lock it and use its journal: an interruption at
/// any time leaves the file system consistent. Files are owned by root unless an option sets the
/// owner.
#[derive(Args, Clone, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant fs mkfs disk.img 1GiB
  extant fs put -r disk.img rootfs/. /
  extant fs ls -l disk.img /etc
  extant fs cat disk.img /etc/hostname
  extant fs check disk.img

IMAGE is a file or a block device with an ext2, ext3 or ext4 file system.
Exit status: see extant --help; fs check has its own."
)]
pub struct FsArgs {
    /// Do not load the journal: for reading an image with a damaged journal, without the changes in
    /// it
    #[arg(long, global = true)]
    noload: bool,

    #[command(subcommand)]
    command: FsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum FsCommand {
    Ls(ls::LsArgs),
    Tree(tree::TreeArgs),
    Stat(stat::StatArgs),
    Cat(cat::CatArgs),
    Put(put::PutArgs),
    Get(get::GetArgs),
    Mkdir(links::MkdirArgs),
    Rm(remove::RmArgs),
    Mv(links::MvArgs),
    Ln(links::LnArgs),
    Chmod(chmod::ChmodArgs),
    Chown(chmod::ChownArgs),
    Df(df::DfArgs),
    Freefrag(freefrag::FreefragArgs),
    Frag(frag::FragArgs),
    Dump(dump::DumpArgs),
    Stats(stats::StatsArgs),
    Check(check::CheckArgs),
    Mkfs(mkfs::MkfsArgs),
}

/// Runs one command.
pub fn run(args: &FsArgs, cancel: &CancelToken) -> ExitCode {
    use FsCommand::*;
    if args.noload {
        fs_image::pass_over_journals();
    }
    let _ends = matches!(
        args.command,
        Ls(_) | Tree(_) | Stat(_) | Df(_) | Freefrag(_) | Dump(_) | Stats(_)
    )
    .then(EndAtOnce::new);
    match &args.command {
        Ls(args) => plain(ls::run(args)),
        Tree(args) => plain(tree::run(args)),
        Stat(args) => plain(stat::run(args)),
        Cat(args) => plain(cat::run(args, cancel)),
        Put(args) => styled(put::run(args, cancel), args.output.progress.error_style()),
        Get(args) => styled(get::run(args, cancel), args.output.progress.error_style()),
        Mkdir(args) => plain(links::mkdir(args)),
        Rm(args) => plain(remove::run(args, cancel)),
        Mv(args) => plain(links::mv(args)),
        Ln(args) => plain(links::ln(args)),
        Chmod(args) => plain(chmod::chmod(args, cancel)),
        Chown(args) => plain(chmod::chown(args, cancel)),
        Df(args) => plain(df::run(args)),
        Freefrag(args) => plain(freefrag::run(args)),
        Frag(args) => plain(frag::run(args, cancel)),
        Dump(args) => plain(dump::run(args)),
        Stats(args) => plain(stats::run(args)),
        Check(args) => check::run(args, cancel),
        Mkfs(args) => plain(mkfs::run(args, cancel)),
    }
}

fn plain(result: Result<ExitCode>) -> ExitCode {
    styled(result, Style::Line)
}

fn styled(result: Result<ExitCode>, style: Style) -> ExitCode {
    match result {
        Ok(status) => status,
        // The reader has closed the output.
        Err(error) if error.os_errno() == Some(libc::EPIPE) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, style),
    }
}
