//! `extant umount`: unmounts, and waits until the image is closed.
//!
//! umount(8) and fusermount3 return when the mount point is detached; the server still checkpoints
//! its journal then. It holds the lock of the image until it has finished, and this command waits
//! for that lock. Afterwards the state in the image shows whether it was closed cleanly.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use extant_fuse::Busy;
use extant_image::hold::{self, IMAGE_SUBTYPE, is_export_written, mounts_of};
use extant_ondisk::ext4::Incompat;
use extant_space::{CancelToken, Error, ErrorKind, Result};
use extant_sys::mounts::Mount;
use extant_sys::{mounted, process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::{self, Style};
use crate::fs_image::Image;
use crate::print;

const FS_TYPE: &str = "fuse.extant";
/// The prefix of [`IMAGE_SUBTYPE`] in the table of mounts.
const FUSE: &str = "fuse.";
/// Poll interval of the server's locks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Names of processes are cut to this.
const NAME_BYTES_MAX: usize = 15;
/// A longer wait says what it waits for.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// Unmount an image, and wait until it is closed and durable.
///
/// For mounts by `extant mount` and `extant image mount`.
/// umount(8) and `fusermount3 -u` unmount as well, but return while the server is still writing: a
/// copy made then needs recovery.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant umount mnt
  extant umount disk.img                wherever it is mounted
  extant umount --lazy mnt              also while files are in use, without waiting

Exit status: see extant --help; 4 while a file is in use.")]
pub struct UmountArgs {
    /// The mount point or the image
    #[arg(value_name = "DIR|IMAGE")]
    pub place: PathBuf,

    /// Also while files are in use: they remain usable, and the image is closed with the last one
    #[arg(long, short)]
    pub lazy: bool,
}

/// Unmounts.
pub fn run(args: &UmountArgs, cancel: &CancelToken) -> ExitCode {
    match umount(args, cancel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, Style::Line),
    }
}

/// Unmounts and waits, without output.
pub fn umount(args: &UmountArgs, cancel: &CancelToken) -> Result<()> {
    let mount = find(&args.place)?;
    let server = if args.lazy {
        None
    } else {
        hidden_server(&mount)
    };
    let busy = if args.lazy {
        Busy::Detach
    } else {
        Busy::Refuse
    };
    extant_fuse::unmount(&mount.point, busy).map_err(|error| match error.kind() {
        ErrorKind::InUse => match extant_hostfs::describe_users_below(&mount.point) {
            Some(who) => error
                .detail(format!("in use by {who}"))
                .advice("end them, or use --lazy"),
            None => error.advice("list the users with fuser -vm, or use --lazy"),
        },
        _ => error,
    })?;
    match busy {
        // It may last until tomorrow.
        Busy::Detach => Ok(()),
        Busy::Refuse => wait_for_image(&mount, server, cancel),
    }
}

/// The mount at a directory, or of an image; of several the one that is seen.
fn find(place: &Path) -> Result<Mount> {
    // A mount whose server has ended cannot be entered; its name will do.
    let point = fs::canonicalize(place).or_else(|_| std::path::absolute(place));
    let point = point.map_err(|error| Error::from(error).at(place))?;
    let table = Mount::all().map_err(|error| Error::from(error).during("read mounts"))?;
    let at_point = table.into_iter().rfind(|mount| mount.point == point);
    match at_point.or_else(|| mounts_of(place).last()) {
        Some(mount) if is_ours(&mount) => Ok(mount),
        Some(mount) => Err(Error::new(ErrorKind::Unsupported)
            .at(place)
            .detail(format!("{} is mounted there", mount.fs_type))
            .advice("use umount(8)")),
        None => Err(Error::new(ErrorKind::NotFound)
            .at(place)
            .detail("not mounted")),
    }
}

/// Whether it is a mount of this program, independent of its reported subtype.
fn is_ours(mount: &Mount) -> bool {
    let probe = || mounted::probe(&File::open(&mount.point).ok()?).ok()?;
    mount.fs_type == FS_TYPE
        || shows_disk(mount)
        || (mount.fs_type.starts_with("fuse.") && probe().is_some())
}

/// Whether it shows the disk in an image.
fn shows_disk(mount: &Mount) -> bool {
    mount.fs_type.strip_prefix(FUSE) == Some(IMAGE_SUBTYPE)
}

/// The server of a mount whose source does not name the image: with `-o fsname`, or under a name
/// that is not UTF-8.
fn hidden_server(mount: &Mount) -> Option<OwnedFd> {
    if mount.source.is_absolute() && mount.source.exists() || hold::is_export(&mount.source) {
        return None;
    }
    let probe = mounted::probe(&File::open(&mount.point).ok()?).ok()??;
    let pid = u32::try_from(probe.server_pid).ok()?;
    // In another PID namespace the number means another process. The server is started by the name
    // of the program, and this process perhaps by that of a link.
    let program = std::env::current_exe().ok()?;
    let name = program.file_name()?.to_str()?.get(..NAME_BYTES_MAX);
    let name = name.or(program.file_name()?.to_str())?;
    if process::name(pid) != name {
        return None;
    }
    pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()
}

/// Waits until the server has released the image, and checks that it was closed cleanly. `server`
/// is awaited in its place.
fn wait_for_image(mount: &Mount, server: Option<OwnedFd>, cancel: &CancelToken) -> Result<()> {
    let image = &mount.source;
    let is_open = || match &server {
        Some(server) => !has_ended(server),
        // Another mount of the same image by a fast user is not awaited.
        None => is_held(image) && mounts_of(image).next().is_none(),
    };
    let start = Instant::now();
    let mut is_named = print::is_quiet();
    while is_open() {
        thread::sleep(POLL_INTERVAL);
        if !is_named && start.elapsed() >= SILENT_MAX {
            is_named = true;
            let who = extant_hostfs::describe_holders_or_other(image);
            let image = print::path(image);
            print::note(format_args!(
                "extant: unmounted; waiting for {who} to close {image}"
            ));
        }
        cancel.check().map_err(|error| {
            error
                .at(image)
                .detail("unmounted; the image is not closed yet")
        })?;
    }
    if shows_disk(mount) || server.is_some() {
        return Ok(());
    }
    let was_written = mount.options.iter().any(|option| option == "rw");
    let Ok(found) = Image::look(image) else {
        // Another process holds it already, or it is not readable.
        return Ok(());
    };
    let superblock = found.filesystem().superblock();
    let needs_recovery = superblock.features().incompat.contains(Incompat::RECOVER);
    if was_written && needs_recovery {
        Err(Error::new(ErrorKind::Io)
            .at(image)
            .detail("the server has not closed it in order")
            .advice("the next mount recovers what was synced"))
    } else {
        Ok(())
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut events = [PollFd::new(process, PollFlags::IN)];
    poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whether the server, or another process, has the image locked. If that cannot be determined,
/// there is no wait.
fn is_held(image: &Path) -> bool {
    if let Some(is_written) = is_export_written(image) {
        return is_written;
    }
    let Ok(metadata) = fs::metadata(image) else {
        return false;
    };
    let is_disk = metadata.file_type().is_block_device();
    let claim = if is_disk { libc::O_EXCL } else { 0 };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | claim)
        .open(image);
    match opened {
        Ok(file) => !is_disk && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(error) => error.kind() == io::ErrorKind::ResourceBusy,
    }
}
