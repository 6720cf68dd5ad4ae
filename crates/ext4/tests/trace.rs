//! Events of a scripted life of a file system, compared with what was done to it.

use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Assign, Filesystem, NewKind, NewNode, Options};
use extant_space::trace::Level;
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::events::{self, Event};
use extant_testkit::{mke2fs, require, requires};

const MIB: u64 = 1 << 20;

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    let options = Options {
        assign: Assign::Require,
        ..Options::default()
    };
    Filesystem::open(Arc::clone(device) as _, options).unwrap()
}

/// Those of `name`, which have a duration and no error.
fn of(events: &[Event], name: &str) -> Vec<Event> {
    let found = events.iter().filter(|event| event.name == name);
    let found: Vec<_> = found.cloned().collect();
    for event in &found {
        assert!(event.is_timed() || event.level == Level::TRACE, "{event:?}");
        assert_eq!(event.text("error"), "", "{event:?}");
    }
    found
}

fn sum(events: &[Event], field: &str) -> u64 {
    events.iter().map(|event| event.number(field)).sum()
}

#[test]
fn scripted_life_reports_each_operation_with_its_ranges() {
    require!(requires::tool("mke2fs"));
    events::record();
    let device = Arc::new(MemoryDevice::from_bytes(&mke2fs(
        "-t ext4 -b 4096",
        64 * MIB,
    )));
    let filesystem = open(&device);
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let node = filesystem.root().unwrap().create(b"file", &new).unwrap();
    let (inode, file) = (u64::from(node.number().0), node.file().unwrap());
    events::take("");

    // Allocate: one operation, the extents that the map shows, all of them assigned.
    let range = ByteRange::new(MIB, 9 * MIB);
    file.fallocate(FallocateMode::Allocate, range).unwrap();
    let found = events::take("extant_ext4");
    let operations = of(&found, "fallocate");
    assert_eq!(operations.len(), 1, "{found:?}");
    assert_eq!(operations[0].number("inode"), inode);
    assert_eq!(operations[0].text("mode"), FallocateMode::Allocate.name());
    assert_eq!(operations[0].number("start_bytes"), range.start());
    assert_eq!(operations[0].number("length_bytes"), range.len());
    let allocated = of(&found, "allocate");
    let mut mapped = Vec::new();
    file.for_each_extent(range, &mut |extent| {
        mapped.extend(extent.physical.map(|at| (extent.logical.start(), at)));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let places = allocated.iter().map(|event| {
        assert_eq!(event.text("kind"), "Unwritten");
        (event.number("start_bytes"), event.number("device_bytes"))
    });
    assert_eq!(places.collect::<Vec<_>>(), mapped);
    assert_eq!(sum(&allocated, "length_bytes"), range.len());
    assert!(sum(&of(&found, "assign"), "length_bytes") >= range.len());

    // A write into unwritten space converts its blocks, and allocates nothing.
    file.write_at(&[1; 8192], 2 * MIB).unwrap();
    let found = events::take("extant_ext4");
    let converted = of(&found, "convert");
    assert_eq!(converted.len(), 1, "{found:?}");
    assert_eq!(converted[0].text("to"), "Written");
    assert_eq!(converted[0].number("start_bytes"), 2 * MIB);
    assert_eq!(converted[0].number("length_bytes"), 8192);
    assert_eq!(of(&found, "allocate"), []);

    // Write zeroes: the device is sent zeros for the range, and the unwritten parts are converted.
    let zeroed = ByteRange::new(2 * MIB, 4 * MIB);
    file.fallocate(FallocateMode::WriteZeroes, zeroed).unwrap();
    let found = events::take("extant_ext4");
    let sent = of(&found, "write zeroes");
    assert_eq!(sum(&sent, "length_bytes"), zeroed.len());
    let converted = of(&found, "convert");
    assert_eq!(sum(&converted, "length_bytes"), zeroed.len() - 8192);

    // A sync makes them durable: at least one commit, of the fast or full kind.
    file.sync(SyncMode::All).unwrap();
    let commits = of(&events::take("extant_jbd2"), "commit");
    assert!(!commits.is_empty());
    let tid = commits.last().unwrap().number("tid");

    // The image of a crash is recovered, and the next transaction follows.
    let crashed = Arc::new(device.snapshot());
    let recovered = open(&crashed);
    let found = of(&events::take("extant_jbd2"), "recover");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].level, Level::INFO);
    assert!(found[0].number("blocks") > 0);
    assert!(found[0].number("next_tid") > tid);
    recovered.close().unwrap();
    events::take("");

    // Truncate, and everything to its place at the end.
    file.resize(MIB).unwrap();
    let resized = of(&events::take("extant_ext4"), "resize");
    assert_eq!(resized.len(), 1);
    assert_eq!(resized[0].number("size_bytes"), MIB);
    filesystem.close().unwrap();
    let found = events::take("extant_jbd2");
    let committed = of(&found, "commit");
    assert!(committed.iter().all(|event| event.text("kind") == "full"));
    assert!(committed[0].number("tid") >= tid, "{found:?}");
    assert!(sum(&of(&found, "checkpoint"), "blocks") > 0, "{found:?}");
}
