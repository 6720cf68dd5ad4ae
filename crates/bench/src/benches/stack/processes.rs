//! The stack across processes: the engine in this process, on a file of a kernel's ext4 over
//! memory, directly or over NBD through one or two servers.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::Result;
use extant_blockdev::{Device, HostDevice, HostOptions};
use extant_ext4::Assign;
use extant_hostfs::HostFile;
use extant_nbd::{NbdDevice, NbdOptions, NbdTransport, NbdUri};
use extant_space::SpaceFile;
use extant_testkit::listener;
use extant_testkit::scratch::{Filesystem, Scratch};

use super::{MKFS, engine, pieces};

/// A stack over the file that the last server serves. Dropped from above.
pub(super) struct Stack {
    pub(super) engine: engine::Stack,
    servers: Vec<Server>,
    backing: PathBuf,
    _host: Scratch,
}

impl Stack {
    /// A file system of `size` on a sparse file, which `servers` processes are in between. The file
    /// system that has the file takes `memory` at most.
    pub(super) fn new(
        size: u64,
        memory: u64,
        servers: usize,
        assign: Assign,
        mut extant: impl FnMut() -> Command,
    ) -> Result<Self> {
        let host = Scratch::builder(Filesystem::Ext4, size << 1)
            .mkfs_options(MKFS)
            .memory(memory)
            .build();
        let backing = host.path().join("file");
        File::create_new(&backing)?.set_len(size)?;
        let sockets = host.directory_beside("sockets");
        let mut chain: Vec<Server> = Vec::new();
        for number in 0..servers {
            let source = match chain.last() {
                None => backing.display().to_string(),
                Some(lower) => lower.uri.to_string(),
            };
            let socket = sockets.join(number.to_string());
            chain.push(Server::start(extant(), &source, socket)?);
        }
        let ground: Arc<dyn Device> = match chain.last() {
            None => Arc::new(HostDevice::open(&backing, &HostOptions::default())?),
            Some(server) => Arc::new(NbdDevice::connect(&server.uri, NbdOptions::default())?),
        };
        Ok(Self {
            engine: engine::Stack::over(ground, &[size], assign)?,
            servers: chain,
            backing,
            _host: host,
        })
    }

    /// Pieces of the file and of its data in the backing file.
    pub(super) fn pieces(&self, size: u64) -> Result<Vec<usize>> {
        rustix::fs::sync();
        let backing = HostFile::open_read(&self.backing)?;
        let mut files = self.engine.files();
        files.push(&backing as &dyn SpaceFile);
        pieces::pieces(&files, size)
    }

    /// Closes the file system, then ends the servers from the top down.
    pub(super) fn close(self) -> Result<()> {
        let Self {
            engine,
            mut servers,
            ..
        } = self;
        engine.close()?;
        while let Some(server) = servers.pop() {
            drop(server);
        }
        Ok(())
    }
}

/// `extant serve`.
struct Server {
    process: Child,
    uri: NbdUri,
}

impl Server {
    fn start(mut extant: Command, source: &str, socket: PathBuf) -> Result<Self> {
        extant
            .args(["serve", "--format", "raw", "--name", "disk", "--socket"])
            .arg(&socket)
            .arg(source)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null());
        let process = extant.spawn()?;
        listener::wait_for(&socket);
        let uri = NbdUri::new(NbdTransport::Unix(socket), "disk")?;
        Ok(Self { process, uri })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
