//! A process that serves an image by NBD, and its resource usage.

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
pub(super) struct Server {
    child: Child,
    pub(super) uri: String,
    /// As one would type it.
    pub(super) command: String,
}

impl Server {
    /// Serves `file` without any page cache.
    pub(super) fn start(context: &Context, side: Side, kind: Kind, file: &Path) -> Result<Self> {
        let socket = context.file("socket");
        let mut command = match side {
            Side::Extant => {
                let mut command = context.extant();
                command.arg("serve").arg(file).args(["--name", "image"]);
                command.args(["--format", kind.format, "--cache", "none"]);
                command.arg("--socket").arg(&socket);
                command
            }
            Side::Qemu => {
                let mut command = tool("qemu-nbd");
                command.args(["-t", "-x", "image", "-f", kind.format]);
                command.args(["--cache=none", "--aio=native", "-k"]);
                command.arg(&socket).arg(file);
                command
            }
        };
        let server = Self {
            uri: format!("nbd+unix:///image?socket={}", socket.display()),
            command: shown(context, &command, file),
            child: command.stdout(Stdio::null()).spawn()?,
        };
        server.wait_for(&socket)
    }

    fn wait_for(mut self, socket: &Path) -> Result<Self> {
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
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
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = cpu_ticks(&text).context("the server's stat")?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ends it in order; returns the most memory that it had, in bytes.
    pub(super) fn end(mut self) -> Result<u64> {
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

/// A command without the directories of this run.
pub(super) fn shown(context: &Context, command: &Command, file: &Path) -> String {
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
