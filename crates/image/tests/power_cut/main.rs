//! Power cuts during changes in place: with any of the writes since the last sync kept, torn or
//! lost, the image has no corruption and the guest's data is there.
//!
//! The file logs its operations (`logged.rs`); on a disk (`disk.rs`) there is nothing but writes;
//! `through`: an image in a file system, full in every layer.

mod disk;
mod logged;
mod through;

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_image::format::{Header, Incompatible, Snapshot, read_snapshots};
use extant_image::{
    DataFile, Format, ImageFile, ImageOptions, Layer, NewImage, Preallocation, ResizeOptions,
    check, materialize, rebuild_refcounts, resize,
};
use extant_space::{ByteRange, CancelToken, Control, Result, Silent, SpaceFile};
use extant_testkit::command::{self, tool};
use extant_testkit::oracle::qemu::{qemu, qemu_img};
use extant_testkit::require;
use extant_testkit::workdir::Workdir;
use logged::{Change, Logged, Order, after_cut, apply};

const SEEDS: u64 = 6;

fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

/// An image of `size` bytes, with data in every cluster.
fn image(size: u64, cluster_bytes: u64) -> Vec<u8> {
    counted(size, cluster_bytes, 16)
}

/// As [`image`], with refcounts of this number of bits.
fn counted(size: u64, cluster_bytes: u64, refcount_bits: u32) -> Vec<u8> {
    let mut options = ImageOptions::new(Format::Qcow2, size);
    options.qcow2.cluster_bytes = cluster_bytes;
    options.qcow2.refcount_bits = refcount_bits;
    options.preallocation = Preallocation::Metadata;
    let new = NewImage::new(&options).unwrap();
    let file = Logged::of(vec![0; new.file_bytes() as usize]);
    silent(|control| new.write_metadata(&*file, control)).unwrap();
    let bytes = file.bytes();
    filled(bytes)
}

/// Gives the guest's clusters contents, all of which are mapped.
fn filled(bytes: Vec<u8>) -> Vec<u8> {
    let file = Logged::of(bytes);
    let layer = Layer::open(file.clone(), Format::Qcow2).unwrap();
    let mut places = Vec::new();
    let all = ByteRange::new(0, layer.virtual_bytes());
    layer
        .for_each_extent(all, &mut |extent| {
            places.push((extent.offset.unwrap(), extent.guest));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    for (offset, guest) in places {
        let data: Vec<u8> = (guest.start()..guest.end())
            .map(|at| (at / 512 % 250) as u8 + 1)
            .collect();
        file.write_at(&data, offset).unwrap();
    }
    file.bytes()
}

fn guest(bytes: Vec<u8>) -> Vec<u8> {
    let layer = Layer::open(Logged::of(bytes), Format::Qcow2).unwrap();
    let mut data = vec![0; layer.virtual_bytes() as usize];
    layer.read_at(&mut data, 0).unwrap();
    data
}

/// The list of snapshots.
fn snapshots(bytes: &[u8]) -> Vec<Snapshot> {
    let file = Logged::of(bytes.to_vec());
    let header = Header::read(&*file).unwrap();
    let mut found = Vec::new();
    read_snapshots(&*file, &header, &mut |snapshot| {
        found.push(snapshot);
        Ok(())
    })
    .unwrap();
    found
}

/// A snapshot: the image with the snapshot's table instead of the disk's.
fn snapshot(bytes: &[u8], number: usize) -> Vec<u8> {
    let snapshot = &snapshots(bytes)[number];
    let mut view = bytes.to_vec();
    view[24..32].copy_from_slice(&snapshot.virtual_bytes.unwrap().to_be_bytes());
    view[36..40].copy_from_slice(&snapshot.l1_entries.to_be_bytes());
    view[40..48].copy_from_slice(&snapshot.l1_offset.to_be_bytes());
    guest(view)
}

/// Output of QEMU for the image.
fn by_qemu(ground: &Workdir, bytes: &[u8], arguments: &[&str]) -> Vec<u8> {
    let file = ground.path().join("a.qcow2");
    std::fs::write(&file, bytes).unwrap();
    let mut command = tool("qemu-img");
    command::run(command.args(arguments).arg(&file)).unwrap();
    std::fs::read(&file).unwrap()
}

/// Runs `work` on the image, cuts the power at every write, and verifies the result.
#[track_caller]
fn cut_everywhere(what: &str, before: &[u8], work: impl FnOnce(&ImageFile) -> Result<()>) {
    cut_in(&|file| ImageFile::held(file), what, before, work);
}

/// As [`cut_everywhere`], on the target that `place` makes of the file.
#[track_caller]
fn cut_in(
    place: &dyn Fn(Arc<Logged>) -> ImageFile,
    what: &str,
    before: &[u8],
    work: impl FnOnce(&ImageFile) -> Result<()>,
) {
    let file = Logged::of(before.to_vec());
    work(&place(file.clone())).unwrap();
    let log = file.log();
    let old = guest(before.to_vec());
    let held: Vec<Vec<u8>> = (0..snapshots(before).len())
        .map(|number| snapshot(before, number))
        .collect();
    for cut in 0..=log.len() {
        for seed in 0..SEEDS {
            let disk = after_cut(before, &log[..cut], seed);
            let place = format!("{what}: cut after {cut} of {}, seed {seed}", log.len());
            let report = silent(|control| check(Logged::of(disk.clone()), 5, control))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(report.corruptions, 0, "{place}: {report:?}");
            for (number, held) in held.iter().enumerate() {
                assert!(
                    snapshot(&disk, number) == *held,
                    "{place}: snapshot {number}"
                );
            }
            let now = guest(disk);
            let common = now.len().min(old.len());
            // A shrink may have written zeros behind its new end before the new size is durable.
            let kept = common.min(file_size_of(&log, before, old.len()));
            assert!(now[..kept] == old[..kept], "{place}: data");
            assert!(
                now[common..].iter().all(|&byte| byte == 0),
                "{place}: old data in new space"
            );
        }
    }
    let report = silent(|control| check(file.clone(), 5, control)).unwrap();
    assert!(report.is_clean(), "{what}: {report:?}");
}

/// The size that the disk has in the end, at most `most`.
fn file_size_of(log: &[Change], before: &[u8], most: usize) -> usize {
    let mut disk = before.to_vec();
    log.iter().for_each(|change| apply(&mut disk, change));
    guest(disk).len().min(most)
}

fn resized(bytes: u64, preallocation: Preallocation) -> impl Fn(&ImageFile) -> Result<()> {
    move |target| {
        let options = ResizeOptions {
            preallocation: Some(preallocation),
            may_shrink: true,
        };
        silent(|control| resize(target, Format::Qcow2, bytes, &options, control)).map(drop)
    }
}

const KIB: u64 = 1 << 10;

#[test]
fn growth_in_every_mode_survives_cuts() {
    for preallocation in [
        Preallocation::Off,
        Preallocation::Metadata,
        Preallocation::Full,
    ] {
        let what = format!("grow, {preallocation}");
        let full = image(70 * KIB, 1024);
        cut_everywhere(&what, &full, resized(200 * KIB + 512, preallocation));
        // Odd ends inside a cluster.
        let odd = image(33 * KIB + 512, 4096);
        cut_everywhere(&what, &odd, resized(90 * KIB, preallocation));
    }
}

#[test]
fn growth_that_adds_blocks_and_moves_tables_survives_cuts() {
    // An L1 table of one cluster maps 2 MiB, a refcount table of one cluster counts 2 MiB.
    let small = counted(1 << 20, 512, 64);
    cut_everywhere(
        "blocks",
        &small,
        resized(1200 * KIB, Preallocation::Metadata),
    );
    cut_everywhere("L1", &small, resized(2200 * KIB, Preallocation::Off));
    cut_everywhere("both", &small, resized(2200 * KIB, Preallocation::Metadata));
}

#[test]
fn shrinking_survives_cuts() {
    for cluster_bytes in [512, 4096] {
        let full = image(200 * KIB, cluster_bytes);
        cut_everywhere("shrink", &full, resized(50 * KIB + 512, Preallocation::Off));
        cut_everywhere("to nothing", &full, resized(0, Preallocation::Off));
    }
}

#[test]
fn materialize_survives_cuts() {
    for cluster_bytes in [512, 4096] {
        let thin = image(100 * KIB, cluster_bytes);
        let thick = Logged::of(thin);
        // Half of it is mapped, half is not.
        resized(230 * KIB, Preallocation::Off)(&ImageFile::held(thick.clone())).unwrap();
        let half = thick.bytes();
        cut_everywhere("materialize", &half, |target| {
            silent(|control| materialize(target, Format::Qcow2, control)).map(drop)
        });
    }
}

/// An image of five clusters and a bit, all compressed by QEMU.
fn compressed(cluster_bytes: u64) -> Vec<u8> {
    let ground = Workdir::new();
    let (source, packed) = ("source.qcow2", "packed.qcow2");
    let source = ground.path().join(source);
    let packed = ground.path().join(packed);
    std::fs::write(&source, image(5 * cluster_bytes + 512, cluster_bytes)).unwrap();
    let mut convert = tool("qemu-img");
    convert.args(["convert", "-c", "-O", "qcow2", "-o"]);
    convert.arg(format!("cluster_size={cluster_bytes}"));
    command::run(convert.arg(&source).arg(&packed)).unwrap();
    std::fs::read(&packed).unwrap()
}

#[test]
fn expanding_compressed_clusters_survives_cuts() {
    require!(qemu_img());
    for cluster_bytes in [4096, 65536] {
        let before = compressed(cluster_bytes);
        cut_everywhere("materialize compressed", &before, |target| {
            silent(|control| materialize(target, Format::Qcow2, control)).map(drop)
        });
        cut_everywhere(
            "shrink into a compressed cluster",
            &before,
            resized(2 * cluster_bytes + 512, Preallocation::Off),
        );
    }
}

/// An image with two snapshots, of which the second has the same as the disk; the first is of a
/// longer one.
fn with_snapshots(cluster_bytes: u64) -> Vec<u8> {
    let ground = Workdir::new();
    let full = image(64 * KIB, cluster_bytes);
    let mut one = by_qemu(&ground, &full, &["snapshot", "-c", "one"]);
    // The disk ends earlier, inside a cluster, and has something behind its end.
    one[24..32].copy_from_slice(&(49 * KIB + 512).to_be_bytes());
    by_qemu(&ground, &one, &["snapshot", "-c", "two"])
}

#[test]
fn changes_of_disks_with_snapshots_survive_cuts_and_leave_those() {
    require!(qemu_img());
    for cluster_bytes in [512, 4096] {
        let shared = with_snapshots(cluster_bytes);
        for preallocation in [Preallocation::Off, Preallocation::Metadata] {
            let what = format!("grow with snapshots, {preallocation}");
            cut_everywhere(&what, &shared, resized(90 * KIB, preallocation));
        }
        cut_everywhere(
            "shrink with snapshots",
            &shared,
            resized(20 * KIB + 512, Preallocation::Off),
        );
        cut_everywhere("materialize with snapshots", &shared, |target| {
            silent(|control| materialize(target, Format::Qcow2, control)).map(drop)
        });
    }
}

/// An image with two bitmaps that need longer tables for a disk of more than 2 MiB.
fn with_bitmaps() -> Vec<u8> {
    let ground = Workdir::new();
    let file = ground.path().join("a.qcow2");
    std::fs::write(&file, image(1 << 20, 512)).unwrap();
    for name in ["one", "two"] {
        qemu(&[&"bitmap", &"--add", &"-g", &"512", &file, &name]);
    }
    std::fs::read(&file).unwrap()
}

#[test]
fn growth_of_a_disk_with_bitmaps_survives_cuts() {
    require!(qemu_img());
    let marked = with_bitmaps();
    for preallocation in [Preallocation::Off, Preallocation::Metadata] {
        let what = format!("grow with bitmaps, {preallocation}");
        cut_everywhere(&what, &marked, resized(2200 * KIB, preallocation));
    }
}

/// The refcounts of the image are lost, as lazy ones may be.
fn forgotten(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = Logged::of(bytes.clone());
    let header = Header::read(&*file).unwrap();
    let cluster_bytes = header.geometry.cluster_bytes() as usize;
    let table = header.refcount_table_offset as usize;
    for entry in bytes[table..table + cluster_bytes].to_vec().chunks(8) {
        let block = u64::from_be_bytes(entry.try_into().unwrap()) as usize;
        if block != 0 {
            bytes[block..block + cluster_bytes / 2].fill(0);
        }
    }
    // The last block is not there at all.
    let last = (0..cluster_bytes / 8)
        .map(|index| table + index * 8)
        .rfind(|&at| bytes[at..at + 8] != [0; 8])
        .unwrap();
    bytes[last..last + 8].fill(0);
    bytes[72..80].copy_from_slice(&Incompatible::DIRTY.bits().to_be_bytes());
    bytes
}

#[test]
fn rebuilding_refcounts_survives_cuts() {
    for (size, cluster_bytes, refcount_bits) in [
        (200 * KIB, 512, 16),
        (1 << 20, 512, 64),
        (64 * KIB, 4096, 1),
    ] {
        let whole = counted(size, cluster_bytes, refcount_bits);
        let old = guest(whole.clone());
        let lost = forgotten(whole);
        let file = Logged::of(lost.clone());
        silent(|control| rebuild_refcounts(file.clone(), control)).unwrap();
        let log = file.log();
        for (cut, seed) in (0..=log.len()).flat_map(|cut| (0..SEEDS).map(move |seed| (cut, seed))) {
            let disk = Logged::of(after_cut(&lost, &log[..cut], seed));
            let place = format!("{size}: cut after {cut} of {}, seed {seed}", log.len());
            let header = Header::read(&*disk).unwrap();
            if header.incompatible.contains(Incompatible::DIRTY) {
                silent(|control| rebuild_refcounts(disk.clone(), control))
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            let report = silent(|control| check(disk.clone(), 5, control)).unwrap();
            assert!(report.is_clean(), "{place}: {report:?}");
            assert!(guest(disk.bytes()) == old, "{place}: data");
        }
    }
}

/// An image with a data file, of which nothing is mapped or all is.
fn with_data_file(size: u64, preallocation: Preallocation) -> Vec<u8> {
    let mut options = ImageOptions::new(Format::Qcow2, size);
    options.qcow2.cluster_bytes = 512;
    options.preallocation = preallocation;
    options.qcow2.data_file = Some(DataFile {
        name: "data".into(),
        is_raw: false,
    });
    let new = NewImage::new(&options).unwrap();
    let file = Logged::of(vec![0; new.file_bytes() as usize]);
    silent(|control| new.write_metadata(&*file, control)).unwrap();
    file.bytes()
}

/// Growth of an image over a file that is longer hides that before it is seen.
#[test]
fn growth_over_a_longer_backing_file_survives_cuts() {
    require!(qemu_img());
    let base: Vec<u8> = (0..200 * KIB)
        .map(|at| (at / 512 % 250) as u8 + 1)
        .collect();
    let below = || Layer::open(Logged::of(base.clone()), Format::Raw).unwrap();
    let shown = |image: &[u8]| {
        let layer = Layer::open(Logged::of(image.to_vec()), Format::Qcow2).unwrap();
        let layer = layer.with_backing(below());
        let mut bytes = vec![0; layer.virtual_bytes() as usize];
        layer.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let ground = Workdir::new();
    let path = ground.path().join("top.qcow2");
    for (compat, cluster_bytes, old_bytes, reads_base) in [
        ("0.10", 512, 30 * KIB, false),
        ("0.10", 4096, 30 * KIB + 512, true),
        ("1.1", 512, 30 * KIB, false),
        ("1.1", 512, 31 * KIB + 512, true),
        ("1.1", 4096, 30 * KIB + 512, true),
    ] {
        let what = format!("{compat}, clusters of {cluster_bytes}, reads the base: {reads_base}");
        let options = format!("compat={compat},cluster_size={cluster_bytes}");
        let size = old_bytes.to_string();
        qemu(&[
            &"create", &"-q", &"-u", &"-f", &"qcow2", &"-F", &"raw", &"-b", &"base", &"-o",
            &options, &path, &size,
        ]);
        let before = std::fs::read(&path).unwrap();
        let old = shown(&before);
        assert!(old == base[..old_bytes as usize]);
        let grow = |file: Arc<Logged>| {
            let target = ImageFile::held(file);
            resized(120 * KIB, Preallocation::Off)(&if reads_base {
                target.with_backing(below())
            } else {
                target
            })
            .unwrap();
        };
        let file = Logged::of(before.clone());
        grow(file.clone());
        let log = file.log();
        for (cut, seed) in (0..=log.len()).flat_map(|cut| (0..SEEDS).map(move |seed| (cut, seed))) {
            let place = format!("{what}: cut after {cut} of {}, seed {seed}", log.len());
            let left = Logged::of(after_cut(&before, &log[..cut], seed));
            for again in [false, true] {
                if again {
                    grow(left.clone());
                }
                let report = silent(|control| check(left.clone(), 5, control)).unwrap();
                assert_eq!(report.corruptions, 0, "{place}: {report:?}");
                let now = shown(&left.bytes());
                let (kept, new) = now.split_at(old.len());
                assert!(kept == old, "{place}: data");
                assert!(new.iter().all(|&byte| byte == 0), "{place}: the base shows");
            }
        }
    }
}

fn guest_of(image: &[u8], data: &[u8]) -> Vec<u8> {
    let layer = Layer::open(Logged::of(image.to_vec()), Format::Qcow2).unwrap();
    let layer = layer.with_data_file(Logged::of(data.to_vec()));
    let mut bytes = vec![0; layer.virtual_bytes() as usize];
    layer.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn changes_of_disks_with_a_data_file_survive_cuts_of_both_files() {
    const SIZE: u64 = 40 * KIB + 512;
    let materialized = |target: &ImageFile| {
        silent(|control| materialize(target, Format::Qcow2, control)).map(drop)
    };
    type Work<'w> = &'w dyn Fn(&ImageFile) -> Result<()>;
    let works: [(&str, Work<'_>); 4] = [
        ("grow", &|target| {
            resized(90 * KIB, Preallocation::Off)(target)
        }),
        ("grow mapped", &|target| {
            resized(90 * KIB, Preallocation::Metadata)(target)
        }),
        ("shrink", &|target| {
            resized(10 * KIB, Preallocation::Off)(target)
        }),
        ("materialize", &materialized),
    ];
    // Unmapped bytes and those beyond the end are not the guest's, whatever their contents.
    let data = vec![0xee; 60 * KIB as usize];
    for preallocation in [Preallocation::Off, Preallocation::Metadata] {
        let image = with_data_file(SIZE, preallocation);
        let old = guest_of(&image, &data);
        for (name, work) in works {
            let order = Order::default();
            let files = [&image, &data]
                .into_iter()
                .enumerate()
                .map(|(number, bytes)| Logged::one_of(bytes.clone(), number, &order));
            let files: Vec<_> = files.collect();
            let target =
                ImageFile::held(files[0].clone()).with_data_file(ImageFile::held(files[1].clone()));
            work(&target).unwrap();
            let logs = [files[0].log(), files[1].log()];
            let order = order.lock().unwrap().clone();
            let end = guest_of(&files[0].bytes(), &files[1].bytes()).len();
            for (cut, seed) in
                (0..=order.len()).flat_map(|cut| (0..SEEDS).map(move |seed| (cut, seed)))
            {
                let done = |number| {
                    order[..cut]
                        .iter()
                        .filter(|&&other| other == number)
                        .count()
                };
                let image = after_cut(&image, &logs[0][..done(0)], seed);
                let data = after_cut(&data, &logs[1][..done(1)], seed);
                let place = format!("{name}, {preallocation}: cut after {cut}, seed {seed}");
                let report =
                    silent(|control| check(Logged::of(image.clone()), 5, control)).unwrap();
                assert_eq!(report.corruptions, 0, "{place}: {report:?}");
                let now = guest_of(&image, &data);
                let common = now.len().min(old.len());
                let kept = common.min(end);
                assert!(now[..kept] == old[..kept], "{place}: data");
                assert!(
                    now[common..].iter().all(|&byte| byte == 0),
                    "{place}: old data in new space"
                );
            }
        }
    }
}
