//! Front ends of an image: the commands of both sides, and their clients.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use extant_testkit::command::tool;

use super::driver::{self, Done, Waiting};
use super::job::{End, Job};
use super::noop;
use crate::bench::Context;
use crate::benches::images::image::{Kind, Side};
use crate::benches::images::server::{Server, Serving, is_listening, shown};
use crate::fio::Fio;

/// A front end with its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// vhost-user-blk; virtio-driver.
    Vhost(Waiting),
    /// NBD; fio's engine, which sleeps.
    Nbd,
    /// A file by FUSE; fio with Linux AIO.
    Fuse,
}

impl Front {
    pub(super) const ALL: [Self; 4] = [
        Self::Vhost(Waiting::Polling),
        Self::Vhost(Waiting::Sleeping),
        Self::Nbd,
        Self::Fuse,
    ];
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vhost(waiting) => f.pad(&format!("vhost, {waiting}")),
            Self::Nbd => f.pad("nbd"),
            Self::Fuse => f.pad("fuse"),
        }
    }
}

/// A running server, and the image where its client finds it.
pub(super) struct Served {
    front: Front,
    server: Server,
    /// A socket, or a file.
    place: PathBuf,
    size: u64,
}

impl Served {
    /// Serves the image in `file` without any page cache.
    pub(super) fn start(
        context: &Context,
        front: Front,
        side: Side,
        kind: Kind,
        file: &Path,
        size: u64,
    ) -> Result<Self> {
        let place = context.file("export");
        let server = match front {
            Front::Nbd => {
                let server = Serving::of(kind).start(context, side, file)?;
                server.context("the default engine")?
            }
            Front::Vhost(_) => {
                let command = match side {
                    Side::Extant => extant_serve(context, kind, file, &place),
                    Side::Qemu => storage_daemon(
                        kind,
                        file,
                        &format!(
                            "type=vhost-user-blk,addr.type=unix,addr.path={}",
                            place.display()
                        ),
                    ),
                };
                let shown = shown(context, &command, file);
                let server = Server::spawn(command, shown, &place)?;
                server.wait_until(|| is_listening(&place))?
            }
            Front::Fuse => {
                File::create(&place)?;
                let command = match side {
                    Side::Extant => extant_mount(context, kind, file, &place),
                    Side::Qemu => {
                        let export = format!("type=fuse,mountpoint={}", place.display());
                        storage_daemon(kind, file, &export)
                    }
                };
                let shown = shown(context, &command, file);
                let server = Server::spawn(command, shown, &place)?;
                let is_mounted = || fs::metadata(&place).is_ok_and(|file| file.size() == size);
                server.wait_until(is_mounted)?
            }
        };
        Ok(Self {
            front,
            server,
            place,
            size,
        })
    }

    /// Serves a device that does nothing.
    pub(super) fn start_noop(context: &Context, waiting: Waiting, size: u64) -> Result<Self> {
        let place = context.file("export");
        let mut command = Command::new(env::current_exe()?);
        command.arg(noop::WORD).arg(&place).arg(size.to_string());
        let shown = shown(context, &command, &place);
        let server = Server::spawn(command, shown, &place)?;
        Ok(Self {
            front: Front::Vhost(waiting),
            server: server.wait_until(|| is_listening(&place))?,
            place,
            size,
        })
    }

    /// Runs a workload; with the processor time of the server, microseconds a request.
    pub(super) fn run(&self, job: Job, end: End) -> Result<(Done, f64)> {
        let before = self.server.cpu_seconds()?;
        let done = match self.front {
            Front::Vhost(waiting) => driver::run(&self.place, job, waiting, end, self.size)?,
            Front::Nbd => {
                of_fio(job.set_in(Fio::nbd("exports", &self.server.uri), end, self.size))?
            }
            Front::Fuse => run_on_file(&self.place, job, end, self.size)?,
        };
        let cpu = self.server.cpu_seconds()? - before;
        Ok((done, cpu * 1e6 / done.requests as f64))
    }

    /// The command of the server.
    pub(super) fn command(&self) -> &str {
        &self.server.command
    }

    /// Ends it in order.
    pub(super) fn end(self) -> Result<()> {
        self.server.end()?;
        // The file below a mount; servers remove their sockets.
        match fs::remove_file(&self.place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Runs a workload by fio, direct and asynchronous, on a file.
pub(super) fn run_on_file(file: &Path, job: Job, end: End, size: u64) -> Result<Done> {
    let fio = Fio::write("exports").file(file).set("ioengine", "libaio");
    of_fio(job.set_in(fio, end, size))
}

fn of_fio(fio: Fio) -> Result<Done> {
    let done = fio.run()?;
    Ok(Done {
        requests: done.requests,
        seconds: done.requests as f64 / done.iops,
    })
}

fn extant_serve(context: &Context, kind: Kind, file: &Path, socket: &Path) -> Command {
    let mut command = context.extant();
    command.arg("serve").arg(file);
    command.args(["--format", kind.format, "--cache", "none"]);
    command.arg("--vhost-user").arg(socket);
    command
}

fn extant_mount(context: &Context, kind: Kind, file: &Path, place: &Path) -> Command {
    let mut command = context.extant();
    command.args(["image", "mount", "--foreground"]);
    command.args(["--format", kind.format, "--cache", "none"]);
    command.arg(file).arg(place);
    command
}

fn storage_daemon(kind: Kind, file: &Path, export: &str) -> Command {
    let file = file.display();
    let mut command = tool("qemu-storage-daemon");
    command.args(["--object", "iothread,id=thread", "--blockdev"]);
    command.arg(format!(
        "driver=file,node-name=file,cache.direct=on,aio=native,filename={file}"
    ));
    command.arg("--blockdev").arg(format!(
        "driver={},node-name=image,cache.direct=on,file=file",
        kind.format
    ));
    command.arg("--export").arg(format!(
        "{export},id=export,node-name=image,writable=on,iothread=thread"
    ));
    command
}
