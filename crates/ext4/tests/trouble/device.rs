//! Devices that are short, or read-only from the start.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Features, Geometry, MemoryDevice, RangeStatus, Request};
use extant_ext4::{Access, Filesystem, NewKind, Options};
use extant_space::{ByteRange, ErrorKind, Result};
use extant_testkit::{require, requires};

use crate::image::{PLAIN, make, new, open};

/// Refuses changes, as a disk with its tab moved.
struct ReadOnly(MemoryDevice);

impl Device for ReadOnly {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.0.geometry();
        geometry.features |= Features::READ_ONLY;
        geometry
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let geometry = self.geometry();
        for request in requests {
            match geometry.admit(&request.operation) {
                Ok(()) => self.0.submit(std::slice::from_mut(request)),
                Err(error) => request.complete(Err(error)),
            }
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.status(range, visit)
    }
}

fn read_only() -> Options {
    Options {
        access: Access::ReadOnly,
        ..Options::default()
    }
}

#[test]
fn device_that_is_short_is_refused_with_both_sizes() {
    require!(requires::tool("mke2fs"));
    let bytes = make(PLAIN, 3072).to_vec();
    for length in
        (0..bytes.len())
            .step_by(64 << 10)
            .chain([512, 1024, 1536, 2048, bytes.len() - 512])
    {
        let device = Arc::new(MemoryDevice::from_bytes(&bytes[..length]));
        for options in [read_only(), Options::default()] {
            let error = Filesystem::open(device.clone(), options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{length}: {error}");
            assert!(
                error.to_string().contains(&length.to_string()),
                "{length}: {error}"
            );
        }
    }
}

#[test]
fn read_only_device_is_read_and_not_opened_for_changes() {
    require!(requires::tool("mke2fs"));
    let image = Arc::new(make(PLAIN, 3072));
    let filesystem = open(image.clone()).unwrap();
    let root = filesystem.root().unwrap();
    drop(root.create(b"file", &new(NewKind::Regular)).unwrap());
    filesystem.sync().unwrap();
    // Once with a log to be replayed, and once without.
    let unclean = image.snapshot();
    drop(root);
    filesystem.close().unwrap();
    for image in [unclean, image.snapshot()] {
        let device = Arc::new(ReadOnly(image));
        let error = Filesystem::open(device.clone(), Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        let filesystem = Filesystem::open(device.clone(), read_only()).unwrap();
        let root = filesystem.root().unwrap();
        assert_eq!(root.lookup(b"file").unwrap().attributes().links, 1);
        let error = root.create(b"other", &new(NewKind::Regular)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    }
}
