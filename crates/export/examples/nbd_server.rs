//! Serves one device, for manual measurements:
//! `nbd_server null|memory|FILE SIZE SOCKET [direct|buffered] [image]`.
//! With `image` the file is a raw or qcow2 image and SIZE is ignored.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{
    Device, Features, Geometry, HostCache, HostDevice, HostOptions, Limits, MemoryDevice,
    RangeStatus, Request,
};
use extant_export::{Access, Address, Export, Exports, Server, ServerOptions};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_space::{ByteRange, Result};

/// Answers at once.
struct NullDevice(u64);

impl Device for NullDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.0,
            logical_block: 512,
            physical_block: 4096,
            limits: Limits::NONE,
            features: Features::empty(),
        }
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in requests {
            request.complete(Ok(()));
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = visit(range, RangeStatus::Data);
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, what, size, socket, rest @ ..] = &arguments[..] else {
        panic!("nbd_server null|memory|FILE SIZE SOCKET [direct|buffered] [image]");
    };
    let size: u64 = size.parse().expect("a number of bytes");
    let device: Arc<dyn Device> = match what.as_str() {
        "null" => Arc::new(NullDevice(size)),
        "memory" => Arc::new(MemoryDevice::new(size)),
        path => {
            let cache = match rest.first().map(String::as_str) {
                Some("direct") => HostCache::Direct,
                _ => HostCache::Buffered,
            };
            match rest.get(1).map(String::as_str) {
                Some("image") => {
                    let options = DeviceOptions {
                        cache,
                        ..DeviceOptions::default()
                    };
                    Arc::new(ImageDevice::open(path, &options)?)
                }
                _ => {
                    let options = HostOptions {
                        cache,
                        ..HostOptions::default()
                    };
                    Arc::new(HostDevice::open(path, &options)?)
                }
            }
        }
    };
    let export = Export::new("", "for measurements", device, Access::ReadWrite)?;
    let server = Server::new(Exports::new(vec![export])?, ServerOptions::default());
    println!("{}", server.listen(&Address::Unix(socket.into()))?);
    loop {
        std::thread::park();
    }
}
