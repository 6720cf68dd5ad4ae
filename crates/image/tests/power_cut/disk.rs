//! The same on a block device of fixed size, which holds old data wherever the image has not
//! written. Its zeros are lost in a cut like all that is written.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_image::format::Header;
use extant_image::{
    Format, ImageFile, Preallocation, ResizeOptions, check, materialize, rebuild_refcounts, resize,
};
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, FallocateMode, Result, SpaceFile, SyncMode,
};
use extant_testkit::oracle::qemu::qemu_img;
use extant_testkit::require;

use crate::logged::{Logged, after_cut};
use crate::{
    KIB, SEEDS, compressed, counted, cut_in, forgotten, guest, guest_of, image, resized, silent,
    with_bitmaps, with_data_file, with_snapshots,
};

/// Previous contents of the disk.
const OLD: u8 = 0xee;
/// After the image, in the tests that do not search for its end.
const ROOM: u64 = 2 << 20;

/// A disk over a file.
struct Disk(Arc<Logged>);

impl Disk {
    fn target(file: Arc<Logged>) -> ImageFile {
        ImageFile::on_disk(Arc::new(Self(file)))
    }
}

impl SpaceFile for Disk {
    fn size(&self) -> Result<u64> {
        self.0.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        assert!(offset + buffer.len() as u64 <= self.0.size()?);
        self.0.write_at(buffer, offset)
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        match mode {
            FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize => {
                self.write_at(&vec![0; range.len() as usize], range.start())
            }
            _ => Err(Error::new(ErrorKind::Unsupported)),
        }
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.for_each_extent(range, visit)
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.0.sync(mode)
    }
}

/// The image on a disk that has `room` bytes more.
fn on_disk(image: &[u8], room: u64) -> Vec<u8> {
    let mut disk = image.to_vec();
    disk.resize(image.len() + room as usize, OLD);
    disk
}

#[track_caller]
fn cut_on_disk(what: &str, image: &[u8], work: impl FnOnce(&ImageFile) -> Result<()>) {
    let what = format!("on a disk, {what}");
    cut_in(&Disk::target, &what, &on_disk(image, ROOM), work);
}

fn materialized(target: &ImageFile) -> Result<()> {
    silent(|control| materialize(target, Format::Qcow2, control)).map(drop)
}

#[test]
fn changes_on_a_disk_survive_cuts_and_show_nothing_old() {
    for preallocation in Preallocation::ALL {
        let what = format!("grow, {preallocation}");
        let full = image(70 * KIB, 1024);
        cut_on_disk(&what, &full, resized(200 * KIB + 512, preallocation));
        let odd = image(33 * KIB + 512, 4096);
        cut_on_disk(&what, &odd, resized(90 * KIB, preallocation));
    }
    let small = counted(1 << 20, 512, 64);
    for preallocation in [Preallocation::Off, Preallocation::Metadata] {
        let what = format!("move tables, {preallocation}");
        cut_on_disk(&what, &small, resized(2200 * KIB, preallocation));
    }
    for cluster_bytes in [512, 4096] {
        let full = image(100 * KIB, cluster_bytes);
        cut_on_disk("shrink", &full, resized(50 * KIB + 512, Preallocation::Off));
        cut_on_disk("to nothing", &full, resized(0, Preallocation::Off));
        let half = Logged::of(full);
        resized(230 * KIB, Preallocation::Off)(&ImageFile::held(half.clone())).unwrap();
        cut_on_disk("materialize", &half.bytes(), materialized);
    }
}

#[test]
fn shared_compressed_and_tracked_clusters_survive_cuts_on_a_disk() {
    require!(qemu_img());
    let shared = with_snapshots(4096);
    cut_on_disk("grow", &shared, resized(90 * KIB, Preallocation::Metadata));
    cut_on_disk(
        "shrink",
        &shared,
        resized(20 * KIB + 512, Preallocation::Off),
    );
    cut_on_disk("materialize", &shared, materialized);
    let packed = compressed(4096);
    cut_on_disk("expand all", &packed, materialized);
    cut_on_disk("expand one", &packed, resized(8704, Preallocation::Off));
    let marked = with_bitmaps();
    cut_on_disk("bitmaps", &marked, resized(2200 * KIB, Preallocation::Off));
}

#[test]
fn lost_refcounts_on_a_disk_are_rebuilt_and_the_image_grows_then() {
    let whole = counted(1 << 20, 512, 64);
    let old = guest(whole.clone());
    let lost = on_disk(&forgotten(whole), ROOM);
    let file = Logged::of(lost.clone());
    let disk = Arc::new(Disk(file.clone()));
    silent(|control| rebuild_refcounts(disk, control)).unwrap();
    let log = file.log();
    for (cut, seed) in (0..=log.len()).flat_map(|cut| (0..SEEDS).map(move |seed| (cut, seed))) {
        let disk = Logged::of(after_cut(&lost, &log[..cut], seed));
        // Wrong refcounts are rebuilt first.
        resized(1100 * KIB, Preallocation::Metadata)(&Disk::target(disk.clone()))
            .unwrap_or_else(|error| panic!("cut after {cut}, seed {seed}: {error}"));
        let report = silent(|control| check(disk.clone(), 5, control)).unwrap();
        assert!(
            report.is_clean(),
            "cut after {cut}, seed {seed}: {report:?}"
        );
        let now = guest(disk.bytes());
        assert!(now[..old.len()] == old, "cut after {cut}, seed {seed}");
    }
}

#[test]
fn disk_without_room_is_left_as_it_was() {
    let small = image(1 << 20, 512);
    let thin = Logged::of(small.clone());
    resized(1200 * KIB, Preallocation::Off)(&ImageFile::held(thin.clone())).unwrap();
    let thin = thin.bytes();
    type Work<'w> = (&'w str, &'w [u8], &'w dyn Fn(&ImageFile) -> Result<()>);
    let works: [Work<'_>; 4] = [
        ("grow", &small, &|target| {
            resized(1200 * KIB, Preallocation::Full)(target)
        }),
        ("move tables", &small, &|target| {
            resized(2200 * KIB, Preallocation::Metadata)(target)
        }),
        ("move the L1 table", &small, &|target| {
            resized(9000 * KIB, Preallocation::Off)(target)
        }),
        ("materialize", &thin, &materialized),
    ];
    for (what, image, work) in works {
        let old = guest(image.to_vec());
        let mut fits = 0;
        for room in (0..ROOM).step_by(6 * KIB as usize) {
            let before = on_disk(image, room);
            let file = Logged::of(before.clone());
            if let Err(error) = work(&Disk::target(file.clone())) {
                let place = format!("{what}, {room}: {error}");
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{place}");
                assert!(error.to_string().contains("missing"), "{place}");
                assert!(file.bytes() == before, "{place}");
                fits = room + 1;
                continue;
            }
            let report = silent(|control| check(file.clone(), 5, control)).unwrap();
            assert!(report.is_clean(), "{what}, {room}: {report:?}");
            let now = guest(file.bytes());
            assert!(now[..old.len()] == old, "{what}, {room}");
            let new = &now[old.len()..];
            assert!(new.iter().all(|&byte| byte == 0), "{what}, {room}");
            break;
        }
        assert!((1..ROOM - 6 * KIB).contains(&fits), "{what}: {fits}");
    }
}

#[test]
fn data_file_that_is_a_disk_keeps_its_size_and_shows_nothing_old() {
    const DATA: usize = 60 << 10;
    let image = with_data_file(40 * KIB + 512, Preallocation::Off);
    for preallocation in [Preallocation::Off, Preallocation::Full] {
        let (file, data) = (Logged::of(image.clone()), Logged::of(vec![OLD; DATA]));
        let target = ImageFile::held(file.clone()).with_data_file(Disk::target(data.clone()));
        let error = resized(90 * KIB, preallocation)(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(file.bytes() == image && data.bytes() == [OLD; DATA]);
        resized(50 * KIB, preallocation)(&target).unwrap();
        materialized(&target).unwrap();
        resized(20 * KIB, Preallocation::Off)(&target).unwrap();
        resized(DATA as u64, preallocation)(&target).unwrap();
        assert_eq!(data.bytes().len(), DATA);
        assert_eq!(guest_of(&file.bytes(), &data.bytes()), [0; DATA]);
    }
}

#[test]
fn cluster_in_use_that_is_not_counted_is_not_overwritten() {
    let mut whole = image(70 * KIB, 1024);
    let file = Logged::of(whole.clone());
    let header = Header::read(&*file).unwrap();
    let table = header.refcount_table_offset as usize;
    let block = u64::from_be_bytes(whole[table..table + 8].try_into().unwrap()) as usize;
    let last = whole.len() / 1024 - 1;
    whole[block + last * 2..][..2].fill(0);
    let before = on_disk(&whole, ROOM);
    let file = Logged::of(before.clone());
    for work in [
        &resized(200 * KIB, Preallocation::Metadata) as &dyn Fn(&ImageFile) -> Result<()>,
        &materialized,
    ] {
        let error = work(&Disk::target(file.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("corruptions"), "{error}");
        assert!(file.bytes() == before);
    }
}

#[test]
fn raw_image_on_a_disk_is_the_disk() {
    let file = Logged::of(vec![OLD; 64 << 10]);
    let target = Disk::target(file.clone());
    let options = ResizeOptions::default();
    let resized = silent(|control| resize(&target, Format::Raw, 1 << 20, &options, control));
    let full = silent(|control| materialize(&target, Format::Raw, control));
    assert_eq!(resized.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(full.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(file.bytes(), vec![OLD; 64 << 10]);
}
