//! Writes that are durable when they return.

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, Survivors};
use extant_blockdev::{Access, Device, DiscardPolicy, MemoryDevice};
use extant_devicefile::{DeviceFile, DeviceFileOptions, Growth, Owner};
use extant_fuse::Operations;
use extant_fuse::operations::{
    Caller, DSYNC, NodeId, Privileges, Request, SyncScope, Timestamp, Write, WriteOrigin,
};
use extant_space::CancelToken;
use rustix::fs::OFlags;

#[test]
fn write_that_asks_for_it_by_descriptor_or_call_survives_a_power_cut() {
    for (flags, sync, survives) in [
        (OFlags::WRONLY, None, false),
        (OFlags::WRONLY, Some(SyncScope::Data), true),
        (OFlags::WRONLY, Some(SyncScope::All), true),
        // The kernel repeats the flags of the descriptor with each write.
        (OFlags::WRONLY | DSYNC, SyncScope::of(DSYNC), true),
    ] {
        let device = Arc::new(CrashDevice::new(MemoryDevice::new(1 << 20)));
        let options = DeviceFileOptions {
            name: None,
            access: Access::ReadWrite,
            punch: DiscardPolicy::Ignore,
            growth: Growth::Fixed,
            owner: Owner {
                uid: 0,
                gid: 0,
                permissions: 0o600,
            },
            modified: Timestamp::default(),
        };
        let file = DeviceFile::new(device.clone(), options);
        let cancel = CancelToken::new();
        let request = Request {
            caller: Caller::default(),
            cancel: &cancel,
        };
        let opened = file.open(&request, NodeId::ROOT, flags, Privileges::Keep);
        let write = Write {
            handle: opened.unwrap().handle,
            offset: 4096,
            data: &[7; 4096],
            origin: WriteOrigin::Direct,
            privileges: Privileges::Keep,
            sync,
        };
        assert_eq!(file.write(&request, NodeId::ROOT, &write), Ok(4096));
        device.power_cut();
        device.restart(Survivors::None);
        let mut found = [0; 4096];
        device.read_at(&mut found, 4096).unwrap();
        assert_eq!(found == [7; 4096], survives, "{sync:?}");
    }
}
