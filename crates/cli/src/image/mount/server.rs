//! The server process of a mounted device.
//!
//! Order of the start: arguments, mount point, image, mount, and only then the report that it is
//! ready. The end is in reverse: unmounted, flushed, closed.

use std::ffi::OsString;
use std::fs::Metadata;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use extant_blockdev::{Access, Device};
use extant_devicefile::{DeviceFile, DeviceFileOptions, Growth, Owner};
use extant_fuse::operations::Timestamp;
use extant_fuse::options::{AccessTimes, WriteCache};
use extant_fuse::{MountOptions, Session};
use extant_image::hold::{IMAGE_SUBTYPE, is_export};
use extant_space::{ByteSize, CancelToken, Error, ErrorKind, Result};
use rustix::mount::MountFlags;
use rustix::process::{getegid, geteuid};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::ImageMountArgs;
use crate::background::{self, RunMode};
use crate::fs_image::names;
use crate::log::Log;
use crate::mount::{mount_point, unmount_on_signals};
use crate::print;
use crate::source::{Cache, Source, Sources, Wanted};

/// Name of the file if the image has none.
const NAMELESS: &str = "disk";
/// Permissions of the file of an export.
const PERMISSIONS: u32 = 0o600;
/// Workers where a request may wait for a disk or a server: each waits for one request.
const WAITING_WORKERS: NonZero<usize> = NonZero::new(16).unwrap();

/// The message when the file is available.
#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    mountpoint: String,
    file: String,
    image: String,
    access: &'static str,
    capacity_bytes: u64,
    pid: u32,
}

impl Ready {
    fn line(&self) -> String {
        format!(
            "{}: mounted at {}, {}, {}, by process {}",
            print::path(Path::new(&self.image)),
            print::path(Path::new(&self.file)),
            ByteSize(self.capacity_bytes),
            self.access,
            self.pid
        )
    }
}

/// Mounts, and answers until it is unmounted. The status is that of the image: whether the device
/// reported an error.
pub(super) fn run(args: &ImageMountArgs, mode: RunMode, cancel: &CancelToken) -> Result<ExitCode> {
    if mode == RunMode::Background {
        background::leave_terminal();
    }
    let mut args = args.clone();
    let mut options: MountOptions = args.options.join(",").parse()?;
    args.source.read_only |= options.is_read_only();
    args.source.growable = args.growable && !args.source.read_only;
    if args.source.read_only {
        options.flags.insert(MountFlags::RDONLY);
    }
    let place = mount_point(&args.place)?;
    if !place.is_dir() && !place.is_file() {
        return Err(Error::new(ErrorKind::WrongType)
            .at(&args.place)
            .detail("the mount point is neither a directory nor a regular file"));
    }
    let name = place.is_dir().then(|| file_name(&args.file));
    let wanted = Wanted {
        name: String::new(),
        path: args.file.clone(),
    };
    let sources = Sources::open(&args.source, &[wanted])?;
    let log = Arc::new(Log::new(mode));
    let served = serve(&args, name, options, mode, &log, &sources.list()[0], cancel);
    sources.close(served)?;
    Ok(if log.had_error() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The name of the image, as that of a raw image.
fn file_name(image: &Path) -> OsString {
    let stem = image.file_stem().filter(|_| !is_export(image));
    let mut name = stem.unwrap_or(NAMELESS.as_ref()).to_owned();
    name.push(".raw");
    name
}

fn serve(
    args: &ImageMountArgs,
    name: Option<OsString>,
    mut options: MountOptions,
    mode: RunMode,
    log: &Arc<Log>,
    source: &Source,
    cancel: &CancelToken,
) -> Result<()> {
    let held = held_path(source)?;
    let metadata = std::fs::metadata(&held).ok();
    options.subtype = IMAGE_SUBTYPE.to_owned();
    options.write_cache = WriteCache::Through;
    options.access_times = AccessTimes::Never;
    if args.source.cache == Cache::None || !metadata.as_ref().is_some_and(Metadata::is_file) {
        options.threads = options.threads.or(Some(WAITING_WORKERS));
    }
    options
        .source
        .get_or_insert_with(|| held.to_string_lossy().into_owned());
    let capacity_bytes = source.device.geometry().size;
    let (reporter, image) = (Arc::clone(log), source.path.clone());
    let file = DeviceFile::new(
        source.device.clone(),
        file_options(args, name.clone(), metadata.as_ref()),
    )
    .reporting(move |error| {
        reporter.error(format_args!("{}: {error}", names::shown_path(&image)));
    });
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Error::from(error).during("catch signals"))?;
    cancel.check()?;
    let session = Session::mount(Arc::new(file), &args.place, &options)?;
    let point = session.directory().to_path_buf();
    let ready = Ready {
        event: "mounted",
        mountpoint: point.to_string_lossy().into_owned(),
        file: match &name {
            Some(name) => point.join(name),
            None => point,
        }
        .to_string_lossy()
        .into_owned(),
        image: source.path.to_string_lossy().into_owned(),
        access: args.source.access().name(),
        capacity_bytes,
        pid: std::process::id(),
    };
    let line = if args.json {
        print::json_line(&ready)
    } else {
        ready.line()
    };
    background::announce(mode, &line)?;
    let handle = signals.handle();
    let waiting = unmount_on_signals(signals, &session, log);
    let ended = session.run();
    handle.close();
    // Its panic would have been reported.
    let _ = waiting.join();
    if let Err(error) = ended {
        log.error(error.at(&source.path));
    }
    Ok(())
}

/// The file or export that is locked, by a name that holds in every directory.
fn held_path(source: &Source) -> Result<PathBuf> {
    let held = &source.held;
    if is_export(held) {
        return Ok(held.clone());
    }
    std::fs::canonicalize(held).map_err(|error| Error::from(error).at(held))
}

fn file_options(
    args: &ImageMountArgs,
    name: Option<OsString>,
    held: Option<&Metadata>,
) -> DeviceFileOptions {
    let owner = match held {
        Some(metadata) => Owner {
            uid: metadata.uid(),
            gid: metadata.gid(),
            permissions: metadata.mode() & 0o666,
        },
        None => Owner {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            permissions: PERMISSIONS,
        },
    };
    let access = args.source.access();
    DeviceFileOptions {
        name,
        access,
        punch: args.discard.into(),
        growth: if args.growable {
            Growth::OnDemand
        } else {
            Growth::Fixed
        },
        owner: Owner {
            permissions: match access {
                Access::ReadWrite => owner.permissions,
                Access::ReadOnly => owner.permissions & 0o444,
            },
            ..owner
        },
        modified: held.map_or_else(Timestamp::now, |metadata| Timestamp {
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec() as u32,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_the_name_of_the_image_with_the_suffix_raw() {
        for (image, name) in [
            ("/a/vm.qcow2", "vm.raw"),
            ("vm.raw", "vm.raw"),
            ("vm", "vm.raw"),
            ("a.b.qcow2", "a.b.raw"),
            ("nbd+unix:///vm.qcow2?socket=/tmp/s.x", "disk.raw"),
        ] {
            assert_eq!(file_name(Path::new(image)), name, "{image}");
        }
    }
}
