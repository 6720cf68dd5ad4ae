//! `-w` where the kernel refuses it: the same guarantee by writing.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, ExtentFlags, ExtentState};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, oracle, require, requires};

use crate::program::{Answer, Program};
use crate::sequence::{Sequence, Step};

const MIB: u64 = 1 << 20;

fn scratch(filesystem: Filesystem) -> Scratch {
    Scratch::new(filesystem, filesystem.size_bytes_min().max(64 * MIB))
}

#[track_caller]
fn fallocate(directory: &Path, arguments: &str) -> Answer {
    let words: Vec<&str> = arguments.split(' ').collect();
    Program::Ours.run(directory, &words)
}

#[track_caller]
fn must(directory: &Path, arguments: &str) -> Answer {
    let answer = fallocate(directory, arguments);
    assert_eq!(
        (answer.status, &*answer.stderr),
        (Some(0), ""),
        "{arguments}"
    );
    answer
}

fn states(file: &Path) -> Vec<(u64, u64, ExtentState)> {
    let mut states: Vec<(u64, u64, ExtentState)> = Vec::new();
    for extent in oracle::filefrag(file).with_holes() {
        let (start, end) = (extent.logical.start(), extent.logical.end());
        match states.last_mut() {
            Some(last) if last.2 == extent.state => last.1 = end,
            _ => states.push((start, end, extent.state)),
        }
    }
    states
}

/// Random files and ranges: bytes, size and states compared with the guarantees.
fn random_ranges(filesystem: Filesystem) {
    require!(requires::tool("filefrag"), filesystem.requirement());
    let scratch = scratch(filesystem);
    let file = scratch.path().join("f");
    for seed in 0..12 {
        let _ = fs::remove_file(&file);
        fs::write(&file, b"").unwrap();
        let mut sequence = Sequence::new(1000 + seed, 4096);
        let mut bytes: Vec<u8> = Vec::new();
        let mut ranges = 0;
        while ranges < 6 {
            match sequence.step() {
                Step::Write {
                    offset,
                    length,
                    value,
                } => {
                    let open = OpenOptions::new().write(true).open(&file).unwrap();
                    open.write_all_at(&vec![value; length as usize], offset)
                        .unwrap();
                }
                Step::Fallocate(arguments) => {
                    let at = |option| arguments.iter().position(|word| word == option);
                    let number = |option| arguments[at(option)? + 1].parse::<u64>().ok();
                    let (Some(offset), Some(length)) = (number("-o"), number("-l")) else {
                        continue;
                    };
                    // Unwritten and punched parts first, then the zeroes.
                    let mode = if arguments[0] == "-p" { "-p" } else { "-n" };
                    if ranges % 2 == 0 {
                        // ext2 refuses, and then the range is as it was.
                        let before = format!("{mode} -o {} -l {length} f", offset / 2);
                        let answer = fallocate(scratch.path(), &before);
                        assert!(answer.status == Some(0) || filesystem == Filesystem::Ext2);
                    }
                    bytes = fs::read(&file).unwrap();
                    let context = format!("seed {seed}: -w -o {offset} -l {length}");
                    let answer = must(scratch.path(), &format!("-v -w -o {offset} -l {length} f"));
                    let told = format!(" ({length} bytes) written as zeroes.\n");
                    assert!(answer.stdout.ends_with(&told), "{}", answer.stdout);
                    let end = (offset + length) as usize;
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[offset as usize..end].fill(0);
                    assert!(fs::read(&file).unwrap() == bytes, "{context}");
                    if filesystem != Filesystem::Tmpfs {
                        let range = ByteRange::new(offset, offset + length);
                        for extent in oracle::filefrag(&file).with_holes() {
                            let part = extent.clip(range);
                            assert!(
                                part.is_none_or(|part| part.is_extant()),
                                "{context}: {part:?}"
                            );
                        }
                    }
                    ranges += 1;
                }
            }
        }
        assert_eq!(bytes.len() as u64, fs::metadata(&file).unwrap().len());
    }
}

#[test]
fn random_ranges_on_ext4_are_zero_and_written_and_neighbours_kept() {
    random_ranges(Filesystem::Ext4);
}

#[test]
fn random_ranges_on_ext4_with_1k_blocks_are_zero_and_written_and_neighbours_kept() {
    random_ranges(Filesystem::Ext4SmallBlocks);
}

#[test]
fn random_ranges_on_xfs_are_zero_and_written_and_neighbours_kept() {
    random_ranges(Filesystem::Xfs);
}

#[test]
fn random_ranges_on_ext2_are_zero_and_written_and_neighbours_kept() {
    random_ranges(Filesystem::Ext2);
}

#[test]
fn random_ranges_on_tmpfs_are_zero_and_neighbours_kept() {
    random_ranges(Filesystem::Tmpfs);
}

#[test]
fn unaligned_edges_that_were_hole_or_unwritten_become_written_whole() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(requires::tool("filefrag"), filesystem.requirement());
        let scratch = scratch(filesystem);
        let file = scratch.path().join("f");
        use ExtentState::{Hole, Unwritten, Written};

        // A hole of 16 blocks.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .unwrap()
            .set_len(65_536)
            .unwrap();
        must(scratch.path(), "-w -o 5000 -l 10000 f");
        let wanted = [
            (0, 4096, Hole),
            (4096, 16_384, Written),
            (16_384, 65_536, Hole),
        ];
        assert_eq!(states(&file), wanted, "{filesystem}");

        // The same, unwritten.
        must(scratch.path(), "-z -l 65536 f");
        must(scratch.path(), "-w -o 5000 -l 10000 f");
        let wanted = [
            (0, 4096, Unwritten),
            (4096, 16_384, Written),
            (16_384, 65_536, Unwritten),
        ];
        assert_eq!(states(&file), wanted, "{filesystem}");

        // Written edges keep the data outside the range.
        fs::write(&file, vec![7; 65_536]).unwrap();
        must(scratch.path(), "-w -o 5000 -l 10000 f");
        let mut bytes = vec![7; 65_536];
        bytes[5000..15_000].fill(0);
        assert!(fs::read(&file).unwrap() == bytes, "{filesystem}");
        assert_eq!(states(&file), [(0, 65_536, Written)], "{filesystem}");
    }
}

#[test]
fn size_grows_to_the_end_of_the_range_and_never_shrinks() {
    require!(Filesystem::Ext4.requirement());
    let scratch = scratch(Filesystem::Ext4);
    let size = || fs::metadata(scratch.path().join("f")).unwrap().len();
    must(scratch.path(), "-w -o 10 -l 100 f");
    assert_eq!(size(), 110);
    must(scratch.path(), "-w -l 5 f");
    assert_eq!(size(), 110);
    must(scratch.path(), "-w -o 1M -l 1M f");
    assert_eq!(size(), 2 * MIB);
    let answer = fallocate(scratch.path(), "-w -n -o 4M -l 1M f");
    assert_eq!(answer.status, Some(1));
    assert!(answer.stderr.contains("--keep-size cannot be combined"));
    assert_eq!(size(), 2 * MIB);
}

#[test]
fn shared_range_on_xfs_gets_space_of_its_own_and_the_other_file_keeps_its_data() {
    require!(requires::tool("filefrag"), Filesystem::Xfs.requirement());
    let scratch = scratch(Filesystem::Xfs);
    let [file, other] = ["f", "other"].map(|name| scratch.path().join(name));
    fs::write(&file, vec![7; MIB as usize]).unwrap();
    command::run(
        command::tool("cp")
            .arg("--reflink=always")
            .args([&file, &other]),
    )
    .unwrap();
    must(scratch.path(), "-w -o 100000 -l 300000 f");

    let mut bytes = vec![7; MIB as usize];
    assert!(fs::read(&other).unwrap() == bytes);
    bytes[100_000..400_000].fill(0);
    assert!(fs::read(&file).unwrap() == bytes);
    let range = ByteRange::new(100_000, 400_000);
    for extent in oracle::filefrag(&file).with_holes() {
        let part = extent.clip(range);
        assert!(part.is_none_or(|part| part.is_extant()), "{part:?}");
    }
    let is_shared = |path: &Path| {
        let map = oracle::filefrag(path);
        map.extents
            .iter()
            .any(|extent| extent.flags.contains(ExtentFlags::SHARED))
    };
    assert!(
        is_shared(&file) && is_shared(&other),
        "the rest stays shared"
    );
}

#[test]
fn btrfs_is_refused_in_one_line_unless_the_file_is_nocow() {
    require!(requires::tool("chattr"), Filesystem::Btrfs.requirement());
    let scratch = scratch(Filesystem::Btrfs);
    let file = scratch.path().join("f");
    fs::write(&file, vec![7; 65_536]).unwrap();
    let answer = fallocate(scratch.path(), "-w -l 8192 f");
    assert_eq!(answer.status, Some(1));
    assert_eq!(answer.stderr.lines().count(), 1, "{}", answer.stderr);
    assert!(answer.stderr.contains("copy-on-write"), "{}", answer.stderr);
    assert!(fs::read(&file).unwrap() == vec![7; 65_536]);

    let nocow = scratch.path().join("nocow");
    fs::write(&nocow, b"").unwrap();
    command::run(command::tool("chattr").arg("+C").arg(&nocow)).unwrap();
    must(scratch.path(), "-w -l 1M nocow");
    assert!(oracle::filefrag(&nocow).is_extant());
}

#[test]
fn interrupt_ends_with_130_soon_and_leaves_the_data_outside() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 6 << 30);
    let file = scratch.path().join("f");
    fs::write(&file, b"data").unwrap();
    let child = Program::Ours
        .command()
        .args(["-w", "-o", "4096", "-l", "5G", "f"])
        .current_dir(scratch.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let id = child.id().to_string();
    command::run(command::tool("kill").args(["-INT", &id])).unwrap();
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stderr, b"fallocate: cancelled\n");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    let mut head = [0; 4];
    fs::File::open(&file)
        .unwrap()
        .read_exact_at(&mut head, 0)
        .unwrap();
    assert_eq!(&head, b"data");
}
