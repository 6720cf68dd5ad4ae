//! File systems with `bigalloc`, which are read: their bitmaps and counts are of clusters.

use std::fs;
use std::ops::{ControlFlow, Range};

use extant_ext4::{Access, Filesystem, Options};
use extant_testkit::command::{text, tool};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{mke2fs, require, requires};

use crate::image::Image;

fn open(image: &Image) -> Filesystem {
    image.open_with(Options {
        access: Access::ReadOnly,
        ..Options::default()
    })
}

/// Ranges of free blocks as dumpe2fs lists them, joined across groups. It gives the first block of
/// the last cluster of each.
fn listed_runs(words: &str, cluster: u64, end: u64) -> Vec<Range<u64>> {
    let lists = words
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let ranges = lists
        .flat_map(|list| list.split(", "))
        .filter(|range| !range.is_empty());
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
        let found = first..(last / cluster * cluster + cluster).min(end);
        match runs.last_mut() {
            Some(run) if run.end == found.start => run.end = found.end,
            _ => runs.push(found),
        }
    }
    runs
}

#[test]
fn free_space_of_bigalloc_is_that_of_the_kernel_and_of_dumpe2fs() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("dumpe2fs"),
        requires::kernel_filesystem("ext4")
    );
    for (options, kibibytes, cluster) in [
        ("-b 1024 -O bigalloc -C 4096 -g 4096", 50_003, 4),
        ("-b 4096 -O bigalloc -C 65536", 65_536, 16),
    ] {
        let bytes = mke2fs(&format!("-t ext4 {options}"), kibibytes << 10);
        let work = Workdir::new();
        let path = work.path().join("image");
        let place = work.directory("mounted");
        let agree = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let words = text(tool("dumpe2fs").arg(&path)).unwrap();
            let device = LoopDevice::attach(&path);
            let mount = Mount::new("ext4", device.path(), &place, "ro");
            let kernel = rustix::fs::statvfs(&place).unwrap();
            mount.unmount();
            let image = Image::from_bytes(bytes);
            let fs = open(&image);
            let ours = fs.statistics();
            assert_eq!(
                (ours.blocks, ours.free_blocks),
                (kernel.f_blocks, kernel.f_bfree),
                "{options}"
            );
            let mut runs = Vec::new();
            fs.for_each_free_run(&mut |run| {
                runs.push(run);
                ControlFlow::Continue(())
            })
            .unwrap();
            let end = fs.superblock().layout().blocks();
            assert_eq!(runs, listed_runs(&words, cluster, end), "{options}");
            let sum: u64 = runs.iter().map(|run| run.end - run.start).sum();
            // The last cluster may be a part of one.
            assert!(sum <= ours.free_blocks && ours.free_blocks < sum + cluster);
            runs.len()
        };
        let empty = agree(&bytes);
        let device = LoopDevice::attach(&path);
        let mount = Mount::new("ext4", device.path(), &place, "");
        for at in 0..40 {
            fs::write(place.join(at.to_string()), vec![7; 30_000 * (at % 7 + 1)]).unwrap();
        }
        for at in (0..40).step_by(3) {
            fs::remove_file(place.join(at.to_string())).unwrap();
        }
        mount.unmount();
        drop(device);
        let filled = agree(&fs::read(&path).unwrap());
        assert!(filled > empty, "{options}: {filled} runs");
    }
}
