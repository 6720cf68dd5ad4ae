//! Images with anything in their headers, tables and lists: every question has an answer or an
//! error, in little time and memory.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use extant_hostfs::{Access, HostFile, Pace};
use extant_image::{
    Format, ImageFile, ImageOptions, Layer, NewImage, Preallocation, ResizeOptions, check,
    materialize, rebuild_refcounts, repair_leaks, resize,
};
use extant_space::{ByteRange, CancelToken, Control, Result, Silent};
use extant_testkit::oracle::qemu::{qemu, qemu_img};
use proptest::prelude::*;
use tempfile::NamedTempFile;

const SIZE: u64 = 300_032;

fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

/// A whole image, half of it mapped, and a snapshot's place in its header.
fn image() -> NamedTempFile {
    let mut options = ImageOptions::new(Format::Qcow2, SIZE);
    options.qcow2.cluster_bytes = 512;
    options.preallocation = Preallocation::Metadata;
    let new = NewImage::new(&options).unwrap();
    let place = NamedTempFile::new().unwrap();
    place.as_file().set_len(new.file_bytes()).unwrap();
    let file = HostFile::open(place.path(), Access::ReadWrite).unwrap();
    silent(|control| new.write_metadata(&file, control)).unwrap();
    place
}

/// The same with a snapshot and a bitmap, which QEMU made; at the end of the file.
fn marked_image() -> NamedTempFile {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let place = image();
        qemu(&[&"snapshot", &"-c", &"one", &place.path()]);
        qemu(&[&"bitmap", &"--add", &"-g", &"512", &place.path(), &"b"]);
        std::fs::read(place.path()).unwrap()
    });
    let place = NamedTempFile::new().unwrap();
    place.as_file().write_all_at(bytes, 0).unwrap();
    place
}

/// Any word, or one that may be the place of something.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..1200).prop_map(|cluster| cluster << 9),
        (0u64..1200).prop_map(|cluster| cluster << 9 | 1 << 63),
        (0u64..1 << 20).prop_map(|place| place | 1 << 62),
    ]
}

/// Runs every query.
fn ask(file: &Arc<HostFile>) -> Result<()> {
    let report = silent(|control| check(file.clone(), 10, control))?;
    assert!(report.findings.len() <= 10);
    let layer = Layer::open(file.clone(), Format::Qcow2)?;
    let bytes = layer.virtual_bytes();
    // A disk of many missing tables has few extents.
    let all = ByteRange::new(0, bytes);
    let mut at = 0;
    layer.for_each_extent(all, &mut |extent| {
        assert_eq!(extent.guest.start(), at);
        at = extent.guest.end();
        Ok(ControlFlow::Continue(()))
    })?;
    let mut buffer = [0; 10_000];
    for offset in [0, bytes / 2, bytes.saturating_sub(5000)] {
        let _ = layer.read_at(&mut buffer, offset);
    }
    layer.info().map(drop)
}

/// Runs every change, on a block device and in the file.
fn change(place: &NamedTempFile) {
    let disk = NamedTempFile::new().unwrap();
    let mut bytes = std::fs::read(place.path()).unwrap();
    bytes.resize(bytes.len() + (1 << 20), 0xee);
    disk.as_file().write_all_at(&bytes, 0).unwrap();
    let on_disk = || {
        let file = HostFile::open(disk.path(), Access::ReadWrite)?;
        Ok(ImageFile::on_disk(Arc::new(file)))
    };
    if change_in(&disk, &on_disk).is_ok() {
        let file = Arc::new(HostFile::open_read(disk.path()).unwrap());
        let report = silent(|control| check(file, 10, control)).unwrap();
        assert_eq!(report.corruptions, 0, "{report:?}");
    }
    let _ = change_in(place, &|| ImageFile::host(place.path(), Pace::Full));
}

fn change_in(place: &NamedTempFile, open: &dyn Fn() -> Result<ImageFile>) -> Result<()> {
    let file = Arc::new(HostFile::open(place.path(), Access::ReadWrite)?);
    if silent(|control| rebuild_refcounts(file.clone(), control)).is_ok() {
        // A repaired image passes the check.
        let report = silent(|control| check(file.clone(), 10, control))?;
        assert!(report.is_clean(), "{report:?}");
    }
    silent(|control| repair_leaks(file, control))?;
    let target = open()?;
    let disk = Layer::open(target.file().clone(), Format::Qcow2)?.virtual_bytes();
    if disk > 4 * SIZE {
        return Ok(());
    }
    for (size, preallocation) in [
        (disk + 5000, Preallocation::Metadata),
        (disk / 2, Preallocation::Off),
    ] {
        let options = ResizeOptions {
            preallocation: Some(preallocation),
            may_shrink: true,
        };
        silent(|control| resize(&target, Format::Qcow2, size, &options, control))?;
    }
    silent(|control| materialize(&target, Format::Qcow2, control)).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn anything_in_the_metadata_is_an_answer_or_an_error(
        header in prop::collection::vec((0u64..112, any::<u8>()), 0..2),
        // Header, refcount table, blocks, L1 and L2 tables.
        words in prop::collection::vec(
            (0u64..1500, word()),
            0..6,
        ),
        length in prop::option::of(0u64..700_000),
    ) {
        let place = image();
        let file: &File = place.as_file();
        for (at, value) in header {
            file.write_all_at(&[value], at).unwrap();
        }
        for (at, word) in words {
            file.write_all_at(&word.to_be_bytes(), 512 + at * 8).unwrap();
        }
        if let Some(length) = length {
            file.set_len(length).unwrap();
        }
        let file = Arc::new(HostFile::open(place.path(), Access::ReadWrite).unwrap());
        let _ = ask(&file);
        change(&place);
    }

    #[test]
    fn anything_beside_snapshots_and_bitmaps_is_an_answer_or_an_error(
        header in prop::collection::vec((0u64..112, any::<u8>()), 0..2),
        // Near the end of the file, and anywhere.
        words in prop::collection::vec((prop_oneof![0u64..2000, 0u64..60_000], word()), 0..6),
    ) {
        if !qemu_img().is_met() {
            return Ok(());
        }
        let place = marked_image();
        let file: &File = place.as_file();
        let length = file.metadata().unwrap().len();
        for (at, value) in header {
            file.write_all_at(&[value], at).unwrap();
        }
        for (back, word) in words {
            let at = length.saturating_sub((back + 1) * 8);
            file.write_all_at(&word.to_be_bytes(), at).unwrap();
        }
        let file = Arc::new(HostFile::open(place.path(), Access::ReadWrite).unwrap());
        let _ = ask(&file);
        change(&place);
    }
}
