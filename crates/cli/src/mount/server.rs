//! The server process of a mount.
//!
//! It ends when the files are unmounted, by any user, or by a signal, after which it unmounts
//! itself. If a file is in use, the mount point is detached at once, and the server continues until
//! the last file is closed.
//!
//! Order of the start: arguments, image, mount, and only then the report that it is ready. A
//! failure before that closes the image again.

use std::fs::{self, Metadata};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use extant_blockdev::{HostAccess, HostOptions};
use extant_ext4::{Access, Filesystem};
use extant_fuse::{Session, Unmounter};
use extant_image::hold::is_export;
use extant_mount::MountOptions;
use extant_mount::volume::{Volume, VolumeOptions, filesystem_options};
use extant_space::{CancelToken, Error, ErrorKind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{OnReadOnly, Ready, Wish};
use crate::background::{self, RunMode};
use crate::fs_image::{Image, names, refuse_without_ext4};
use crate::log::Log;
use crate::print;

/// Mounts, and answers until it is unmounted. The status is that of the image: whether the device
/// reported an error.
pub(super) fn run(wish: &Wish, mode: RunMode, cancel: &CancelToken) -> Result<ExitCode> {
    if mode == RunMode::Background {
        background::leave_terminal();
    }
    check_directory(&wish.directory)?;
    let mut options = wish.options.clone();
    let filesystem = open(wish, &mut options)?;
    let log = Arc::new(Log::new(mode));
    let begun = begin(wish, &options, &filesystem, &log, mode, cancel);
    let (session, signals) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // The first error is the one to report.
            let _ = filesystem.close();
            return Err(error);
        }
    };
    let handle = signals.handle();
    let waiting = unmount_on_signals(signals, &session, &log);
    let ended = session.run();
    handle.close();
    // Its panic would have been reported.
    let _ = waiting.join();
    if let Err(error) = ended {
        log.error(error.at(&wish.image));
    }
    Ok(if log.had_error() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Before the image is touched.
fn check_directory(directory: &Path) -> Result<()> {
    if mount_point(directory)?.is_dir() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotDirectory).at(directory))
}

/// The metadata of a mount point.
///
/// # Errors
/// `InUse` with the remedy if the server of a mount there has ended; those of stat(2).
pub fn mount_point(directory: &Path) -> Result<Metadata> {
    let error = match fs::metadata(directory) {
        Ok(metadata) => return Ok(metadata),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let mode = names::shown_path(directory);
            Error::new(ErrorKind::InUse)
                .detail("a mount whose server has ended is in the way")
                .advice(format!("extant umount {mode}"))
        }
        Err(error) => Error::from(error),
    };
    Err(error.at(directory))
}

/// Opens the image, read-only where it cannot be written and that will do.
fn open(wish: &Wish, options: &mut MountOptions) -> Result<Filesystem> {
    let path = &wish.image;
    let opened = match open_with(path, options) {
        Err(error) if may_fall_back(wish, options.access(), &error) => {
            let why = match error.kind() {
                ErrorKind::Unsupported => error.to_string(),
                kind => kind.description().to_owned(),
            };
            options.set_read_only();
            let opened = open_with(path, options).map_err(|error| error.at(path))?;
            print::note(format_args!(
                "extant: {}: cannot be written ({why}), mounted read-only",
                names::shown_path(path)
            ));
            Ok(opened)
        }
        opened => opened,
    };
    let filesystem = opened.map_err(|error| error.at(path))?;
    if options.fuse.source.is_none() {
        // By its full name, so that it is found again: the mount point, then the source.
        let full = if is_export(path) {
            path.clone()
        } else {
            fs::canonicalize(path).map_err(|error| Error::from(error).at(path))?
        };
        options.fuse.source = Some(full.to_string_lossy().into_owned());
    }
    let owner = filesystem.root().map(|root| root.attributes().uid);
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    // Without a root directory the mount fails with the reason.
    options.map_root_to(user.as_raw(), group.as_raw(), owner.unwrap_or(0));
    Ok(filesystem)
}

fn open_with(path: &Path, options: &MountOptions) -> Result<Filesystem> {
    let access = match options.access() {
        Access::ReadOnly => HostAccess::ReadOnly,
        Access::ReadWrite => HostAccess::ReadWrite,
    };
    let host = HostOptions {
        access,
        ..HostOptions::default()
    };
    let device = Image::hold_device(path, &host)?;
    refuse_without_ext4(&*device)?;
    Filesystem::open(device, filesystem_options(options))
}

/// The engine returns `Unsupported` for features that it only reads.
fn may_fall_back(wish: &Wish, wanted: Access, error: &Error) -> bool {
    wanted == Access::ReadWrite
        && wish.on_read_only == OnReadOnly::Fallback
        && matches!(
            error.kind(),
            ErrorKind::ReadOnly
                | ErrorKind::PermissionDenied
                | ErrorKind::Immutable
                | ErrorKind::NotPermitted
                | ErrorKind::Unsupported
        )
}

/// Mounts and reports it. From the first signal on that is not missed, they are the session's.
fn begin(
    wish: &Wish,
    options: &MountOptions,
    filesystem: &Filesystem,
    log: &Arc<Log>,
    mode: RunMode,
    cancel: &CancelToken,
) -> Result<(Session, Signals)> {
    let volume = Volume::new(filesystem.clone(), VolumeOptions::from(options))
        .map_err(|error| error.at(&wish.image))?;
    let (reporter, image) = (Arc::clone(log), wish.image.clone());
    let volume = volume.reporting(move |error| {
        reporter.error(format_args!("{}: {error}", names::shown_path(&image)));
    });
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Error::from(error).during("catch signals"))?;
    cancel.check()?;
    let session = Session::mount(Arc::new(volume), &wish.directory, &options.fuse)?;
    let ready = Ready {
        event: "mounted",
        mountpoint: session.directory().to_string_lossy().into_owned(),
        image: wish.image.to_string_lossy().into_owned(),
        access: match options.access() {
            Access::ReadOnly => "read-only",
            Access::ReadWrite => "read-write",
        },
        pid: std::process::id(),
        block_bytes: filesystem.block_bytes(),
        options: options.to_string(),
    };
    background::announce(mode, &ready.show(wish.style))?;
    Ok((session, signals))
}

/// Unmounts the session at the first signal; for a mount in use, when the last file is closed.
pub fn unmount_on_signals(
    mut signals: Signals,
    session: &Session,
    log: &Arc<Log>,
) -> thread::JoinHandle<()> {
    let unmounter = session.unmounter();
    let mode = names::shown_path(session.directory()).to_string();
    let log = Arc::clone(log);
    thread::spawn(move || {
        // The second one ends the process; see `crate::signals`.
        for _ in signals.forever() {
            if let Err(error) = unmount(&unmounter, &mode, &log) {
                log.error(error);
            }
        }
    })
}

fn unmount(unmounter: &Unmounter, mode: &str, log: &Log) -> Result<()> {
    match unmounter.unmount() {
        Err(error) if error.kind() == ErrorKind::InUse => {
            unmounter.detach()?;
            log.notice(format_args!(
                "{mode}: in use; unmounted there, and closed when the last file is; \
                 a second signal ends the server at once, as a crash would"
            ));
            Ok(())
        }
        done => done,
    }
}
