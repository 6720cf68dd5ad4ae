//! The server process.
//!
//! Order of the start: arguments, sources, sockets, and only then the report that clients can
//! connect. The end is in reverse: no new clients, accepted requests are completed, flushed,
//! closed; so no acknowledged request is lost.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use extant_export::{
    ClientCertificates, Export, Exports, Limits, Scheme, Server, ServerOptions, Tls, TlsRequirement,
};
use extant_space::{CancelToken, Error, ErrorKind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::activation::Handed;
use super::listen::{listen, public_port};
use super::pid_file::PidFile;
use super::ready::Ready;
use super::vhost::Disks;
use super::{ServeArgs, events, ublk};
use crate::background::{self, RunMode};
use crate::log::Log;
use crate::print;
use crate::source::{Source, Sources};

/// Time for clients to receive their replies at the end.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until a signal arrives.
pub(super) fn run(args: &ServeArgs, mode: RunMode, cancel: &CancelToken) -> Result<ExitCode> {
    if mode == RunMode::Background {
        background::leave_terminal();
    }
    let network = if args.ublk.is_some() {
        ublk::check(args)?;
        None
    } else {
        Some((handed(args)?, tls(args)?))
    };
    let sources = Sources::open(&args.source, &args.wanted()?)?;
    let served = match network {
        None => ublk::serve(args, mode, cancel, &sources),
        Some((handed, tls)) => serve(args, mode, cancel, handed, tls, &sources),
    };
    sources.close(served)?;
    Ok(ExitCode::SUCCESS)
}

/// The sockets of the parent. Refuses to listen nowhere.
fn handed(args: &ServeArgs) -> Result<Handed> {
    let handed = Handed::take()?;
    let is_given =
        !args.socket.is_empty() || !args.listen.is_empty() || !args.vhost_user.is_empty();
    if !is_given && handed.nbd.is_empty() && handed.vhost_user.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("nowhere to listen")
            .advice("give --socket PATH, --listen HOST:PORT or --vhost-user PATH"));
    }
    Ok(handed)
}

fn tls(args: &ServeArgs) -> Result<Option<Tls>> {
    let Some(directory) = &args.tls_creds else {
        return Ok(None);
    };
    let clients = if args.tls_any_client {
        ClientCertificates::NotAsked
    } else {
        ClientCertificates::Required
    };
    let requirement = if args.tls_optional {
        TlsRequirement::Optional
    } else {
        TlsRequirement::Required
    };
    Tls::from_directory(directory, clients, requirement).map(Some)
}

/// A device as clients see it.
fn export(args: &ServeArgs, source: &Source) -> Result<Export> {
    let device = source.device.clone();
    let export = Export::new(
        &*source.name,
        &*args.description,
        device,
        args.source.access(),
    );
    let export = export.map_err(|error| error.at(&source.path))?;
    Ok(export.with_discard_policy(args.discard.into()))
}

fn serve(
    args: &ServeArgs,
    mode: RunMode,
    cancel: &CancelToken,
    handed: Handed,
    tls: Option<Tls>,
    sources: &Sources,
) -> Result<()> {
    let exports = sources.list().iter().map(|source| export(args, source));
    let exports = Exports::new(exports.collect::<Result<_>>()?)?;
    let log = Arc::new(Log::new(mode));
    let scheme = match tls {
        Some(_) => Scheme::Tls,
        None => Scheme::Clear,
    };
    let options = ServerOptions {
        limits: Limits {
            connections: args.connections as usize,
            request_bytes: args.max_request,
            ..Limits::default()
        },
        tls,
        observer: Some(events::observer(log.clone(), args.verbose)),
    };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
        .map_err(|error| Error::from(error).during("catch signals"))?;
    cancel.check()?;
    let server = Server::new(exports, options);
    let is_handed_over = !handed.nbd.is_empty() || !handed.vhost_user.is_empty();
    let reached = listen(args, handed.nbd, &server)?;
    let disks = Disks::listen(args, handed.vhost_user, sources.list(), &log)?;
    let _pid_file = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    if let (Some(port), Scheme::Clear) = (public_port(&reached), scheme) {
        log.notice(format_args!(
            "{port} has no TLS: every host that can reach it can use the exports"
        ));
    }
    if args.verbose {
        events::tell_engines(&log, sources.list());
    }
    let ready = Ready::of(
        sources.list(),
        args.source.access(),
        &reached,
        scheme,
        &disks,
    );
    if is_handed_over && !args.json {
        // The client that started this program uses stdout for its own output.
        if mode == RunMode::Background {
            background::let_go("")?;
        }
    } else {
        announce(args, mode, &ready)?;
    }
    for signal in signals.forever() {
        if signal != SIGUSR1 {
            break;
        }
        events::tell_statistics(&log, sources.list());
    }
    let ended = disks.shutdown(GRACE);
    let ended = ended.and(server.shutdown(GRACE));
    conclude(args, mode, &log, sources, ended)
}

/// The last words of a server that has ended with `ended`.
pub(super) fn conclude(
    args: &ServeArgs,
    mode: RunMode,
    log: &Log,
    sources: &Sources,
    ended: Result<()>,
) -> Result<()> {
    if args.verbose {
        events::tell_statistics(log, sources.list());
    }
    if let (Err(error), RunMode::Background) = (&ended, mode) {
        // Stderr is closed.
        log.error(error);
    }
    ended
}

/// Says that clients can connect, and detaches a server of the background.
pub(super) fn announce(args: &ServeArgs, mode: RunMode, ready: &Ready) -> Result<()> {
    let word = if args.json {
        ready.json()
    } else {
        ready.lines()
    };
    if mode == RunMode::Background && args.pid_file.is_none() && !args.json {
        let pid = std::process::id();
        print::note(format_args!(
            "extant: serving as process {pid}; kill {pid} ends it"
        ));
    }
    background::announce(mode, &word)
}
