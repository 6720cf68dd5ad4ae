//! Errors of the device at every request.

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, Done, Fault, FaultRule, FaultyDevice, When};
use extant_blockdev::{MemoryDevice, OperationKind};
use extant_ext4::{Filesystem, NewKind};
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::{require, requires};

use crate::image::{Judge, MAPS, OLD, PLAIN, assert_usable, forgetful, make, new, open, used};
use crate::scenario::{self, Outcome};
use crate::watch::Watch;

/// Runs the scenario on a device that fails once, or from there on; whether it did.
fn fails(base: &MemoryDevice, rule: FaultRule, judge: &mut Judge, what: &str) -> bool {
    let device = Arc::new(FaultyDevice::new(
        CrashDevice::new(base.snapshot()),
        1,
        vec![rule],
    ));
    let outcome = match Filesystem::open(device.clone(), forgetful()) {
        Err(error) => {
            assert_is_told(&error, what);
            Outcome::default()
        }
        Ok(filesystem) => {
            let outcome = scenario::run(&filesystem, "d");
            let closed = filesystem.close();
            for error in outcome.errors.iter().chain(closed.as_ref().err()) {
                assert_is_told(error, what);
            }
            let is_struck = device.strikes()[0] > 0;
            let is_refused = |error: &extant_space::Error| error.kind() == ErrorKind::Unsupported;
            let was_told = !outcome.errors.iter().all(is_refused) || closed.is_err();
            assert!(
                !was_told || is_struck,
                "{what}: {:?}",
                outcome.errors.first()
            );
            outcome
        }
    };
    let is_struck = device.strikes()[0] > 0;
    let image = Arc::new(device.inner().snapshot());
    assert_usable(&image, judge, what);
    let filesystem = open(image).unwrap();
    outcome.assert_kept(&filesystem, what);
    is_struck
}

/// An error that the device made, or that follows from it.
#[track_caller]
fn assert_is_told(error: &extant_space::Error, what: &str) {
    let follows = [
        ErrorKind::NotFound,
        ErrorKind::NotEmpty,
        ErrorKind::InvalidArgument,
        ErrorKind::NoAttribute,
        // For a block map: all but holes.
        ErrorKind::Unsupported,
    ];
    let text = error.to_string();
    let is_told = text.contains("injected fault") || follows.contains(&error.kind());
    assert!(is_told, "{what}: {text}");
}

fn every(
    options: &str,
    kinds: &[OperationKind],
    kind: ErrorKind,
    done: Done,
    step: u64,
    when: fn(u64) -> When,
) -> u64 {
    let base = used(options);
    let mut judge = Judge::new();
    let watch = Watch::new();
    let mut number = 1;
    loop {
        let what = format!("{kinds:?} {:?} {done:?}", when(number));
        watch.tell(what.clone());
        let rule = FaultRule::new(Fault::Fail { kind, done })
            .on(kinds)
            .when(when(number));
        if !fails(&base, rule, &mut judge, &what) {
            return number;
        }
        number += step;
    }
}

#[test]
fn error_of_any_read_is_returned_and_leaves_a_valid_file_system() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for options in [PLAIN, OLD, MAPS] {
        let reads = every(
            options,
            &[OperationKind::Read],
            ErrorKind::Io,
            Done::Nothing,
            1,
            When::Nth,
        );
        assert!(reads > 100, "{reads} reads");
    }
}

/// The bitmaps have not been read before. Errors of a removal are not returned: it is completed
/// later.
#[test]
fn error_of_any_read_while_blocks_are_freed_leaks_none() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for options in [PLAIN, OLD, MAPS] {
        let base = Arc::new(make(options, 17 << 10));
        let filesystem = open(base.clone()).unwrap();
        let root = filesystem.root().unwrap();
        let node = root.create(b"file", &new(NewKind::Regular)).unwrap();
        // In more than one group.
        let data = vec![1; 9 << 20];
        node.file().unwrap().write_at(&data, 0).unwrap();
        drop((node, root));
        filesystem.close().unwrap();
        for size in [None, Some(4096)] {
            let reads = every_read_fails(&base, size, &format!("{options}, {size:?}"));
            assert!(reads > 8, "{options}: {reads} reads");
        }
    }
}

/// The file is removed, or cut to a size, while one read fails; how many there are.
fn every_read_fails(base: &MemoryDevice, size: Option<u64>, what: &str) -> u64 {
    let mut judge = Judge::new();
    let fault = Fault::Fail {
        kind: ErrorKind::Io,
        done: Done::Nothing,
    };
    let change = |filesystem: &Filesystem| {
        let root = filesystem.root()?;
        match size {
            None => root.unlink(b"file"),
            Some(size) => root.lookup(b"file")?.file()?.resize(size),
        }
    };
    for number in 1.. {
        let rule = FaultRule::new(fault.clone()).on(&[OperationKind::Read]);
        let rules = vec![rule.when(When::Nth(number))];
        let device = Arc::new(FaultyDevice::new(base.snapshot(), 1, rules));
        if let Ok(filesystem) = Filesystem::open(device.clone(), forgetful()) {
            let errors = [change(&filesystem), filesystem.close()];
            for error in errors.into_iter().filter_map(Result::err) {
                assert_is_told(&error, what);
            }
        }
        let image = Arc::new(device.inner().snapshot());
        assert_usable(&image, &mut judge, &format!("{what}, read {number}"));
        if device.strikes()[0] == 0 {
            return number;
        }
    }
    unreachable!()
}

#[test]
fn error_of_any_write_is_returned_and_keeps_synced_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let kinds = [OperationKind::Write, OperationKind::WriteZeroes];
    for (number, done) in [Done::Nothing, Done::Part, Done::All]
        .into_iter()
        .enumerate()
    {
        let options = [PLAIN, OLD, MAPS][number];
        let writes = every(options, &kinds, ErrorKind::Io, done, 1, When::Nth);
        assert!(writes > 100, "{writes} writes");
    }
}

#[test]
fn error_of_any_flush_is_returned_and_keeps_synced_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let flushes = every(
        PLAIN,
        &[OperationKind::Flush],
        ErrorKind::Io,
        Done::Nothing,
        1,
        When::Nth,
    );
    assert!(flushes > 10, "{flushes} flushes");
}

#[test]
fn device_that_disappears_at_any_request_keeps_synced_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    every(
        PLAIN,
        &OperationKind::ALL,
        ErrorKind::Io,
        Done::Nothing,
        3,
        When::From,
    );
}

#[test]
fn thin_device_full_at_any_write_keeps_synced_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let kinds = [
        OperationKind::Write,
        OperationKind::WriteZeroes,
        OperationKind::Assign,
    ];
    every(OLD, &kinds, ErrorKind::NoSpace, Done::Part, 3, When::From);
}

#[test]
fn device_that_becomes_read_only_keeps_synced_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let kinds = [
        OperationKind::Write,
        OperationKind::WriteZeroes,
        OperationKind::Discard,
    ];
    every(
        PLAIN,
        &kinds,
        ErrorKind::ReadOnly,
        Done::Nothing,
        3,
        When::From,
    );
}
