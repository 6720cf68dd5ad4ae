//! Data and `fallocate`.

use extant_ext4::File;
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, create, has_extents};

#[test]
fn data_and_every_mode_of_fallocate_survive_in_every_format() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in FORMATS {
        let image = Image::new(format, 64);
        {
            let fs = image.open();
            let f = create(&fs.root().unwrap(), "file").file().unwrap();
            let data: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
            f.write_at(&data, 12345).unwrap();
            for (mode, start, end) in [
                (FallocateMode::Allocate, 5_000_000, 9_000_000),
                (FallocateMode::PunchHole, 100_000, 300_000),
                (FallocateMode::WriteZeroes, 8_500_000, 9_500_000),
                (FallocateMode::ZeroRange, 1_000_000, 1_300_001),
            ] {
                assert_allocated(&f, format, mode, ByteRange::new(start, end));
            }
            f.write_at(b"hello", 6_000_001).unwrap();
            f.write_at(&data, 6_500_000).unwrap();
            let (collapse, insert) = (FallocateMode::CollapseRange, FallocateMode::InsertRange);
            assert_allocated(&f, format, collapse, ByteRange::new(40_960, 81_920));
            assert_allocated(&f, format, insert, ByteRange::new(20_480, 61_440));
            f.sync(SyncMode::All).unwrap();
            f.resize(7_000_000).unwrap();
            drop(f);
            fs.close().unwrap();
        }
        image.assert_clean();
        let fs = image.open();
        let f = fs.root().unwrap().lookup(b"file").unwrap().file().unwrap();
        assert_eq!(f.size().unwrap(), 7_000_000);
        let mut bytes = [0; 7];
        f.read_at(&mut bytes, 6_000_000).unwrap();
        assert_eq!(&bytes, b"\0hello\0");
    }
}

/// Runs the operations that the format supports: a block map can only be punched.
#[track_caller]
fn assert_allocated(file: &File, format: &str, mode: FallocateMode, range: ByteRange) {
    let done = file.fallocate(mode, range);
    if has_extents(format) || mode == FallocateMode::PunchHole {
        done.unwrap()
    } else {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Unsupported)
    }
}

#[test]
fn file_written_out_of_order_is_in_few_pieces() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    const BLOCKS: u64 = 4096;
    let orders: [fn(u64) -> u64; 2] = [
        // From the end on, at a stride; in pairs.
        |step| (BLOCKS - 16) - step % 256 * 16 + step / 256,
        |step| step ^ 1,
    ];
    for order in orders {
        let image = Image::new("-t ext4 -b 4096", 64);
        let fs = image.open();
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        for at in (0..BLOCKS).map(order) {
            file.write_at(&[1; 4096], at * 4096).unwrap();
        }
        let mut places: Vec<u64> = file
            .extents(ByteRange::new(0, BLOCKS * 4096))
            .unwrap()
            .iter()
            .flat_map(|extent| {
                let first = extent.physical.unwrap() / 4096;
                first..first + extent.logical.len() / 4096
            })
            .collect();
        assert_eq!(places.len() as u64, BLOCKS);
        let pieces = 1 + places
            .windows(2)
            .filter(|pair| pair[1] != pair[0] + 1)
            .count();
        assert!(pieces <= 256, "{pieces} pieces");
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len() as u64, BLOCKS);
        drop(file);
        fs.close().unwrap();
        image.assert_clean();
    }
}
