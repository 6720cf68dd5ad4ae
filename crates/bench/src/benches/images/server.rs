//! A process that serves an image by NBD, how it does so, and its resource usage.

use std::fmt;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use extant_testkit::command::tool;
use rustix::process::{Pid, Signal, kill_process};

use super::image::{Kind, Side};
use crate::bench::Context;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A server; it is killed when this is dropped, if it still runs.
pub(in crate::benches) struct Server {
    child: Child,
    pub(in crate::benches) uri: String,
    /// As one would type it.
    pub(in crate::benches) command: String,
}

/// How a server does I/O on host files; both have these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Aio {
    Threads,
    Native,
    IoUring,
}

impl Aio {
    pub(in crate::benches) const ALL: [Self; 3] = [Self::Threads, Self::Native, Self::IoUring];
}

impl fmt::Display for Aio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Threads => "threads",
            Self::Native => "native",
            Self::IoUring => "io_uring",
        })
    }
}

/// Treatment of the rest of a new cluster by QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Fill {
    /// It is zeroed, by `fallocate`.
    Zeroed,
    /// Zeros are written to it.
    Written,
}

/// How an image is served.
#[derive(Clone, Copy, Debug)]
pub(in crate::benches) struct Serving {
    pub(in crate::benches) kind: Kind,
    /// `None`: our default, and QEMU's native.
    pub(in crate::benches) aio: Option<Aio>,
    pub(in crate::benches) fill: Fill,
}

impl Serving {
    pub(in crate::benches) fn of(kind: Kind) -> Self {
        Self {
            kind,
            aio: None,
            fill: Fill::Zeroed,
        }
    }

    /// Serves `file` without any page cache. `None`: the server has no such engine here.
    pub(in crate::benches) fn start(
        self,
        context: &Context,
        side: Side,
        file: &Path,
    ) -> Result<Option<Server>> {
        let socket = context.file("socket");
        let mut command = match side {
            Side::Extant => self.extant(context, file),
            Side::Qemu => self.qemu_nbd(file),
        };
        let option = match side {
            Side::Extant => "--socket",
            Side::Qemu => "-k",
        };
        command.arg(option).arg(&socket);
        let shown = shown(context, &command, file);
        let server = Server::spawn(command, shown, &socket)?;
        match server.wait_until(|| is_listening(&socket)) {
            Err(_) if self.may_be_missing(side) => Ok(None),
            server => server.map(Some),
        }
    }

    /// Builds of QEMU leave engines out, and the kernel may forbid io_uring.
    fn may_be_missing(self, side: Side) -> bool {
        match self.aio {
            None | Some(Aio::Threads) => false,
            Some(Aio::Native) => side == Side::Qemu,
            Some(Aio::IoUring) => true,
        }
    }

    fn extant(self, context: &Context, file: &Path) -> Command {
        let mut command = context.extant();
        command.arg("serve").arg(file).args(["--name", "image"]);
        command.args(["--format", self.kind.format, "--cache", "none"]);
        if let Some(aio) = self.aio {
            command.args(["--aio", &aio.to_string()]);
        }
        command
    }

    fn qemu_nbd(self, file: &Path) -> Command {
        let mut command = tool("qemu-nbd");
        command.args(["-t", "-x", "image"]);
        let (format, aio) = (self.kind.format, self.aio.unwrap_or(Aio::Native));
        match self.fill {
            Fill::Zeroed => {
                command.args(["-f", format, "--cache=none", &format!("--aio={aio}")]);
                command.arg(file);
            }
            // 95: EOPNOTSUPP.
            Fill::Written => {
                let file = file.display();
                command.arg("--image-opts").arg(format!(
                    "driver={format},cache.direct=on,file.driver=blkdebug,\
                     file.inject-error.0.event=none,file.inject-error.0.iotype=write-zeroes,\
                     file.inject-error.0.errno=95,file.inject-error.0.once=off,\
                     file.image.driver=file,file.image.cache.direct=on,file.image.aio={aio},\
                     file.image.filename={file}"
                ));
            }
        }
        command
    }
}

impl Server {
    /// Starts `command`, which serves an export `image` if it is one of NBD.
    pub(in crate::benches) fn spawn(
        mut command: Command,
        shown: String,
        socket: &Path,
    ) -> Result<Self> {
        Ok(Self {
            uri: format!("nbd+unix:///image?socket={}", socket.display()),
            command: shown,
            child: command.stdout(Stdio::null()).spawn()?,
        })
    }

    /// Waits until it serves.
    pub(in crate::benches) fn wait_until(mut self, is_ready: impl Fn() -> bool) -> Result<Self> {
        let start = Instant::now();
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended with {status}", self.command);
            }
            ensure!(
                start.elapsed() < START_TIMEOUT,
                "`{}` is not there",
                self.command
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(self)
    }

    /// Processor time that it has used so far.
    pub(in crate::benches) fn cpu_seconds(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = cpu_ticks(&text).context("the server's stat")?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ends it in order; returns the most memory that it had, in bytes.
    pub(in crate::benches) fn end(mut self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = peak_bytes(&text).context("the server's status")?;
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "`{}` ended with {status}", self.command);
        Ok(peak)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a server accepts connections at `socket`.
pub(in crate::benches) fn is_listening(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// A command without the directories of this run.
pub(in crate::benches) fn shown(context: &Context, command: &Command, file: &Path) -> String {
    let directory = file.parent().unwrap_or(Path::new("")).display().to_string();
    context.shown(command).replace(&directory, "DIR")
}

/// User and system time of a process with all its threads: fields 14 and 15 in proc(5).
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The second field may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

fn peak_bytes(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = peak.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_memory_are_read_from_the_kernels_texts() {
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 70 8 0 0 20 0\n";
        assert_eq!(cpu_ticks(stat), Some(78));
        assert_eq!(cpu_ticks("12 (a) S 1"), None);
        let status = "VmPeak:\t  900 kB\nVmHWM:\t  64 kB\n";
        assert_eq!(peak_bytes(status), Some(64 << 10));
    }
}
