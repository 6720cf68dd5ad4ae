//! Power cuts while space is written in every layer below (`DeviceZeroes::Written`).
//!
//! The free blocks of the device are holes, unwritten and full of old data in turn. After every cut
//! a file has its data or zeros; what a sync has promised is written below; and what is not, is
//! found by `materialize`, which keeps the data.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_blockdev::simulation::{CrashDevice, CrashOptions, CrashState};
use extant_ext4::{Assign, DeviceZeroes, File, Filesystem, Options};
use extant_provision::{Provisioner, Shared};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, Extent, ExtentState, FallocateMode, LayerExtent,
    Result, Silent, SpaceFile, SyncMode,
};
use extant_testkit::{mke2fs, require, requires};

use crate::cuts;
use crate::image::OLD;
use crate::life::options;
use crate::oracle::Oracle;
use crate::step::{Kind, data};

const BLOCK: u64 = 4096;
const DEVICE: u64 = 12 << 20;
const FILE: u64 = 12 * BLOCK;
/// Data that is durable in two of the files before they are written through.
const DATA: Range<u64> = 3 * BLOCK + 100..5 * BLOCK - 700;
const FORMATS: [&str; 3] = [
    "-t ext4 -b 4096 -J size=4 -N 256",
    "-t ext4 -b 4096 -N 256 -O fast_commit -J size=4",
    "-t ext4 -b 1024 -J size=1 -N 256",
];
/// Written in name only when the log begins, and made written below.
const NAME_ONLY: &str = "name only";
/// Unwritten when the log begins, and materialized.
const UNWRITTEN: &str = "unwritten";
/// Made by write zeroes.
const NEW: &str = "new";
const NAMES: [&str; 3] = [NAME_ONLY, UNWRITTEN, NEW];

fn whole() -> ByteRange {
    ByteRange::new(0, FILE)
}

fn with(zeroes: DeviceZeroes, assign: Assign) -> Options {
    Options {
        zeroes,
        assign,
        ..options()
    }
}

fn make(filesystem: &Filesystem, name: &str) -> File {
    let root = filesystem.root().unwrap();
    let node = root.create(name.as_bytes(), &Kind::Regular.node(b""));
    node.unwrap().file().unwrap()
}

fn materialize(file: &File) -> Result<()> {
    let (cancel, reporter) = (CancelToken::new(), Silent);
    let control = Control::new(&cancel, &reporter);
    let target = Provisioner::new(file, whole(), control);
    target.materialize(Shared::Refuse).map(drop)
}

fn write_data(file: &File) {
    let bytes = data(1, DATA.start, (DATA.end - DATA.start) as usize);
    file.write_at(&bytes, DATA.start).unwrap();
}

/// A file system whose free blocks are in every state, with the first two files.
fn base(format: &str) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::from_bytes(&mke2fs(format, DEVICE)));
    let allocated = with(DeviceZeroes::Allocated, Assign::Off);
    let filesystem = Filesystem::open(device.clone(), allocated).unwrap();
    let filler = make(&filesystem, "filler");
    let mut end = 0;
    loop {
        let part = ByteRange::new(end, end + BLOCK);
        match filler.fallocate(FallocateMode::Allocate, part) {
            Ok(()) => end = part.end(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
        let state = part.start() / BLOCK % 3;
        if state == 0 {
            filler
                .write_at(&[OLD; BLOCK as usize], part.start())
                .unwrap();
        } else if state == 1 {
            filler.fallocate(FallocateMode::WriteZeroes, part).unwrap();
        }
    }
    filler.sync(SyncMode::All).unwrap();
    drop(filler);
    filesystem.root().unwrap().unlink(b"filler").unwrap();
    filesystem.sync().unwrap();
    let named = make(&filesystem, NAME_ONLY);
    named
        .fallocate(FallocateMode::WriteZeroes, whole())
        .unwrap();
    let unwritten = make(&filesystem, UNWRITTEN);
    unwritten
        .fallocate(FallocateMode::Allocate, whole())
        .unwrap();
    for file in [&named, &unwritten] {
        write_data(file);
        file.sync(SyncMode::All).unwrap();
    }
    drop((named, unwritten));
    filesystem.close().unwrap();
    Arc::into_inner(device).expect("closed")
}

/// Makes all three files written below, and marks each when it is promised.
fn run(disk: &Arc<CrashDevice>) {
    let options = with(DeviceZeroes::Written, Assign::Try);
    let filesystem = Filesystem::open(disk.clone(), options).unwrap();
    let file = |name: &str| {
        let node = filesystem.root().unwrap().lookup(name.as_bytes());
        node.unwrap().file().unwrap()
    };
    let named = file(NAME_ONLY);
    assert!(named.write_through(whole()).unwrap() > 0, "nothing to do");
    named.sync(SyncMode::Data).unwrap();
    disk.mark("1");
    materialize(&file(UNWRITTEN)).unwrap();
    disk.mark("2");
    let new = make(&filesystem, NEW);
    new.fallocate(FallocateMode::WriteZeroes, whole()).unwrap();
    new.sync(SyncMode::All).unwrap();
    disk.mark("3");
    // Data that is not durable beside zeros that are.
    write_data(&new);
    assert_eq!(new.write_through(whole()).unwrap(), 0);
    new.sync(SyncMode::Data).unwrap();
    drop((named, new));
    filesystem.close().unwrap();
}

/// The first part of the file that is not written, in it or below.
fn not_written(file: &File) -> Result<Option<String>> {
    let is_written = |extent: &Extent| extent.state == ExtentState::Written;
    if let Some(extent) = file.extents(whole())?.iter().find(|one| !is_written(one)) {
        return Ok(Some(format!("{extent:?}")));
    }
    let mut missing = None;
    file.for_each_extent_below(whole(), &mut |found: &LayerExtent<'_>| {
        if !is_written(&found.extent) {
            missing = Some(format!("{} in {}", found.extent.logical, found.layer));
        }
        ControlFlow::Continue(())
    })?;
    Ok(missing)
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The file has zeros, and its data, which it may not have yet unless it is durable.
fn assert_shows(bytes: &[u8], is_durable: bool, what: &str) {
    let expected = data(1, 0, FILE as usize);
    for (at, (byte, expected)) in bytes.iter().zip(expected).enumerate() {
        let is_data = DATA.contains(&(at as u64));
        let is_right = match (is_data, is_durable) {
            (true, true) => *byte == expected,
            (true, false) => *byte == expected || *byte == 0,
            (false, _) => *byte == 0,
        };
        assert!(is_right, "{what}: {byte:#x} at {at}");
    }
}

/// Returns the files that `materialize` had to do something for, and what it leaves.
fn judge(crash: &CrashState, what: &str) -> (usize, MemoryDevice) {
    let device = Arc::new(crash.image.snapshot());
    let options = with(DeviceZeroes::Written, Assign::Try);
    let filesystem = Filesystem::open(device.clone(), options).unwrap();
    let promised: usize = crash.mark().map_or(0, |mark| mark.parse().unwrap());
    let mut found = 0;
    for (number, name) in NAMES.into_iter().enumerate() {
        let what = format!("{what}, {name}");
        let node = filesystem.root().unwrap().lookup(name.as_bytes());
        let Ok(node) = node else {
            assert!(number >= promised && name == NEW, "{what} is gone");
            continue;
        };
        let file = node.file().unwrap();
        let before = contents(&file);
        assert_shows(&before, name != NEW, &what);
        let missing = not_written(&file).unwrap();
        if number < promised {
            assert_eq!(before.len() as u64, FILE, "{what}");
            assert_eq!(missing, None, "{what} was reported as written");
        } else if before.len() as u64 == FILE {
            found += usize::from(missing.is_some());
        }
        materialize(&file).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(contents(&file) == before, "{what} has changed");
        if before.len() as u64 == FILE {
            assert_eq!(not_written(&file).unwrap(), None, "{what}");
        }
    }
    filesystem.close().unwrap();
    (found, Arc::into_inner(device).expect("closed"))
}

#[test]
fn space_written_below_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in FORMATS {
        let base = base(format);
        let mut oracle = Oracle::new(&base);
        let disk = Arc::new(CrashDevice::new(base));
        run(&disk);
        let log = Arc::into_inner(disk).expect("closed").into_log();
        let options = CrashOptions {
            states_max: 12,
            ..CrashOptions::seeded(1)
        };
        let (mut cuts, mut found) = (0, 0);
        cuts::for_each(&log, options, |crash| {
            let what = format!("{format}: {crash}");
            let (missing, left) = judge(&crash, &what);
            found += missing;
            cuts += 1;
            if cuts % 19 == 0 {
                let examined = oracle.examine(&left);
                examined.unwrap_or_else(|words| panic!("{what}: {words}"));
            }
        });
        println!("{format}: {cuts} cuts, {found} files not written below yet");
        assert!(cuts >= 150, "{cuts} cuts");
        assert!(found >= 50, "{found} files");
    }
}
