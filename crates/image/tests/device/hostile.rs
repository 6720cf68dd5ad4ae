//! Images that contradict themselves: an error that names the place, and never a panic or a write
//! where it does harm.

use std::fs;
use std::path::{Path, PathBuf};

use extant_blockdev::{Device, HostCache, Persistence, Zeroing};
use extant_hostfs::Pace;
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_image::format::Header;
use extant_image::{Format, ImageFile, Preallocation, ResizeOptions, resize};
use extant_space::{ByteRange, CancelToken, Control, ErrorKind, Result, Silent};
use extant_testkit::{require, seeds};

use crate::support::{
    Ground, KIB, MIB, assert_checks, open, open_with, pattern, qcow2_options, qemu_img, read, write,
};

const CLUSTER: u64 = 64 * KIB;
const COPIED: u64 = 1 << 63;

/// An image with data in its first and third cluster, and where its tables are.
struct Victim {
    _ground: Ground,
    path: PathBuf,
    bytes: Vec<u8>,
    header: Header,
}

impl Victim {
    fn new() -> Self {
        let ground = Ground::new();
        let path = ground.qcow2("image.qcow2", "", MIB);
        let image = open(&path);
        write(&image, 0, &pattern(0, 4096, 1));
        write(&image, 2 * CLUSTER, &pattern(0, 4096, 2));
        image.flush().unwrap();
        drop(image);
        let bytes = fs::read(&path).unwrap();
        let header = Header::parse(&bytes[..CLUSTER as usize], bytes.len() as u64).unwrap();
        Self {
            _ground: ground,
            path,
            bytes,
            header,
        }
    }

    fn number(&self, offset: u64) -> u64 {
        u64::from_be_bytes(self.bytes[offset as usize..][..8].try_into().unwrap())
    }

    fn l2_offset(&self) -> u64 {
        self.number(self.header.l1_offset) & !COPIED
    }

    fn refcount_block(&self) -> u64 {
        self.number(self.header.refcount_table_offset)
    }

    fn set_refcount(&mut self, offset: u64, count: u16) {
        let at = self.refcount_block() + offset / CLUSTER * 2;
        self.set(at, &count.to_be_bytes());
    }

    fn set(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        fs::write(&self.path, &self.bytes).unwrap();
    }

    fn set_number(&mut self, offset: u64, number: u64) {
        self.set(offset, &number.to_be_bytes());
    }
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, kind: ErrorKind, says: &str) {
    let error = result.map(drop).expect_err(says);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

fn write_first(image: &ImageDevice) -> Result<()> {
    image.write_at(&[1; 512], 0, Persistence::Cached)
}

#[test]
fn entries_that_lead_astray_are_named_and_not_followed() {
    require!(qemu_img());
    let victim = Victim::new();
    let past = victim.bytes.len() as u64;
    let (l1, table) = (victim.header.l1_offset, victim.l2_offset());
    let counts = victim.header.refcount_table_offset;
    let block = victim.refcount_block();
    let cases = [
        (l1, 0x200 | COPIED, "L1 entry 0"),
        (l1, past | COPIED, "L1 entry 0"),
        (table, 0x200 | COPIED, "guest offset 0x0"),
        (table + 16, past | COPIED, "guest offset 0x20000 points at"),
        (table, (1 << 55) | COPIED, "past the end of the file"),
        (table, l1 | COPIED, "in metadata of the image"),
        (table, table | COPIED, "in metadata of the image"),
        (table, counts | COPIED, "in metadata of the image"),
        (table, block | COPIED, "in metadata of the image"),
    ];
    for (offset, entry, says) in cases {
        let mut victim = Victim::new();
        victim.set_number(offset, entry);
        let image = open(&victim.path);
        assert_refused(write_first(&image), ErrorKind::Corrupt, says);
        drop(image);
        assert_eq!(
            fs::read(&victim.path).unwrap(),
            victim.bytes,
            "{says}: nothing was written"
        );
    }
}

#[test]
fn refcounts_that_are_too_low_stop_changes() {
    require!(qemu_img());
    // Space of the L2 table counts as free.
    let mut victim = Victim::new();
    victim.set_refcount(victim.l2_offset(), 0);
    let image = open(&victim.path);
    write_first(&image).unwrap();
    let allocating = image.write_at(&[1; 512], 5 * CLUSTER, Persistence::Cached);
    assert_refused(allocating, ErrorKind::Corrupt, "has a refcount of 0");
    assert_eq!(read(&image, 2 * CLUSTER, 4096), pattern(0, 4096, 2));

    // A cluster that was never counted is freed.
    let mut victim = Victim::new();
    let data = victim.number(victim.l2_offset()) & !COPIED;
    victim.set_refcount(data, 0);
    let image = open(&victim.path);
    image.discard(ByteRange::new(0, CLUSTER)).unwrap();
    image.flush().unwrap();
    assert_refused(
        write_first(&image),
        ErrorKind::Corrupt,
        "has a refcount of 0",
    );
}

#[test]
fn header_and_l1_table_that_count_as_free_are_not_overwritten() {
    require!(qemu_img());
    let victim = Victim::new();
    let (l1, counts) = (victim.header.l1_offset, victim.header.refcount_table_offset);
    let free: [fn(&mut Victim); 3] = [
        |victim| victim.set_refcount(0, 0),
        |victim| victim.set_refcount(victim.header.l1_offset, 0),
        // A new block would have the place of the header.
        |victim| victim.set_number(victim.header.refcount_table_offset, 0),
    ];
    for free in free {
        let mut victim = Victim::new();
        free(&mut victim);
        let image = open(&victim.path);
        let allocating = image.write_at(&[1; 512], 5 * CLUSTER, Persistence::Cached);
        assert_refused(allocating, ErrorKind::Corrupt, "has a refcount of 0");
        drop(image);
        let bytes = fs::read(&victim.path).unwrap();
        for offset in [0, l1, counts] {
            let cluster = offset as usize..(offset + CLUSTER) as usize;
            assert!(bytes[cluster.clone()] == victim.bytes[cluster], "{offset}");
        }
    }
}

#[test]
fn refcount_block_outside_the_file_is_named() {
    require!(qemu_img());
    let mut victim = Victim::new();
    let past = victim.bytes.len() as u64;
    victim.set_number(victim.header.refcount_table_offset, past);
    let image = open(&victim.path);
    let allocating = image.write_at(&[1; 512], 5 * CLUSTER, Persistence::Cached);
    assert_refused(allocating, ErrorKind::Corrupt, "refcount table entry 0");
}

#[test]
fn reserved_bits_of_the_refcount_table_name_no_block() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=512", 64 * MIB);
    let mut bytes = fs::read(&path).unwrap();
    let header = Header::parse(&bytes[..512], bytes.len() as u64).unwrap();
    let at = header.refcount_table_offset as usize + 8;
    assert_eq!(bytes[at..at + 8], [0; 8]);
    bytes[at + 7] = 1;
    fs::write(&path, &bytes).unwrap();
    let data = pattern(0, MIB, 3);
    let image = open(&path);
    write(&image, 0, &data);
    image.flush().unwrap();
    drop(image);
    assert_checks(&path);
    assert!(read(&open(&path), 0, MIB) == data);

    // The same where an image is changed offline.
    fs::write(&path, &bytes).unwrap();
    let target = ImageFile::host(&path, Pace::Full).unwrap();
    let options = ResizeOptions {
        preallocation: Some(Preallocation::Metadata),
        may_shrink: false,
    };
    let token = CancelToken::new();
    let control = Control::new(&token, &Silent);
    resize(&target, Format::Qcow2, 65 * MIB, &options, control).unwrap();
    drop(target);
    assert_checks(&path);
}

#[test]
fn compressed_garbage_is_an_error_of_its_cluster_alone() {
    require!(qemu_img());
    let mut victim = Victim::new();
    victim.set_number(victim.l2_offset(), 1 << 62 | victim.refcount_block());
    let image = open(&victim.path);
    assert_refused(
        image.read_at(&mut [0; 512], 0),
        ErrorKind::Corrupt,
        "metadata",
    );
    // Two units, the second of which is in the table itself.
    let mut victim = Victim::new();
    let table = victim.l2_offset();
    victim.set_number(table, 1 << 62 | 1 << 54 | (table - 512));
    let image = open(&victim.path);
    assert_refused(
        image.read_at(&mut [0; 512], 0),
        ErrorKind::Corrupt,
        "metadata",
    );
    let mut victim = Victim::new();
    let data = victim.number(victim.l2_offset()) & !COPIED;
    victim.set_number(victim.l2_offset(), 1 << 62 | data);
    let image = open(&victim.path);
    let error = image.read_at(&mut [0; 512], 0);
    assert_refused(error, ErrorKind::Corrupt, "compressed cluster");
    assert_eq!(read(&image, 2 * CLUSTER, 4096), pattern(0, 4096, 2));
}

#[test]
fn marked_images_are_read_and_not_written() {
    require!(qemu_img());
    // Byte 0x4f ends the incompatible features, 0x5f the autoclear ones.
    let marks = [
        (0x4f, 2, ErrorKind::Corrupt, "marked as corrupt"),
        (0x5f, 1, ErrorKind::Unsupported, "persistent bitmaps"),
    ];
    for (offset, bit, kind, says) in marks {
        let mut victim = Victim::new();
        victim.set(offset, &[bit]);
        assert_refused(
            ImageDevice::open(&victim.path, &qcow2_options()),
            kind,
            says,
        );
        let options = DeviceOptions {
            access: ImageAccess::ReadOnly,
            ..qcow2_options()
        };
        let image = ImageDevice::open(&victim.path, &options).unwrap();
        assert_eq!(read(&image, 0, 4096), pattern(0, 4096, 1));
        assert_refused(write_first(&image), ErrorKind::ReadOnly, "read-only");
    }
}

#[test]
fn image_of_a_killed_writer_gets_its_refcounts_before_it_is_written() {
    require!(qemu_img());
    for cache in [HostCache::Buffered, HostCache::Direct] {
        let mut victim = Victim::new();
        let block = victim.refcount_block();
        victim.set(block, &[0; 64]);
        victim.set(0x4f, &[1]);
        let dirty = fs::read(&victim.path).unwrap();
        let options = DeviceOptions {
            access: ImageAccess::ReadOnly,
            ..qcow2_options()
        };
        drop(open_with(&victim.path, &options));
        assert!(
            fs::read(&victim.path).unwrap() == dirty,
            "reading changes nothing"
        );
        let options = DeviceOptions {
            cache,
            ..qcow2_options()
        };
        let image = match ImageDevice::open(&victim.path, &options) {
            Ok(image) => image,
            // The directory of the tests may be on a file system without direct I/O.
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(read(&image, 0, 4096), pattern(0, 4096, 1));
        write_first(&image).unwrap();
        drop(image);
        assert_eq!(fs::read(&victim.path).unwrap()[0x4f], 0);
        assert_checks(&victim.path);
    }
}

#[test]
fn image_of_a_killed_writer_that_contradicts_itself_is_left_as_it_is() {
    require!(qemu_img());
    type Break = fn(&mut Victim);
    let breaks: [(Break, &str); 3] = [
        // The guest's first cluster is the refcount block, an L2 table, nowhere in the file.
        (
            |victim| victim.set_number(victim.l2_offset(), COPIED | victim.refcount_block()),
            "metadata",
        ),
        (
            |victim| victim.set_number(victim.l2_offset(), COPIED | victim.l2_offset()),
            "L2 table",
        ),
        (
            |victim| victim.set_number(victim.l2_offset(), COPIED | 1 << 40),
            "past the end",
        ),
    ];
    for (spoil, says) in breaks {
        let mut victim = Victim::new();
        spoil(&mut victim);
        victim.set(0x4f, &[1]);
        let before = fs::read(&victim.path).unwrap();
        let opened = ImageDevice::open(&victim.path, &qcow2_options());
        assert_refused(opened, ErrorKind::Corrupt, says);
        assert!(fs::read(&victim.path).unwrap() == before, "{says}");
    }
}

#[test]
fn unknown_autoclear_feature_is_cleared_before_writing() {
    require!(qemu_img());
    let mut victim = Victim::new();
    victim.set(0x58, &[0x80]);
    drop(open(&victim.path));
    assert_eq!(fs::read(&victim.path).unwrap()[0x58], 0);
    assert_checks(&victim.path);
}

#[test]
fn image_without_its_referenced_file_is_refused_with_its_name() {
    require!(qemu_img());
    let ground = Ground::new();
    let backed = ground.qcow2("a.qcow2", "backing_file=/etc/hostname,backing_fmt=raw", MIB);
    let open = |path: &Path| ImageDevice::open(path, &qcow2_options());
    assert_refused(
        open(&backed),
        ErrorKind::Unsupported,
        "backing file (/etc/hostname)",
    );
    let data = format!("data_file={}", ground.path("data").display());
    let data = ground.qcow2("b.qcow2", &data, MIB);
    assert_refused(open(&data), ErrorKind::Unsupported, "data file");
}

#[test]
fn damaged_anywhere_it_never_panics() {
    require!(qemu_img());
    let victim = Victim::new();
    let random = fastrand::u64(..1 << 32);
    let seeds = seeds::seeds("EXTANT_TROUBLE_SEEDS", random..random + 1);
    println!("EXTANT_TROUBLE_SEEDS={}..{}", seeds.start, seeds.end);
    seeds.for_each(|seed| damaged_anywhere(&victim, seed));
}

fn damaged_anywhere(victim: &Victim, seed: u64) {
    const IMAGES: u32 = 150;
    seeds::counted(IMAGES, "images");
    let mut random = fastrand::Rng::with_seed(seed);
    let tables = [
        0,
        victim.header.l1_offset,
        victim.l2_offset(),
        victim.header.refcount_table_offset,
        victim.refcount_block(),
    ];
    for _ in 0..IMAGES {
        let mut bytes = victim.bytes.clone();
        for _ in 0..random.usize(1..6) {
            let at = tables[random.usize(..tables.len())] as usize + random.usize(..112);
            bytes[at] = random.u8(..);
        }
        fs::write(&victim.path, &bytes).unwrap();
        let Ok(image) = ImageDevice::open(&victim.path, &qcow2_options()) else {
            continue;
        };
        if image.geometry().size < MIB {
            continue;
        }
        for _ in 0..8 {
            let start = random.u64(..MIB / 4096 - 40) * 4096;
            let range = ByteRange::new(start, start + random.u64(1..40) * 4096);
            let _ = match random.u8(..6) {
                0 => image.read_at(&mut vec![0; range.len() as usize], start),
                1 => image.write_at(&pattern(0, range.len(), 0), start, Persistence::Cached),
                2 => image.discard(range),
                3 => image.write_zeroes(range, Zeroing::ALLOCATED),
                4 => image.flush(),
                _ => image.status(range, &mut |found, _| {
                    assert!(range.contains(found));
                    std::ops::ControlFlow::Continue(())
                }),
            };
        }
    }
}
