//! Shared by the tests of host devices: every way to open one, and checks of one.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use extant_blockdev::{
    Device, HostCache, HostDevice, HostEngine, HostOptions, RangeStatus, Speed, Zeroing,
};
use extant_space::ByteRange;
use extant_testkit::requires::Requirement;

pub const MIB: u64 = 1 << 20;

/// Zeros that stay, without sending any.
pub const FAST_ALLOCATED: Zeroing = Zeroing {
    speed: Speed::OnlyIfFast,
    ..Zeroing::ALLOCATED
};

/// Both caches with every engine that they have.
pub fn every_way() -> Vec<HostOptions> {
    let direct = [HostEngine::Uring, HostEngine::Threads, HostEngine::Native];
    let buffered = [HostEngine::Uring, HostEngine::Threads];
    let direct = direct.map(|engine| (HostCache::Direct, engine));
    let buffered = buffered.map(|engine| (HostCache::Buffered, engine));
    direct
        .into_iter()
        .chain(buffered)
        .map(|(cache, engine)| HostOptions {
            cache,
            engine,
            ..HostOptions::default()
        })
        .collect()
}

/// The kernel has io_uring and lets us use it.
pub fn uring() -> Requirement {
    let has_uring = extant_sys::ring::Ring::new(4).is_ok();
    Requirement::new("io_uring in the kernel", has_uring)
}

/// A hole of `size` bytes.
pub fn sparse(directory: &Path, name: &str, size: u64) -> PathBuf {
    let path = directory.join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

pub fn open(path: &Path, options: &HostOptions) -> HostDevice {
    HostDevice::open(path, options).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

pub fn statuses(device: &dyn Device, range: ByteRange) -> Vec<(u64, u64, RangeStatus)> {
    let mut seen = Vec::new();
    let visit = &mut |part: ByteRange, status| {
        seen.push((part.start(), part.end(), status));
        ControlFlow::Continue(())
    };
    device.status(range, visit).unwrap();
    seen
}

pub fn read(device: &dyn Device, range: ByteRange) -> Vec<u8> {
    let mut bytes = vec![0xEE; range.len() as usize];
    device.read_at(&mut bytes, range.start()).unwrap();
    bytes
}
