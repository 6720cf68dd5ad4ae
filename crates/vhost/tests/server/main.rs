//! The server through its socket, with a driver of ours that can write anything into its rings.

mod hostile;
mod reconnect;
mod requests;
mod resize;
mod shared;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use extant_blockdev::{Device, HostAccess, HostCache, HostDevice, HostOptions, MemoryDevice};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::{Format, ImageOptions, Preallocation};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::workdir::Workdir;
use extant_vhost::{Access, Event, Server, ServerOptions, Volume};
use parking_lot::Mutex;

const MIB: u64 = 1 << 20;
const SECTOR: usize = 512;

/// A directory with sockets and files.
struct Ground(Workdir);

impl Ground {
    fn new() -> Self {
        Self(Workdir::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("s")
    }

    /// A sparse file of the host.
    fn raw(&self, bytes: u64, cache: HostCache) -> Arc<dyn Device> {
        let path = self.path("raw");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let options = HostOptions {
            access: HostAccess::ReadWrite,
            cache,
            ..HostOptions::default()
        };
        Arc::new(HostDevice::open(&path, &options).unwrap())
    }

    /// A qcow2 image whose clusters are allocated by writes.
    fn qcow2(&self, bytes: u64, cache: HostCache) -> Arc<dyn Device> {
        let path = self.path("qcow2");
        let mut options = ImageOptions::new(Format::Qcow2, bytes);
        options.preallocation = Preallocation::Off;
        let file = extant_hostfs::CreateOptions::new(1);
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        extant_image::create(&path, &options, &file, control).unwrap();
        let options = DeviceOptions {
            cache,
            ..DeviceOptions::default()
        };
        Arc::new(ImageDevice::open(&path, &options).unwrap())
    }

    /// Every kind of device, with its name.
    fn devices(&self, bytes: u64) -> Vec<(&'static str, Arc<dyn Device>)> {
        vec![
            ("memory", Arc::new(MemoryDevice::new(bytes))),
            ("raw", self.raw(bytes, HostCache::Direct)),
            ("qcow2", self.qcow2(bytes, HostCache::Direct)),
        ]
    }

    /// A server of the device, and what it reports.
    fn serve(&self, device: Arc<dyn Device>) -> (Server, Receiver<String>) {
        self.serve_volume(Volume::new("disk", device, Access::ReadWrite))
    }

    fn serve_volume(&self, volume: Volume) -> (Server, Receiver<String>) {
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let observer = move |event: &Event<'_>| {
            // A test that does not need them has dropped the receiver.
            let _ = sender.lock().send(format!("{event:?}"));
        };
        let options = ServerOptions {
            observer: Some(Arc::new(observer)),
        };
        let server = Server::listen(volume, &self.socket(), options).unwrap();
        (server, events)
    }
}

/// Waits for an event that starts so.
#[track_caller]
fn expect_event(events: &Receiver<String>, start: &str) -> String {
    loop {
        let event = events.recv_timeout(extant_testkit::vhost_client::TIMEOUT);
        let event = event.unwrap_or_else(|_| panic!("no {start}"));
        if event.starts_with(start) {
            return event;
        }
    }
}

/// Bytes that differ by seed.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}
