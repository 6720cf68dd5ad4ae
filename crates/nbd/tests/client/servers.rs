//! Servers of other implementations as child processes.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use extant_nbd::NbdUri;
use extant_testkit::command::{must, run, tool};
use extant_testkit::listener;

/// A server; killed when dropped.
pub struct Served {
    process: Process,
    pub socket: PathBuf,
}

enum Process {
    Child(Child),
    /// A daemon, with its number in this file.
    Daemon(PathBuf),
}

impl Served {
    fn start(command: &mut Command, socket: PathBuf) -> Self {
        // A socket of a killed server would look like a new one's.
        let _ = fs::remove_file(&socket);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let served = Self {
            process: Process::Child(child),
            socket,
        };
        listener::wait_for(&served.socket);
        served
    }

    /// nbdkit with these arguments: filters, plugin and parameters. To be called by a thread that
    /// outlives it: it ends with the thread that has started it.
    pub fn nbdkit(directory: &Path, arguments: &[&str]) -> Self {
        let socket = directory.join("nbdkit.sock");
        let mut command = tool("nbdkit");
        command.args(["--foreground", "--unix"]);
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
        // It listens on a port as well.
        let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = unused.local_addr().unwrap().port();
        drop(unused);
        let text = format!(
            "[generic]\nunixsock = {}\nport = {port}\nlistenaddr = 127.0.0.1\n\
             [disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
            socket.display(),
            file.display()
        );
        fs::write(&configuration, text).unwrap();
        let pid_file = directory.join("nbd-server.pid");
        let mut command = tool("nbd-server");
        must(
            command
                .arg("-C")
                .arg(configuration)
                .arg("-p")
                .arg(&pid_file),
        );
        let served = Self {
            process: Process::Daemon(pid_file),
            socket,
        };
        listener::wait_for(&served.socket);
        served
    }

    pub fn uri(&self, export: &str) -> NbdUri {
        let text = format!("nbd+unix:///{export}?socket={}", self.socket.display());
        text.parse().unwrap()
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        match &mut self.process {
            Process::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Process::Daemon(pid_file) => {
                if let Ok(number) = fs::read_to_string(pid_file) {
                    let _ = run(tool("kill").arg(number.trim()));
                }
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
