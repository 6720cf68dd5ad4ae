//! Windows of sequential streams: where the data is in the file and on the disk, beside qemu-nbd
//! with the same writes, and what the file is longer by.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use extant_blockdev::{Device, HostCache, MemoryDevice, Persistence};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_space::ErrorKind;
use extant_testkit::command::tool;
use extant_testkit::oracle::filefrag;
use extant_testkit::oracle::qemu::{qemu_io, qemu_json};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::power;
use crate::support::{
    Ground, KIB, MIB, assert_checks, assert_checks_in_use, open, open_with, pattern, qcow2_options,
    qemu, qemu_img, read, write,
};

const CLUSTER: u64 = 64 * KIB;
/// Each stream writes this much of its part of the disk.
const STREAM: u64 = 8 * MIB;
const PART: u64 = 32 * MIB;

/// Writes of `streams` in turn, in clusters.
fn interleaved(streams: u64) -> Vec<u64> {
    let rounds = 0..STREAM / CLUSTER;
    let round = |round| (0..streams).map(move |stream| stream * PART + round * CLUSTER);
    rounds.flat_map(round).collect()
}

fn thin(path: &Path, bytes: u64) {
    let bytes = bytes.to_string();
    qemu(&[&"create", &"-u", &"-q", &"-f", &"qcow2", &path, &bytes]);
}

fn write_here(path: &Path, offsets: &[u64], cache: HostCache) {
    let options = DeviceOptions {
        cache,
        ..qcow2_options()
    };
    let image = open_with(path, &options);
    for &offset in offsets {
        write(&image, offset, &pattern(offset, CLUSTER, 1));
    }
    image.flush().unwrap();
}

/// The same through qemu-nbd, which ends with its first client.
fn write_by_qemu_nbd(path: &Path, offsets: &[u64], cache: HostCache) {
    let cache = match cache {
        HostCache::Buffered => "--cache=writeback",
        HostCache::Direct => "--cache=none",
    };
    let socket = path.with_extension("socket");
    let mut server = tool("qemu-nbd")
        .args(["--format=qcow2", "--discard=unmap", cache, "--socket"])
        .args([&socket, path])
        .spawn()
        .expect("qemu-nbd is there");
    while !socket.exists() {
        assert!(server.try_wait().unwrap().is_none(), "qemu-nbd ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let writes: Vec<_> = offsets
        .iter()
        .map(|offset| format!("write -q -P 1 {offset} {CLUSTER}"))
        .collect();
    let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
    qemu_io(
        format!("nbd+unix:///?socket={}", socket.display()),
        "raw",
        &writes,
    );
    assert!(server.wait().unwrap().success());
}

/// Pieces of the guest's data: in the image's file, and on the disk.
fn pieces(path: &Path) -> (usize, usize) {
    let map = qemu_json(&[&"map", &"-f", &"qcow2", &"--output=json", &path]);
    let extents = filefrag(path).extents;
    let (mut in_file, mut on_disk) = (0, 0);
    let (mut file_end, mut disk_end) = (None, None);
    for run in map.as_array().unwrap() {
        let Some(offset) = run["offset"].as_u64() else {
            (file_end, disk_end) = (None, None);
            continue;
        };
        let end = offset + run["length"].as_u64().unwrap();
        in_file += usize::from(file_end != Some(offset));
        file_end = Some(end);
        for extent in &extents {
            let start = extent.logical.start().max(offset);
            let stop = extent.logical.end().min(end);
            if start < stop {
                let place = extent.physical.unwrap() + (start - extent.logical.start());
                on_disk += usize::from(disk_end != Some(place));
                disk_end = Some(place + (stop - start));
            }
        }
    }
    (in_file, on_disk)
}

#[test]
fn interleaved_streams_have_fewer_pieces_than_by_qemu_nbd() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        qemu_img(),
        requires::tool("qemu-nbd"),
        requires::tool("qemu-io"),
        requires::tool("filefrag")
    );
    for (streams, cache) in [
        (2, HostCache::Buffered),
        (8, HostCache::Buffered),
        (8, HostCache::Direct),
    ] {
        let scratch = Scratch::new(Filesystem::Ext4, 512 * MIB);
        let (ours, theirs) = (
            scratch.path().join("ours.qcow2"),
            scratch.path().join("theirs.qcow2"),
        );
        let offsets = interleaved(streams);
        for path in [&ours, &theirs] {
            thin(path, streams * PART);
        }
        write_here(&ours, &offsets, cache);
        write_by_qemu_nbd(&theirs, &offsets, cache);
        let (in_file, on_disk) = pieces(&ours);
        let (in_their_file, on_their_disk) = pieces(&theirs);
        let what = format!(
            "{streams} streams, {cache:?}: {in_file} and {on_disk} pieces, by QEMU {in_their_file} and {on_their_disk}"
        );
        println!("{what}");
        // A window doubles the stream: a piece for each power of two.
        assert!(in_file <= streams as usize * 10, "{what}");
        assert!(on_disk <= streams as usize * 12, "{what}");
        assert!(in_file * 8 < in_their_file, "{what}");
        assert!(on_disk * 8 < on_their_disk, "{what}");
        assert_checks(&ours);
    }
}

#[test]
fn stream_whose_requests_overtake_each_other_has_few_pieces() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 2 * PART);
    let mut offsets = interleaved(2);
    // Both streams are shuffled within eight of their clusters.
    let mut random = fastrand::Rng::with_seed(4);
    offsets.chunks_mut(16).for_each(|some| random.shuffle(some));
    let image = open(&path);
    for &offset in &offsets {
        write(&image, offset, &pattern(offset, CLUSTER, 1));
    }
    drop(image);
    let map = qemu_json(&[&"map", &"-f", &"qcow2", &"--output=json", &path]);
    let runs = map.as_array().unwrap().iter();
    let count = runs.filter(|run| run["offset"].is_u64()).count();
    println!("{count} pieces");
    assert!(count < offsets.len() / 4, "{count} of {}", offsets.len());
    assert_checks(&path);
    let image = open(&path);
    for &offset in &offsets {
        assert!(read(&image, offset, CLUSTER) == pattern(offset, CLUSTER, 1));
    }
}

#[test]
fn closed_image_is_not_longer_than_by_qemu_for_any_order_of_writes() {
    require!(qemu_img(), requires::tool("qemu-io"));
    let ground = Ground::new();
    let mut random = fastrand::Rng::with_seed(7);
    let anywhere: Vec<u64> = (0..4 * PART / CLUSTER)
        .map(|number| number * CLUSTER)
        .collect();
    let mut some = random.choose_multiple(anywhere.iter(), 500);
    random.shuffle(&mut some);
    let some = some.into_iter().copied().collect();
    for (name, offsets) in [("random", some), ("interleaved", interleaved(4))] {
        let (ours, theirs) = (
            ground.qcow2(&format!("{name}.qcow2"), "", 4 * PART),
            ground.qcow2(&format!("{name}-qemu.qcow2"), "", 4 * PART),
        );
        write_here(&ours, &offsets, HostCache::Buffered);
        let writes: Vec<_> = offsets
            .iter()
            .map(|offset| format!("write -q -P 1 {offset} {CLUSTER}"))
            .collect();
        qemu_io(
            &theirs,
            "qcow2",
            &Vec::from_iter(writes.iter().map(String::as_str)),
        );
        assert_checks(&ours);
        let metadata = |path| File::open(path).unwrap().metadata().unwrap();
        let (here, there) = (metadata(&ours), metadata(&theirs));
        let what = format!("{name}: {} bytes, by QEMU {}", here.len(), there.len());
        println!("{what}");
        match name {
            // Few writes continue a stream by chance.
            "random" => assert!(here.len() <= there.len() + 16 * CLUSTER, "{what}"),
            // Windows are no larger than what their streams have written.
            _ => assert!(here.len() <= 2 * there.len(), "{what}"),
        }
        // Windows take no space, only addresses in the file.
        let blocks = |file: &std::fs::Metadata| file.blocks() * 512;
        assert!(blocks(&here) <= blocks(&there) + 2 * CLUSTER, "{what}");
    }
}

#[test]
fn windows_are_neither_counted_nor_lost() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 4 * PART);
    let image = open(&path);
    let offsets = interleaved(3);
    for &offset in &offsets[..offsets.len() / 2] {
        write(&image, offset, &pattern(offset, CLUSTER, 1));
    }
    image.flush().unwrap();
    // As a kill leaves it, with windows in memory: no leak, no error.
    assert_checks_in_use(&path);
    let killed = ground.path("killed.qcow2");
    std::fs::copy(&path, &killed).unwrap();
    drop(image);
    for path in [&path, &killed] {
        let image = open(path);
        for &offset in &offsets[offsets.len() / 2..] {
            write(&image, offset, &pattern(offset, CLUSTER, 1));
        }
        drop(image);
        assert_checks(path);
        let image = open(path);
        for &offset in &offsets {
            assert!(read(&image, offset, CLUSTER) == pattern(offset, CLUSTER, 1));
        }
    }
}

#[test]
fn windows_are_reclaimed_before_a_disk_is_full() {
    require!(qemu_img());
    const DISK: u64 = power::FILE;
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=4k", 4 * DISK);
    let memory = MemoryDevice::new(DISK);
    let mut first = std::fs::read(&path).unwrap();
    first.resize(first.len().next_multiple_of(512), 0);
    memory.write_at(&first, 0, Persistence::Cached).unwrap();
    let disk = power::disk_of(memory);
    let image = ImageDevice::open_store(disk.clone(), &qcow2_options()).unwrap();
    let offset = |number: u64| number % 4 * DISK + number / 4 * 4 * KIB;
    let (end, error) = (0..)
        .find_map(|number| {
            let bytes = pattern(offset(number), 4 * KIB, 1);
            let written = image.write_at(&bytes, offset(number), Persistence::Cached);
            written.err().map(|error| (number, error))
        })
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    // The rest is metadata.
    assert!(end * 4 * KIB > DISK - 64 * KIB, "{end} clusters");
    image.flush().unwrap();
    drop(image);
    let mut bytes = vec![0; DISK as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    std::fs::write(&path, bytes).unwrap();
    assert_checks(&path);
    let image = open(&path);
    for number in 0..end {
        let offset = offset(number);
        assert!(read(&image, offset, 4 * KIB) == pattern(offset, 4 * KIB, 1));
    }
}
