//! The vhost-user sockets of the served files: one server for each.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use extant_vhost::{Server, ServerOptions, Volume};

use super::{ServeArgs, events};
use crate::log::Log;
use crate::source::Source;

/// The servers, and the paths of their sockets; none where no vhost-user socket is wanted.
pub(super) struct Disks(Vec<(Server, Option<PathBuf>)>);

impl Disks {
    /// Listens on every socket: those handed over, or else those of the arguments.
    pub(super) fn listen(
        args: &ServeArgs,
        handed: Vec<UnixListener>,
        sources: &[Source],
        log: &Arc<Log>,
    ) -> Result<Self> {
        let options = || ServerOptions {
            observer: Some(events::disk_observer(log.clone(), args.verbose)),
        };
        let mut disks = Self(Vec::new());
        if !handed.is_empty() {
            check_handed(args, handed.len(), sources.len())?;
            for (source, socket) in sources.iter().zip(handed) {
                let address = socket.local_addr().ok();
                let path = address.and_then(|address| address.as_pathname().map(Path::to_owned));
                let server = Server::adopt(volume(args, source), socket, options())?;
                disks.0.push((server, path));
            }
            return Ok(disks);
        }
        for (source, path) in sources.iter().zip(paths(&args.vhost_user, sources)?) {
            // It is removed at the end, when the server may be elsewhere.
            let path = absolute(&path).map_err(|error| Error::from(error).at(&path))?;
            let server = Server::listen(volume(args, source), &path, options())?;
            disks.0.push((server, Some(path)));
        }
        Ok(disks)
    }

    /// The socket of a source, by its place among them.
    pub(super) fn path(&self, at: usize) -> Option<&Path> {
        self.0.get(at)?.1.as_deref()
    }

    /// Ends all of them; returns the first error.
    pub(super) fn shutdown(self, grace: Duration) -> Result<()> {
        let ended = self.0.into_iter().map(|(server, _)| server.shutdown(grace));
        ended.fold(Ok(()), Result::and)
    }
}

/// Sockets handed over are for the files in their order.
fn check_handed(args: &ServeArgs, sockets: usize, files: usize) -> Result<()> {
    let wrong = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
    if !args.vhost_user.is_empty() {
        return wrong("--vhost-user was given beside a vhost-user socket of LISTEN_FDS".to_owned());
    }
    if sockets != files {
        return wrong(format!(
            "{sockets} vhost-user sockets in LISTEN_FDS for {files} files"
        ));
    }
    Ok(())
}

/// The sockets of the sources: given one by one, or by the directory that contains them.
fn paths(given: &[PathBuf], sources: &[Source]) -> Result<Vec<PathBuf>> {
    match given {
        [] => Ok(Vec::new()),
        [directory] if directory.is_dir() => {
            let path = |source: &Source| directory.join(format!("{}.sock", source.name));
            Ok(sources.iter().map(path).collect())
        }
        _ if given.len() == sources.len() => Ok(given.to_vec()),
        _ => Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!(
                "--vhost-user was given {} times for {} files",
                given.len(),
                sources.len()
            ))
            .advice("give it once for each file, or once with a directory")),
    }
}

/// The disk that a virtual machine sees.
fn volume(args: &ServeArgs, source: &Source) -> Volume {
    Volume::new(&*source.name, source.device.clone(), args.source.access())
        .with_discard_policy(args.discard.into())
        .with_queues(args.queues)
}
