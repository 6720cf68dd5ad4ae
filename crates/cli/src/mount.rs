//! `extant mount`: an ext4 image or disk as files for every program.
//!
//! Unless it runs in the foreground, the server is a separate process: this program, started again,
//! which reports on its stdout that it is ready, and then detaches from the terminal
//! (`crate::background`). The server itself reports earlier failures, and its exit status is passed
//! on.
//!
//! The image is locked as long as it is mounted, by the same locks as for `extant fs`.

mod helper;
mod remount;
mod server;

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::Access;
use extant_mount::MountOptions;
use extant_space::{CancelToken, Error, ErrorKind, Result};
use serde::Serialize;

use crate::background::{self, RunMode, Started};
use crate::exit::{self, Style};
use crate::fs_image::AssignMode;
use crate::print;

pub use helper::{mount_helper, umount_helper};
pub use server::{mount_point, unmount_on_signals};

/// Use the files of an ext4 image, disk or NBD export in any program, through FUSE.
///
/// The server detaches when the files are accessible. Without root, `fusermount3` mounts; then the
/// files are seen by you alone, unless `-o allow_other` is given and /etc/fuse.conf allows it. A
/// journal that needs recovery is replayed; an image that may not be written is mounted read-only.
/// `extant create`, `fallocate`, `materialize` and `map` work on paths inside, all modes included.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "\
extant mount [OPTIONS] IMAGE DIR
       extant mount -o remount,OPTIONS [IMAGE] DIR",
    after_help = "\
Examples:
  extant mount disk.img mnt                     in the background
  extant mount -o ro,allow_other disk.img mnt
  extant mount -f disk.img mnt                  until Ctrl-C
  extant mount -o remount,mb_optimize_scan=0 mnt
  extant umount mnt                             waits until the image is closed and durable
  mount -t fuse.extant -o helper=fuse.extant disk.img /mnt      by mount(8) and fstab(5)

Options after -o, separated by commas; those that contradict an earlier one count:
  ro, rw, nodev, dev, nosuid, suid, noexec, exec, sync, async, dirsync
  relatime, strictatime, noatime, nodiratime    when reading changes times
  allow_other                                   all users see the files, as permissions allow
  auto_unmount                                  the mount goes when the server is killed
  uid=UID, gid=GID                              whose the files of root in the image are outside;
                                                without root: yours, unless the image's root directory is
  idmap=none                                    owners as in the image, also without root
  noload, norecovery                            read-only, without the journal: it may be damaged, and
                                                what it holds is not seen
  errors=continue|remount-ro                    on corrupt metadata; default: the image's
  commit=SECONDS                                how long a change may wait for its commit (5)
  assign=off|try|require                        give new space its place on the device below at once
  discard, nodiscard                            inform the disk or file below of freed blocks
  mb_optimize_scan=0|1                          how the allocator finds groups: all in order, or by an
                                                index of their free space (1)
  reservation, noreservation                    whether space is reserved behind files that grow
  remount                                       change the two above on a mount, as its user or root;
                                                the kernel's own: mount -o remount,... of mount(8)
  writeback, no_writeback                       whether the kernel delays writes
  io_uring, no_io_uring                         requests through io_uring (Linux 6.14, with the
                                                parameter enable_uring of fuse): faster where
                                                there are many small ones; off by default
  threads=N, pin, no_pin                        threads that answer, and whether each has its CPU
  max_read=BYTES, fsname=NAME, subtype=NAME     as in mount.fuse3(8)
Options that fstab(5) keeps for itself (nofail, x-..., user, ...) are taken and mean nothing.

What was written is durable after fsync, and after at most commit=SECONDS; the kernel does not
pass sync(1) on to a FUSE mount.
SIGINT, SIGTERM and SIGHUP unmount: at once, or when the last file in use is closed; a second one
ends the server as a crash would, after which the next mount recovers the image.
mount(8) finds this program as /sbin/mount.fuse.extant. With the option helper=fuse.extant umount(8) finds
it as /sbin/umount.fuse.extant, and waits as extant umount does; without that option umount(8) does not.
Exit status: see extant --help."
)]
pub struct MountArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// The mount point; its content is hidden meanwhile
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// Options of the mount, as listed below
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,

    /// Stay in the foreground
    #[arg(long, short)]
    pub foreground: bool,

    /// Write nothing to the image, not even its journal (-o ro)
    #[arg(long, short)]
    pub read_only: bool,

    /// Fail where the image cannot be written, instead of mounting it read-only
    #[arg(long, short = 'w', conflicts_with = "read_only")]
    pub read_write: bool,

    /// Number of worker threads [default: one for each CPU, from 2 to 8]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,

    /// Whether new space is allocated on the device below at once (-o assign=WHEN) [default: try]
    #[arg(long, value_name = "WHEN")]
    pub assign: Option<AssignMode>,

    /// Print JSON, on one line, when it is mounted
    #[arg(long)]
    pub json: bool,

    /// This process is the server, started by one that waits for its ready message
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub background_server: bool,
}

/// The message when the files are available.
#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    mountpoint: String,
    image: String,
    access: &'static str,
    pid: u32,
    block_bytes: u32,
    options: String,
}

impl Ready {
    fn show(&self, style: Style) -> String {
        match style {
            Style::Json => print::json_line(self),
            Style::Line => format!(
                "{}: mounted at {}, {}, by process {}",
                print::path(Path::new(&self.image)),
                print::path(Path::new(&self.mountpoint)),
                self.access,
                self.pid
            ),
        }
    }
}

/// Arguments and options of a mount.
#[derive(Clone, Debug)]
struct Wish {
    image: PathBuf,
    directory: PathBuf,
    options: MountOptions,
    on_read_only: OnReadOnly,
    style: Style,
}

/// Treatment of an image that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnReadOnly {
    /// It is mounted read-only, with a word on stderr.
    Fallback,
    Fail,
}

impl Wish {
    fn of(args: &MountArgs) -> Result<Self> {
        Self::with(args, MountOptions::default())
    }

    /// Combines `args` with `options`.
    fn with(args: &MountArgs, mut options: MountOptions) -> Result<Self> {
        for list in &args.options {
            options.add(list)?;
        }
        if args.read_only {
            options.set_read_only();
        }
        if args.read_write {
            options.add("rw")?;
        }
        options.fuse.threads = args.threads.or(options.fuse.threads);
        options.assign = args.assign.map_or(options.assign, Into::into);
        Ok(Self {
            image: args.image.clone(),
            directory: args.directory.clone().ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument).detail("DIR is missing; try --help")
            })?,
            options,
            on_read_only: if args.read_write {
                OnReadOnly::Fail
            } else {
                OnReadOnly::Fallback
            },
            style: if args.json { Style::Json } else { Style::Line },
        })
    }

    /// The arguments of a process that is to be the server.
    fn to_server_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["mount", "--background-server", "-o"]
            .map(OsString::from)
            .into();
        arguments.push(self.options.to_string().into());
        if self.on_read_only == OnReadOnly::Fail && self.options.access() == Access::ReadWrite {
            arguments.push("--read-write".into());
        }
        if self.style == Style::Json {
            arguments.push("--json".into());
        }
        arguments.push("--".into());
        arguments.push(self.image.clone().into());
        arguments.push(self.directory.clone().into());
        arguments
    }
}

/// Mounts.
pub fn run(args: &MountArgs, cancel: &CancelToken) -> ExitCode {
    if let Some(done) = remount::wanted(args) {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::report(&error, Style::Line),
        };
    }
    let done = Wish::of(args).and_then(|wish| match (args.foreground, args.background_server) {
        (true, _) => server::run(&wish, RunMode::Foreground, cancel),
        (_, true) => server::run(&wish, RunMode::Background, cancel),
        _ => {
            let started = background::start(&wish.to_server_arguments(), cancel)?;
            Ok(match started {
                Started::Ready(line) => print::text(line),
                Started::Failed(status) => status,
            })
        }
    });
    done.unwrap_or_else(|error| exit::report(&error, Style::Line))
}
