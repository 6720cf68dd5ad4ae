//! This program as mount(8) and umount(8) call it: `mount.fuse.extant` and `umount.fuse.extant`.
//!
//! Their exit status is that of mount(8): 1 for wrong arguments, 32 for a failure.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use extant_mount::{AllocatorOptions, MountOptions};
use extant_space::{CancelToken, Error, ErrorKind, Result};
use rustix::process::geteuid;

use super::{MountArgs, Wish, remount};
use crate::background::{self, Started};
use crate::exit::{self, Style};
use crate::umount::{self, UmountArgs};

const USAGE: u8 = 1;
const FAILURE: u8 = 32;

/// Mount an ext4 image, disk or NBD export; called by mount(8).
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.extant", version)]
struct MountHelper {
    /// The image, disk or NBD export (its URI)
    image: PathBuf,

    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Options of the mount, as for `extant mount`
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Check the arguments, and mount nothing
    #[arg(short)]
    fake: bool,

    /// Taken, and means nothing: unknown options are refused
    #[arg(short)]
    sloppy: bool,

    /// Taken, and means nothing: nothing is written to /etc/mtab
    #[arg(short)]
    no_mtab: bool,

    /// Print the source and the mount point
    #[arg(short)]
    verbose: bool,

    /// The type that mount(8) was given
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
}

/// Unmount an ext4 image, disk or NBD export; called by umount(8).
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.extant", version)]
struct UmountHelper {
    /// The directory, image, disk or NBD export
    place: PathBuf,

    /// Also while files are in use
    #[arg(short)]
    lazy: bool,

    /// Taken, and means nothing
    #[arg(short)]
    force: bool,

    /// Taken, and means nothing
    #[arg(short)]
    no_mtab: bool,

    /// Taken, and means nothing
    #[arg(short)]
    read_only: bool,

    /// Taken, and means nothing
    #[arg(short)]
    verbose: bool,

    /// The type that umount(8) found
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
}

/// Mounts with the arguments of mount(8).
pub fn mount_helper(arguments: &[OsString], cancel: &CancelToken) -> ExitCode {
    let args = match MountHelper::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    if let Some(done) = args.remount() {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        };
    }
    // As for every file system, root's mounts have devices and set-user-ID programs; for users
    // mount(8) asks for `nodev,nosuid`, and fusermount3 insists on them.
    let options = if geteuid().is_root() {
        MountOptions::for_mount8()
    } else {
        MountOptions::default()
    };
    let done = Wish::with(&args.to_mount_args(), options).and_then(|wish| {
        if args.fake {
            Ok(None)
        } else {
            background::start(&wish.to_server_arguments(), cancel).map(Some)
        }
    });
    match done {
        Ok(Some(Started::Failed(_))) => ExitCode::from(FAILURE),
        Ok(Some(Started::Ready(line))) if args.verbose => crate::print::text(line),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Unmounts with the arguments of umount(8).
pub fn umount_helper(arguments: &[OsString], cancel: &CancelToken) -> ExitCode {
    let args = match UmountHelper::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let args = UmountArgs {
        place: args.place,
        lazy: args.lazy,
    };
    match umount::umount(&args, cancel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

impl MountHelper {
    /// Result of `-o remount`, if requested.
    fn remount(&self) -> Option<Result<()>> {
        let list = self.options.join(",");
        if !remount::is_wanted(&list) {
            return None;
        }
        let remount = || {
            // mount(8) repeats the options in force; those of the kernel follow below.
            let (allocator, _) = AllocatorOptions::for_remount(&list)?;
            let directory = fs::canonicalize(&self.directory)
                .map_err(|error| Error::from(error).at(&self.directory))?;
            let options = remount::of_the_kernel(&directory, &list)?;
            if self.fake {
                Ok(())
            } else {
                if !allocator.is_empty() {
                    remount::change(&directory, &allocator)?;
                }
                extant_fuse::remount(&directory, &options)
            }
        };
        Some(remount())
    }

    fn to_mount_args(&self) -> MountArgs {
        MountArgs {
            image: self.image.clone(),
            directory: Some(self.directory.clone()),
            options: self.options.clone(),
            foreground: false,
            read_only: false,
            read_write: false,
            threads: None,
            assign: None,
            json: false,
            background_server: false,
        }
    }
}

fn usage(error: &clap::Error) -> ExitCode {
    let _ = exit::usage(error);
    ExitCode::from(USAGE)
}

fn failed(error: &Error) -> ExitCode {
    let _ = exit::report(error, Style::Line);
    ExitCode::from(match error.kind() {
        ErrorKind::InvalidArgument => USAGE,
        _ => FAILURE,
    })
}
