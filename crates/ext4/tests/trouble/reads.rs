//! Reads that succeed with wrong data.
//!
//! Inode tables are left out: an inode is written back with its neighbours in the block as they
//! were read, and their checksums are not verified. The kernel does the same.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::simulation::{Fault, FaultRule, FaultyDevice};
use extant_blockdev::{Device, Geometry, MemoryDevice, Operation, RangeStatus, Request};
use extant_ext4::{Filesystem, OnError, Options};
use extant_fsck::{CheckOptions, Finding, check};
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, Superblock};
use extant_space::{ByteRange, CancelToken, Control, ErrorKind, Result, Silent};
use extant_testkit::{require, requires};

use crate::image::{Judge, PLAIN, forgetful, open, used};
use crate::panics::{has_noted_errors, repaired};
use crate::scenario;
use crate::watch::Watch;

/// Sends one read of those that are no inode table the wrong way.
struct OneWrong {
    right: MemoryDevice,
    wrong: FaultyDevice<MemoryDevice>,
    table: ByteRange,
    left: AtomicU64,
}

impl Device for OneWrong {
    fn geometry(&self) -> Geometry {
        self.right.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in requests {
            let is_struck = match &request.operation {
                Operation::Read { .. } => {
                    let range = request.operation.range().expect("a read has a range");
                    range.intersection(self.table).is_none()
                        && self.left.fetch_sub(1, Ordering::Relaxed) == 1
                }
                _ => false,
            };
            if is_struck {
                self.wrong.inner().restore(&self.right);
                self.wrong.submit(std::slice::from_mut(request));
            } else {
                self.right.submit(std::slice::from_mut(request))
            }
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.right.status(range, visit)
    }
}

/// The table of the only group.
fn inode_table(image: &MemoryDevice) -> ByteRange {
    let bytes = image.to_vec();
    let start = Superblock::OFFSET as usize;
    let superblock = Superblock::parse(&bytes[start..start + Superblock::BYTES]).unwrap();
    let layout = superblock.layout();
    assert_eq!(layout.groups(), 1);
    let bits = layout.block_bits();
    let descriptors = (layout.descriptor_block(0).0 << bits) as usize;
    let descriptor = &bytes[descriptors..descriptors + usize::from(layout.descriptor_bytes())];
    let descriptor = GroupDescriptor::parse(descriptor, GroupNumber(0), &superblock).unwrap();
    let first = descriptor.inode_table().0;
    ByteRange::new(
        first << bits,
        (first + u64::from(layout.inode_table_blocks())) << bits,
    )
}

/// A removed inode whose map was misread keeps its blocks for e2fsck, and the error is recorded.
/// Nothing else may be wrong.
#[track_caller]
fn assert_harmless(judge: &mut Judge, image: &MemoryDevice, what: &str) {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let report = check(image, &CheckOptions::default(), control).unwrap();
    if report.is_clean() {
        return judge.assert_clean(image, what);
    }
    assert!(has_noted_errors(image), "{what}: {report}");
    let is_unnamed = |finding: &Finding| finding.to_string().contains("without a name");
    assert!(report.findings.iter().all(is_unnamed), "{what}: {report}");
    judge.assert_clean(&repaired(image), what);
}

/// Every read, one after the other: checksums detect wrong metadata, and none of it is written back
/// to the device.
#[track_caller]
fn every_read(fault: &Fault, on_error: OnError) {
    let base = used(PLAIN);
    let table = inode_table(&base);
    let mut judge = Judge::new();
    let watch = Watch::new();
    let (mut number, mut found) = (0, 0);
    loop {
        number += 1;
        let what = format!("{fault:?} {on_error:?} of read {number}");
        watch.tell(what.clone());
        let rule = FaultRule::new(fault.clone());
        let device = Arc::new(OneWrong {
            right: base.snapshot(),
            wrong: FaultyDevice::new(base.snapshot(), number, vec![rule]),
            table,
            left: AtomicU64::new(number),
        });
        let options = Options {
            on_error: Some(on_error),
            ..forgetful()
        };
        let errors = match Filesystem::open(device.clone(), options) {
            Err(error) => vec![error],
            Ok(filesystem) => {
                let outcome = scenario::run(&filesystem, "d");
                // After a change that failed halfway, the journal is stopped.
                let _ = filesystem.close();
                outcome.errors
            }
        };
        for error in errors
            .iter()
            .filter(|error| error.kind() == ErrorKind::Corrupt)
        {
            found += 1;
            assert!(error.to_string().len() > 20, "{what}: {error}");
        }
        let is_struck = device.wrong.strikes()[0] > 0;
        let image = Arc::new(device.right.snapshot());
        let closed = open(image.clone()).and_then(Filesystem::close);
        closed.unwrap_or_else(|error| panic!("{what}: opened again: {error}"));
        assert_harmless(&mut judge, &image, &what);
        if !is_struck {
            break;
        }
    }
    assert!(
        number > 100 && found > 30,
        "{found} errors of {number} reads"
    );
}

#[test]
fn flipped_bit_of_any_read_does_no_harm_to_metadata() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    every_read(&Fault::FlipBits(1), OnError::Continue);
    every_read(&Fault::FlipBits(3), OnError::ReadOnly);
}

#[test]
fn misdirected_read_does_no_harm_to_metadata() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    every_read(&Fault::Misdirect, OnError::Continue);
}
