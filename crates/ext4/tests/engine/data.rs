//! Data and `fallocate`.

use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, create};

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
                f.fallocate(mode, ByteRange::new(start, end)).unwrap();
            }
            f.write_at(b"hello", 6_000_001).unwrap();
            f.fallocate(FallocateMode::CollapseRange, ByteRange::new(40_960, 81_920))
                .unwrap();
            f.fallocate(FallocateMode::InsertRange, ByteRange::new(20_480, 61_440))
                .unwrap();
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
