//! Served files as disks of this machine (`--ublk`).
//!
//! A disk that a killed server left is continued by the same command with the number of the disk.
//! At the end a disk in use stays served until it is released; a second signal ends the process,
//! and the disk waits for the next server.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use extant_export::Event;
use extant_space::{CancelToken, Error, ErrorKind, Result};
use extant_ublk::{Disk, DiskOptions, FailureObserver, Recovery, Stopped};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::pid_file::PidFile;
use super::ready::Ready;
use super::{ServeArgs, events, server};
use crate::background::RunMode;
use crate::log::Log;
use crate::source::{Source, Sources};

/// Interval at which signals, and the sizes of the files, are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The number of a disk in the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskNumber {
    Any,
    Given(u32),
}

/// The value of `--ublk`: nothing or a number.
pub(super) fn parse_number(text: &str) -> Result<DiskNumber, String> {
    match text {
        "any" => Ok(DiskNumber::Any),
        number => number
            .parse()
            .map(DiskNumber::Given)
            .map_err(|_| "not the number of a disk, such as 0 for /dev/ublkb0".to_owned()),
    }
}

/// Refuses a number for several files.
pub(super) fn check(args: &ServeArgs) -> Result<()> {
    if args.files.len() > 1 && matches!(args.ublk, Some(DiskNumber::Given(_))) {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("--ublk=N is for one file")
            .advice("leave out the number, or start a server for each file"));
    }
    extant_ublk::availability()
}

/// Serves until a signal arrives.
pub(super) fn serve(
    args: &ServeArgs,
    mode: RunMode,
    cancel: &CancelToken,
    sources: &Sources,
) -> Result<()> {
    let log = Arc::new(Log::new(mode));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
        .map_err(|error| Error::from(error).during("catch signals"))?;
    cancel.check()?;
    let mut disks = Vec::new();
    for source in sources.list() {
        let options = DiskOptions {
            id: match args.ublk {
                Some(DiskNumber::Given(id)) => Some(id),
                _ => None,
            },
            access: args.source.access(),
            discard: args.discard.into(),
            recovery: if args.no_recovery {
                Recovery::Remove
            } else {
                Recovery::Wait
            },
            on_failure: Some(on_failure(&log, source)),
            ..DiskOptions::new(crc32c::crc32c(source.path.as_os_str().as_bytes()))
        };
        let disk = Disk::start(source.device.clone(), &options);
        let disk = disk.map_err(|error| error.about(&source.path))?;
        if args.verbose && disk.is_continued() {
            let path = disk.path();
            log.notice(format_args!("{}: continued", path.display()));
        }
        disks.push(disk);
    }
    let _pid_file = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    let ready = Ready::of_disks(sources.list(), args.source.access(), &disks);
    server::announce(args, mode, &ready)?;
    let ended = wait(&log, &mut signals, sources, &mut disks);
    server::conclude(args, mode, &log, sources, ended)
}

/// Failures are logged as those of an export.
fn on_failure(log: &Arc<Log>, source: &Source) -> FailureObserver {
    let observer = events::observer(Arc::clone(log), false);
    let name = source.name.clone();
    Arc::new(move |error| {
        observer(&Event::Failed {
            export: &name,
            error,
        });
    })
}

/// Waits for a signal, and then until no disk is in use.
fn wait(log: &Log, signals: &mut Signals, sources: &Sources, disks: &mut Vec<Disk>) -> Result<()> {
    let mut is_ending = false;
    let mut was_told = false;
    loop {
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => events::tell_statistics(log, sources.list()),
                _ => is_ending = true,
            }
        }
        let mut rest = Vec::new();
        for mut disk in disks.drain(..) {
            if disk.has_ended() {
                log.notice(format_args!(
                    "{} was stopped by another program",
                    disk.path().display()
                ));
                disk.stop_by_force()?;
                continue;
            }
            if !is_ending {
                if let Err(error) = disk.refresh() {
                    log.error(&error);
                }
            } else if disk.stop()? == Stopped::Done {
                continue;
            } else if !was_told {
                was_told = true;
                log.notice(format_args!(
                    "{} is in use; the server ends when it is released",
                    disk.path().display()
                ));
            }
            rest.push(disk);
        }
        *disks = rest;
        if disks.is_empty() {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}
