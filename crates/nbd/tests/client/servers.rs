//! Servers of other implementations as child processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use extant_nbd::NbdUri;
use extant_testkit::command::tool;

/// A server that does not start fails the test.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A server; killed when dropped.
pub struct Served {
    child: Child,
    pub socket: PathBuf,
}

impl Served {
    fn start(command: &mut Command, socket: PathBuf) -> Self {
        // A socket of a killed server would look like a new one's.
        let _ = fs::remove_file(&socket);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let mut served = Self { child, socket };
        let start = Instant::now();
        while !served.socket.exists() {
            let status = served.child.try_wait().unwrap();
            assert_eq!(status, None, "the server has ended");
            assert!(start.elapsed() < START_TIMEOUT, "the server does not start");
            thread::sleep(POLL_INTERVAL);
        }
        served
    }

    /// nbdkit with these arguments: filters, plugin and parameters.
    pub fn nbdkit(directory: &Path, arguments: &[&str]) -> Self {
        let socket = directory.join("nbdkit.sock");
        let mut command = tool("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]);
        Self::start(command.arg(&socket).args(arguments), socket)
    }

    /// qemu-nbd on an image.
    pub fn qemu(directory: &Path, image: &Path, arguments: &[&str]) -> Self {
        let socket = directory.join("qemu.sock");
        let mut command = tool("qemu-nbd");
        command.args(["--persistent", "--export-name", "disk"]);
        command.args(arguments).arg("--socket").arg(&socket);
        Self::start(command.arg(image), socket)
    }

    /// nbd-server on a file, as the export `disk`.
    pub fn nbd_server(directory: &Path, file: &Path) -> Self {
        let socket = directory.join("nbd-server.sock");
        let configuration = directory.join("nbd-server.conf");
        let text = format!(
            "[generic]\nunixsock = {}\nport = 0\nlistenaddr = 127.0.0.1\n\
             [disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
            socket.display(),
            file.display()
        );
        fs::write(&configuration, text).unwrap();
        let mut command = tool("nbd-server");
        command.arg("-d").arg("-C").arg(configuration);
        Self::start(&mut command, socket)
    }

    pub fn uri(&self, export: &str) -> NbdUri {
        let text = format!("nbd+unix:///{export}?socket={}", self.socket.display());
        text.parse().unwrap()
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
