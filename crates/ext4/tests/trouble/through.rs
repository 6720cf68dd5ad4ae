//! Layers below that are full, read-only or gone while space is written in them: the error of the
//! layer comes out, the data stays, and the same call does the rest once the layer is back.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::simulation::{Done, Fault, FaultRule, FaultyDevice, When};
use extant_blockdev::{MemoryDevice, OperationKind};
use extant_ext4::{Assign, DeviceZeroes, File, Filesystem, NewKind, Options};
use extant_provision::{Provisioner, Shared};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, ExtentState, FallocateMode, Result, Silent,
    SpaceFile, SyncMode,
};
use extant_testkit::{require, requires};

use crate::image::{Judge, PLAIN, assert_usable, forgetful, make, new};

const FILE: u64 = 192 << 10;
/// Places of data in the file, which leave several holes below.
const DATA: [u64; 3] = [20 << 10, 77_777, 130 << 10];
const DATA_BYTES: usize = 5000;
/// Errors of a layer below.
const KINDS: [ErrorKind; 3] = [ErrorKind::NoSpace, ErrorKind::ReadOnly, ErrorKind::Io];

fn options(zeroes: DeviceZeroes) -> Options {
    Options {
        zeroes,
        assign: Assign::Off,
        ..forgetful()
    }
}

fn written() -> Options {
    options(DeviceZeroes::Written)
}

fn expected() -> Vec<u8> {
    let mut bytes = vec![0; FILE as usize];
    for at in DATA {
        bytes[at as usize..][..DATA_BYTES].fill(7);
    }
    bytes
}

/// A file system with a file that is a hole below, but for its data.
fn base() -> MemoryDevice {
    let device = Arc::new(make(PLAIN, 4096));
    let filesystem = Filesystem::open(device.clone(), options(DeviceZeroes::MayUnmap)).unwrap();
    let root = filesystem.root().unwrap();
    let node = root.create(b"file", &new(NewKind::Regular)).unwrap();
    let file = node.file().unwrap();
    let whole = ByteRange::new(0, FILE);
    file.fallocate(FallocateMode::WriteZeroes, whole).unwrap();
    for at in DATA {
        file.write_at(&[7; DATA_BYTES], at).unwrap();
    }
    file.sync(SyncMode::All).unwrap();
    drop((root, node, file));
    filesystem.close().unwrap();
    Arc::into_inner(device).expect("closed")
}

fn file(filesystem: &Filesystem) -> File {
    let node = filesystem.root().unwrap().lookup(b"file").unwrap();
    node.file().unwrap()
}

fn materialize(file: &File) -> Result<()> {
    let (cancel, reporter) = (CancelToken::new(), Silent);
    let control = Control::new(&cancel, &reporter);
    let target = Provisioner::new(file, ByteRange::new(0, FILE), control);
    target.materialize(Shared::Refuse).map(drop)
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; FILE as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn missing_below(file: &File) -> u64 {
    let mut missing = 0;
    file.for_each_extent_below(ByteRange::new(0, FILE), &mut |found| {
        if found.extent.state != ExtentState::Written {
            missing += found.extent.logical.len();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    missing
}

/// The rest is done, and nothing was lost.
fn assert_completes(filesystem: &Filesystem, what: &str) {
    let file = file(filesystem);
    assert!(contents(&file) == expected(), "{what}: data is lost");
    materialize(&file).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(missing_below(&file), 0, "{what}");
    assert!(contents(&file) == expected(), "{what}: data has changed");
}

#[test]
fn layer_that_refuses_zeros_is_an_error_that_leaves_the_rest_to_the_next_call() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let base = base();
    let mut judge = Judge::new();
    for kind in KINDS {
        for done in [Done::Nothing, Done::Part, Done::All] {
            for number in 1.. {
                let what = format!("{kind:?} from zeroes {number}, done {done:?}");
                let device = Arc::new(FaultyDevice::new(base.snapshot(), number, Vec::new()));
                let filesystem = Filesystem::open(device.clone(), written()).unwrap();
                assert!(missing_below(&file(&filesystem)) > FILE / 2);
                let rule = FaultRule::new(Fault::Fail { kind, done });
                let rule = rule.on(&[OperationKind::WriteZeroes]);
                device.set_rules(vec![rule.when(When::From(number))]);
                let result = materialize(&file(&filesystem));
                if device.strikes()[0] == 0 {
                    result.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(number > 2, "{what}");
                    break;
                }
                let error = result.expect_err(&what);
                assert_eq!(error.kind(), kind, "{what}: {error}");
                assert!(error.to_string().contains("injected"), "{what}: {error}");
                device.set_rules(Vec::new());
                assert_completes(&filesystem, &what);
                filesystem.close().unwrap();
                let image = Arc::new(device.inner().snapshot());
                assert_usable(&image, &mut judge, &what);
            }
        }
    }
}

#[test]
fn layer_that_disappears_while_zeros_are_written_costs_nothing() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let base = base();
    let mut judge = Judge::new();
    for number in 1.. {
        let what = format!("gone from request {number}");
        let device = Arc::new(FaultyDevice::new(base.snapshot(), number, Vec::new()));
        let filesystem = Filesystem::open(device.clone(), written()).unwrap();
        let file = file(&filesystem);
        let gone = FaultRule::new(Fault::Fail {
            kind: ErrorKind::Io,
            done: Done::Nothing,
        });
        device.set_rules(vec![gone.when(When::From(number))]);
        let result = materialize(&file);
        if device.strikes()[0] == 0 {
            result.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(number > 4, "{what}");
            break;
        }
        let error = result.expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
        assert!(error.to_string().contains("injected"), "{what}: {error}");
        // It is gone for good, and found again elsewhere.
        drop((file, filesystem));
        let image = Arc::new(device.inner().snapshot());
        let filesystem = Filesystem::open(image.clone(), written()).unwrap();
        assert_completes(&filesystem, &what);
        filesystem.close().unwrap();
        assert_usable(&image, &mut judge, &what);
    }
}
