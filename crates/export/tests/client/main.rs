//! The client device of `extant-nbd` on this server, over a Unix socket.

mod assign;
mod device;
mod example;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::Device;
use extant_export::{Access, Address, DiscardPolicy, Export, Exports, Server, ServerOptions};
use extant_nbd::{NbdDevice, NbdOptions, NbdUri};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// A test that would hang fails instead.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A server with the export `disk`, on a socket in its own directory.
struct Served {
    _server: Server,
    directory: TempDir,
}

impl Served {
    fn new(device: Arc<dyn Device>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = listen(directory.path(), device, ServerOptions::default());
        Self {
            _server: server,
            directory,
        }
    }

    fn uri(&self) -> NbdUri {
        uri(self.directory.path())
    }

    fn connect(&self) -> NbdDevice {
        NbdDevice::connect(&self.uri(), NbdOptions::default()).unwrap()
    }
}

fn listen(directory: &Path, device: Arc<dyn Device>, options: ServerOptions) -> Server {
    let export = Export::new("disk", "", device, Access::ReadWrite).unwrap();
    let export = export.with_discard_policy(DiscardPolicy::Unmap);
    let server = Server::new(Exports::new(vec![export]).unwrap(), options);
    let socket = Address::Unix(directory.join("s"));
    server.listen(&socket).unwrap();
    server
}

fn uri(directory: &Path) -> NbdUri {
    let text = format!("nbd+unix:///disk?socket={}/s", directory.display());
    text.parse().unwrap()
}
