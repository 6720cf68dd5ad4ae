//! Opening host devices, and refused requests: others who have the file, changes, ranges, a full
//! disk.

mod host;

use std::fs::{self, OpenOptions};

use extant_blockdev::{
    Device, Features, HostAccess, HostCache, HostDevice, HostEnd, HostEngine, HostOptions,
    Persistence, Zeroing,
};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::scratch::{DirectIo, Filesystem, LoopDevice, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};
use host::{MIB, every_way, open, read, sparse, uring};
use rustix::fs::{FileType, Mode};

const READ_ONLY: HostOptions = HostOptions {
    access: HostAccess::ReadOnly,
    cache: HostCache::Buffered,
    engine: HostEngine::Auto,
    depth: 4,
    assign_max: 1 << 20,
    end: HostEnd::WholeBlock,
};

fn kind_of_refusal(path: &std::path::Path, options: &HostOptions) -> ErrorKind {
    let error = HostDevice::open(path, options).expect_err("refused");
    assert_eq!(error.path(), Some(path), "{error}");
    error.kind()
}

#[test]
fn file_has_one_writer_or_many_readers() {
    let work = Workdir::new();
    let path = sparse(work.path(), "file", MIB);
    let writer = open(&path, &HostOptions::default());
    assert_eq!(
        kind_of_refusal(&path, &HostOptions::default()),
        ErrorKind::InUse
    );
    assert_eq!(kind_of_refusal(&path, &READ_ONLY), ErrorKind::InUse);
    drop(writer);
    let _readers = [open(&path, &READ_ONLY), open(&path, &READ_ONLY)];
    assert_eq!(
        kind_of_refusal(&path, &HostOptions::default()),
        ErrorKind::InUse
    );
}

#[test]
fn resized_file_has_its_size_and_the_device_follows() {
    let work = Workdir::new();
    let path = sparse(work.path(), "file", MIB);
    let device = open(&path, &HostOptions::default());
    assert_eq!(device.resize(3 * MIB).unwrap(), 3 * MIB);
    device
        .write_at(&[7; 512], 2 * MIB, Persistence::Cached)
        .unwrap();
    // A rest of a block belongs to the file, and not to the device.
    assert_eq!(device.resize(2 * MIB + 700).unwrap(), 2 * MIB + 512);
    assert_eq!(device.file_bytes().unwrap(), 2 * MIB + 700);
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * MIB + 700);
    drop(device);
    let error = open(&path, &READ_ONLY).resize(MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

#[test]
fn disk_has_one_writer_and_none_while_mounted() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let mut scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
    let disk = scratch.device().unwrap().to_owned();
    assert_eq!(
        kind_of_refusal(&disk, &HostOptions::default()),
        ErrorKind::InUse
    );
    open(&disk, &READ_ONLY);
    scratch.unmount();
    let writer = open(&disk, &HostOptions::default());
    assert_eq!(
        kind_of_refusal(&disk, &HostOptions::default()),
        ErrorKind::InUse
    );
    open(&disk, &READ_ONLY);
    drop(writer);
    open(&disk, &HostOptions::default());
}

#[test]
fn disk_that_is_read_only_is_refused_for_writing() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
    let backing = sparse(scratch.path(), "backing", MIB);
    scratch.remount("ro");
    let disk = LoopDevice::attach(&backing);
    assert_eq!(
        kind_of_refusal(disk.path(), &HostOptions::default()),
        ErrorKind::ReadOnly
    );
    open(disk.path(), &READ_ONLY);
}

#[test]
fn path_that_is_no_file_and_no_disk_is_refused() {
    let work = Workdir::new();
    let fifo = work.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    for options in [HostOptions::default(), READ_ONLY] {
        assert_eq!(kind_of_refusal(&fifo, &options), ErrorKind::WrongType);
        assert_eq!(kind_of_refusal(work.path(), &options), ErrorKind::WrongType);
        assert_eq!(
            kind_of_refusal("/dev/null".as_ref(), &options),
            ErrorKind::WrongType
        );
        let missing = work.path().join("missing");
        assert_eq!(kind_of_refusal(&missing, &options), ErrorKind::NotFound);
    }
}

#[test]
fn direct_io_is_refused_where_there_is_none() {
    let options = HostOptions {
        cache: HostCache::Direct,
        ..READ_ONLY
    };
    let path = "/proc/self/status".as_ref();
    assert_eq!(kind_of_refusal(path, &options), ErrorKind::Unsupported);
}

#[test]
fn read_only_device_refuses_changes() {
    let work = Workdir::new();
    let path = work.path().join("file");
    fs::write(&path, [7; 4096]).unwrap();
    let device = open(&path, &READ_ONLY);
    assert!(device.geometry().features.contains(Features::READ_ONLY));
    let block = ByteRange::new(0, 512);
    for result in [
        device.write_at(&[1; 512], 0, Persistence::Cached),
        device.discard(block),
        device.assign(block).map(|_| ()),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(read(&device, block), [7; 512]);
    device.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7; 4096]);
}

#[test]
fn size_is_that_of_the_file_in_whole_blocks_and_follows_it() {
    require!(uring());
    let work = Workdir::new();
    for options in every_way() {
        let path = sparse(work.path(), "file", MIB + 8192 + 511);
        let device = open(&path, &options);
        let geometry = device.geometry();
        assert_eq!(geometry.size, MIB + 8192);
        let at_end = MIB + 8192 - u64::from(geometry.logical_block);
        let block = vec![1; geometry.logical_block as usize];
        device
            .write_at(&block, at_end, Persistence::Cached)
            .unwrap();
        let error = device
            .write_at(&block, MIB + 8192, Persistence::Cached)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(fs::metadata(&path).unwrap().len(), MIB + 8192 + 511);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(2 * MIB)
            .unwrap();
        assert_eq!(device.geometry().size, MIB + 8192);
        assert_eq!(device.refresh().unwrap(), 2 * MIB);
        device
            .write_at(&block, MIB + 8192, Persistence::Cached)
            .unwrap();
    }
}

#[test]
fn empty_file_is_a_device_of_no_bytes() {
    let work = Workdir::new();
    let path = sparse(work.path(), "file", 0);
    let device = open(&path, &HostOptions::default());
    assert_eq!(device.geometry().size, 0);
    device.flush().unwrap();
    device.discard(ByteRange::default()).unwrap();
    let error = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn requests_past_the_end_or_inside_a_block_fail_alone() {
    require!(requires::root(), requires::tool("losetup"), uring());
    let work = Workdir::new();
    let backing = sparse(work.path(), "backing", MIB);
    let disk = LoopDevice::attach_with(&backing, DirectIo::Off, 4096);
    for options in every_way() {
        let device = open(disk.path(), &options);
        for range in [
            ByteRange::new(MIB - 4096, MIB + 4096),
            ByteRange::new(512, 4096),
            ByteRange::new(0, 512),
            ByteRange::new(u64::MAX - 4095, u64::MAX),
        ] {
            let error = device.discard(range).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert_eq!(error.range(), Some(range));
        }
        device.write_at(&[3; 4096], 0, Persistence::Fua).unwrap();
    }
}

#[test]
fn file_that_was_cut_fails_reads_with_the_missing_range() {
    require!(uring());
    let work = Workdir::new();
    for options in every_way() {
        let path = sparse(work.path(), "file", MIB);
        let device = open(&path, &options);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(MIB / 2)
            .unwrap();
        let mut bytes = vec![0; 64 << 10];
        let range = ByteRange::new(MIB / 2, MIB / 2 + (32 << 10));
        let error = device
            .read_at(&mut bytes, MIB / 2 - (32 << 10))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(error.range(), Some(range), "{options:?}");
        device.read_at(&mut bytes, MIB / 2 - (64 << 10)).unwrap();
    }
}

#[test]
fn write_without_space_fails_with_the_cause_and_its_range() {
    require!(requires::root(), Filesystem::Ext4.requirement(), uring());
    let scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
    for options in every_way() {
        let path = sparse(scratch.path(), "file", 64 * MIB);
        let device = open(&path, &options);
        let data = vec![7; 32 << 20];
        let error = device
            .write_at(&data, MIB, Persistence::Cached)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let range = error.range().unwrap();
        assert!(ByteRange::new(MIB, 33 * MIB).contains(range), "{range}");
        assert!(range.len() <= MIB, "the piece that failed: {range}");
        fs::remove_file(&path).unwrap();
    }
}

/// A file system that promises more than there is: data accepted by the page cache cannot be
/// written out.
fn thin() -> Scratch {
    Scratch::builder(Filesystem::Ext4, 64 * MIB)
        .mkfs_options(&["-O", "^has_journal"])
        .memory(12 * MIB)
        .build()
}

#[test]
fn flush_that_failed_fails_until_the_device_is_opened_again() {
    require!(requires::root(), Filesystem::Ext4.requirement(), uring());
    let scratch = thin();
    let path = sparse(scratch.path(), "file", 32 * MIB);
    let device = open(&path, &HostOptions::default());
    device
        .write_at(&vec![7; 32 << 20], 0, Persistence::Cached)
        .unwrap();
    let error = device.flush().unwrap_err();
    let kind = error.kind();
    assert!(
        matches!(kind, ErrorKind::Io | ErrorKind::NoSpace),
        "{error}"
    );
    for _ in 0..2 {
        assert_eq!(device.flush().unwrap_err().kind(), kind);
    }
    let text = error.to_string();
    assert!(text.contains("open the device again"), "{text}");
}

#[test]
fn engine_at_work_is_the_one_of_the_options() {
    require!(uring());
    let work = Workdir::new();
    let path = sparse(work.path(), "file", MIB);
    for engine in [
        HostEngine::Auto,
        HostEngine::Threads,
        HostEngine::Native,
        HostEngine::Uring,
    ] {
        let options = HostOptions {
            cache: HostCache::Direct,
            engine,
            ..HostOptions::default()
        };
        assert_eq!(open(&path, &options).engine(), engine);
    }
}

#[test]
fn native_engine_is_refused_through_the_page_cache() {
    let work = Workdir::new();
    let path = sparse(work.path(), "file", MIB);
    let options = HostOptions {
        engine: HostEngine::Native,
        ..HostOptions::default()
    };
    let error = HostDevice::open(&path, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(
        text.contains("direct I/O") && text.contains("file"),
        "{text}"
    );
}

#[test]
fn durable_requests_find_out_that_the_disk_takes_no_more() {
    require!(requires::root(), Filesystem::Ext4.requirement(), uring());
    let data = vec![7; 32 << 20];
    for engine in [HostEngine::Uring, HostEngine::Threads] {
        let options = HostOptions {
            engine,
            ..HostOptions::default()
        };
        let device_on = |scratch: &Scratch| {
            let path = sparse(scratch.path(), "file", 33 * MIB);
            open(&path, &options)
        };
        let fua = Zeroing {
            persistence: Persistence::Fua,
            ..Zeroing::ALLOCATED
        };
        let zeroed = ByteRange::new(32 * MIB, 33 * MIB);
        let (first, second) = (thin(), thin());
        let device = device_on(&first);
        device.write_at(&data, 0, Persistence::Cached).unwrap();
        device.write_zeroes(zeroed, Zeroing::ALLOCATED).unwrap();
        assert!(device.write_zeroes(zeroed, fua).is_err(), "{engine:?}");
        let device = device_on(&second);
        assert!(device.write_at(&data, 0, Persistence::Fua).is_err());
    }
}

#[test]
fn file_that_ends_inside_a_sector_is_a_device_to_its_last_byte() {
    require!(uring());
    const SIZE: u64 = MIB + 1000;
    let work = Workdir::new();
    for options in every_way() {
        let path = sparse(work.path(), "file", SIZE);
        fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let exact = HostOptions {
            end: HostEnd::Exact,
            ..options.clone()
        };
        if options.cache == HostCache::Direct {
            let error = HostDevice::open(&path, &exact).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            continue;
        }
        let device = open(&path, &exact);
        let geometry = device.geometry();
        assert_eq!((geometry.size, geometry.logical_block), (SIZE, 1));
        device
            .write_at(b"end", SIZE - 3, Persistence::Cached)
            .unwrap();
        let range = |start, end| ByteRange::new(start, end);
        device
            .write_zeroes(range(SIZE - 700, SIZE - 10), Zeroing::ANY)
            .unwrap();
        device
            .write_zeroes(range(5, 600), Zeroing::ALLOCATED)
            .unwrap();
        device.discard(range(8192, SIZE - 1)).unwrap();
        device.flush().unwrap();
        let error = device.write_at(b"more", SIZE - 3, Persistence::Cached);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut status = Vec::new();
        device
            .status(range(0, SIZE), &mut |range, _| {
                status.push(range);
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(status.last().map(|range| range.end()), Some(SIZE));
        let mut found = vec![0; SIZE as usize];
        device.read_at(&mut found, 0).unwrap();
        let mut wanted = vec![7; SIZE as usize];
        wanted[5..600].fill(0);
        wanted[8192..SIZE as usize - 1].fill(0);
        // The edges of a discard may be data or zeros.
        let kept = |bytes: &[u8]| [&bytes[..8192], &bytes[SIZE as usize - 700..][..690]].concat();
        assert_eq!(kept(&found), kept(&wanted));
        assert_eq!(found.last(), Some(&b'd'));
        assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
        drop(device);
        // A file that ends with a sector has sectors.
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(MIB)
            .unwrap();
        assert_eq!(open(&path, &exact).geometry().logical_block, 512);
    }
}
