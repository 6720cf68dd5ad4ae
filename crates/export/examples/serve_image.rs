//! Creates a qcow2 image, serves it by NBD, and writes and reads it with our own client.
//!
//!     cargo run -p extant-export --example serve_image -- /tmp/disk.qcow2
//!
//! Others connect to the socket beside the image: `nbdinfo 'nbd+unix:///disk?socket=...'`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::{Device, Persistence};
use extant_export::{Access, Address, Export, Exports, Server, ServerOptions};
use extant_hostfs::CreateOptions;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::{Format, ImageOptions, create};
use extant_nbd::{NbdDevice, NbdOptions, NbdUri};
use extant_space::{CancelToken, Control, Result, Silent};

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: serve_image FILE");
        std::process::exit(2);
    };
    if let Err(error) = run(&path) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(path: &Path) -> Result<()> {
    let cancel = CancelToken::new();
    let options = ImageOptions::new(Format::Qcow2, 64 << 20);
    let file = CreateOptions::new(options.virtual_bytes);
    create(path, &options, &file, Control::new(&cancel, &Silent))?;
    let image = Arc::new(ImageDevice::open(path, &DeviceOptions::default())?);

    let socket = path.with_extension("sock");
    let export = Export::new("disk", "an example", image, Access::ReadWrite)?;
    let server = Server::new(Exports::new(vec![export])?, ServerOptions::default());
    server.listen(&Address::Unix(socket.clone()))?;

    let uri: NbdUri = format!("nbd+unix:///disk?socket={}", socket.display()).parse()?;
    let client = NbdDevice::connect(&uri, NbdOptions::default())?;
    client.write_at(&[0x5A; 512], 4096, Persistence::Cached)?;
    client.flush()?;
    let mut bytes = [0; 512];
    client.read_at(&mut bytes, 4096)?;
    assert_eq!(bytes, [0x5A; 512]);
    println!("{uri}: {} bytes, written and read", client.geometry().size);
    drop(client);
    server.shutdown(Duration::from_secs(5))
}
