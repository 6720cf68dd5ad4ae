//! Signals at random moments: the remaining files, the resume, and that data is never changed.
//!
//! Delays between the start of a run and its signal come from a printed seed. Only here do tests
//! wait for a time: the test is about a random moment. The duration of a cancel is printed, and
//! only bounded loosely, because other tests use the disk too.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use extant_space::{ByteRange, ExtentState};
use extant_testkit::faulty::{DirectIoFault, FallocateFault, Faults, Faulty};
use extant_testkit::scratch::{Filesystem, LoopDevice, Mount, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle, require, seeds};
use rustix::process::Signal;

use support::{
    Answer, KIB, MIB, Random, Running, assert_names, create, create_command, device_bytes_written,
    extant, left_written, materialize, noise, partial_of, wait_until,
};

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Far more than a cancel takes; a bound against hangs, not a figure.
const CANCEL_MAX: Duration = Duration::from_secs(2);

/// Starts `command`, waits until its partial file exists and `delay` longer, and signals.
#[track_caller]
fn interrupted(
    command: &mut Command,
    file: &Path,
    delay: Duration,
    signal: Signal,
) -> (Answer, Duration) {
    let mut running = Running::start(command);
    wait_until("the partial file", || {
        partial_of(file).exists() || !running.is_alive()
    });
    sleep(delay);
    running.stop(signal)
}

/// Free space of `directory`; `None` if others write there as well.
fn free_bytes(directory: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(directory).unwrap();
    let is_ours = space.f_blocks * space.f_frsize < 4 << 30;
    is_ours.then_some(space.f_bfree * space.f_frsize)
}

/// Cancels creations of `size` in `directory`; prints the time of the longest cancel.
#[track_caller]
fn cancel_at_random(what: &str, directory: &Path, size: &str, options: &[&str], longest_ms: u64) {
    let mut random = Random::seeded("--test interrupt");
    let file = directory.join("a");
    let mut took = Vec::new();
    let free_before = free_bytes(directory);
    for round in 0..9 {
        let delay = Duration::from_millis(random.below(longest_ms));
        let signal = SIGNALS[round % SIGNALS.len()];
        let command = &mut create_command(&file, size, options);
        let (answer, time) = interrupted(command, &file, delay, signal);
        if answer.code == Some(0) {
            // Too late: it was complete.
            assert_names(directory, &["a"]);
            fs::remove_file(&file).unwrap();
            continue;
        }
        answer.refused(130, &["/a: ", "cancelled"]);
        assert_names(directory, &[]);
        assert!(time < CANCEL_MAX, "{what}: {time:?} after {delay:?}");
        took.push(time);
        if let Some(free_before) = free_before {
            wait_until("the space comes back", || {
                free_bytes(directory).is_some_and(|free| free + MIB >= free_before)
            });
        }
    }
    took.sort();
    assert!(!took.is_empty(), "{what}: no run was cancelled");
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    eprintln!(
        "{what}: {} cancels, median {median:?}, longest {longest:?}",
        took.len()
    );
}

#[test]
fn signal_at_any_moment_of_create_leaves_nothing() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Ext2] {
        require!(filesystem.requirement());
        let scratch = Scratch::new(filesystem, filesystem.size_bytes_min().max(128 * MIB));
        let options = ["--rate", "96M"];
        cancel_at_random(filesystem.name(), scratch.path(), "64MiB", &options, 500);
    }
}

#[test]
fn signal_at_any_moment_of_create_at_full_speed_leaves_nothing() {
    let work = Workdir::new();
    cancel_at_random(
        "the machine's disk",
        &work.directory("f"),
        "512MiB",
        &[],
        250,
    );
    require!(Filesystem::Tmpfs.requirement());
    let scratch = Scratch::new(Filesystem::Tmpfs, 512 * MIB);
    cancel_at_random("tmpfs", scratch.path(), "256MiB", &[], 100);
}

#[test]
fn signal_at_any_moment_of_create_on_a_slow_disk_leaves_nothing() {
    require!(Faulty::requirement());
    for direct_io in [DirectIoFault::None, DirectIoFault::Refused] {
        let fuse = Faulty::new(
            256 * MIB,
            Faults {
                fallocate: FallocateFault::Unsupported,
                direct_io,
                latency: Duration::from_millis(30),
                ..Faults::default()
            },
        );
        cancel_at_random("FUSE, 30 ms a request", fuse.path(), "128MiB", &[], 300);
    }
}

/// An ext4 on a disk with a configurable delay.
struct SlowDisk {
    // Dropped in this order.
    mount: Mount,
    _device: LoopDevice,
    _work: Workdir,
    fuse: Faulty,
}

impl SlowDisk {
    fn new(size: u64) -> Self {
        let fuse = Faulty::new(2 * size, Faults::default());
        let work = Workdir::new();
        let image = fuse.path().join("image");
        fs::File::create(&image).unwrap().set_len(size).unwrap();
        let device = LoopDevice::attach(&image);
        let mut mkfs = command::tool("mkfs.ext4");
        command::run(mkfs.arg("-q").arg(device.path())).unwrap();
        Self {
            mount: Mount::new("ext4", device.path(), &work.directory("fs"), ""),
            _device: device,
            _work: work,
            fuse,
        }
    }

    fn set_latency(&self, latency: Duration) {
        self.fuse.set_faults(Faults {
            latency,
            ..Faults::default()
        });
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.set_latency(Duration::ZERO);
    }
}

#[test]
fn second_signal_ends_at_once() {
    require!(Faulty::requirement(), Filesystem::Ext4.requirement());
    let disk = SlowDisk::new(64 * MIB);
    let file = disk.mount.path().join("a");
    let mut running = Running::start(&mut create_command(&file, "32MiB", &["--rate", "8M"]));
    wait_until("some writes", || {
        disk.fuse.counters().bytes_written > 4 * MIB
    });
    // From here on the disk does not answer, and a cancel has to wait for it.
    disk.set_latency(Duration::from_secs(60));
    sleep(Duration::from_millis(300));
    running.send(Signal::INT);
    sleep(Duration::from_millis(300));
    assert!(running.is_alive(), "the first signal waits for the disk");
    let (answer, time) = running.stop(Signal::INT);
    assert_eq!(answer.code, Some(130), "{answer}");
    assert!(time < Duration::from_secs(10), "{time:?}");
    disk.set_latency(Duration::ZERO);
    assert_names(disk.mount.path(), &[".a.extant-partial"]);
    create(&file, "32MiB", &[]).success();
    assert_names(disk.mount.path(), &["a"]);
}

#[test]
fn signal_during_a_sync_ends_the_command_while_the_disk_is_busy() {
    require!(Faulty::requirement());
    let faults = Faults {
        sync_latency: Duration::from_secs(30),
        ..Faults::default()
    };
    let fuse = Faulty::new(64 * MIB, faults);
    // FUSE keeps the inode locked during a sync, so a removal would wait.
    let file = fuse.path().join("a");
    let running = Running::start(&mut create_command(&file, "1MiB", &["--keep-partial"]));
    wait_until("all zeros", || fuse.counters().bytes_written >= MIB);
    sleep(Duration::from_millis(500));
    let (answer, time) = running.stop(Signal::INT);
    answer.refused(130, &["/a: ", "cancelled"]);
    assert!(time < Duration::from_secs(20), "{time:?}");
    assert_names(fuse.path(), &[".a.extant-partial"]);
}

#[test]
fn kept_partial_is_resumed_after_a_cancel() {
    require!(Filesystem::Ext4.requirement());
    let mut random = Random::seeded("--test interrupt kept_partial");
    let scratch = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let file = scratch.path().join("a");
    for _ in 0..4 {
        let options = ["--keep-partial", "--rate", "64M"];
        let delay = Duration::from_millis(100 + random.below(300));
        let command = &mut create_command(&file, "48MiB", &options);
        let (answer, _) = interrupted(command, &file, delay, Signal::TERM);
        answer.refused(130, &["cancelled"]);
        assert_names(scratch.path(), &[".a.extant-partial"]);
        // Space written by now need not be written again.
        let kept = oracle::filefrag(&partial_of(&file)).bytes(ExtentState::Written);
        assert!(kept > 0);
        let answer = create(&file, "48MiB", &["--json"]).success();
        assert_eq!(answer.number("/resumed_bytes"), kept, "{answer}");
        assert_eq!(answer.number("/written_bytes"), 48 * MIB - kept, "{answer}");
        assert_names(scratch.path(), &["a"]);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn create_killed_25_times_resumes_to_the_same_result() {
    require!(Filesystem::Ext4.requirement());
    let mut random = Random::seeded("--test interrupt create_killed");
    const SIZE: u64 = 96 * MIB + 123;
    let size = SIZE.to_string();
    let make = || Scratch::new(Filesystem::Ext4, 192 * MIB);
    let (scratch, undisturbed) = (make(), make());
    let file = scratch.path().join("a");
    let mut kept = 0;
    for _ in 0..25 {
        let delay = Duration::from_millis(random.below(60));
        let command = &mut create_command(&file, &size, &["--rate", "64M"]);
        let (answer, _) = interrupted(command, &file, delay, Signal::KILL);
        assert_eq!(answer.signal, Some(9), "{answer}");
        assert_names(scratch.path(), &[".a.extant-partial"]);
        let now = oracle::filefrag(&partial_of(&file)).bytes(ExtentState::Written);
        assert!(now >= kept, "{now} of {kept} bytes are left");
        kept = now;
    }
    assert!(
        kept > 0 && kept < SIZE,
        "the kills came too early or too late: {kept}"
    );
    seeds::counted(25, "kills");

    let before = device_bytes_written(&scratch);
    let answer = create(&file, &size, &["--json"]).success();
    let written = answer.number("/written_bytes");
    assert_eq!(answer.number("/resumed_bytes") + written, SIZE, "{answer}");
    assert_eq!(answer.number("/resumed_bytes"), kept, "{answer}");
    // With some metadata; writing all of it again would be far more.
    let on_device = device_bytes_written(&scratch) - before;
    assert!(on_device < written + 2 * MIB, "{on_device} for {answer}");

    let other = undisturbed.path().join("a");
    create(&other, &size, &[]).success();
    assert_names(scratch.path(), &["a"]);
    oracle::assert_same_bytes(&file, &other);
    assert!(oracle::filefrag(&file).is_extant());
    assert_eq!(
        oracle::filefrag_count(&file),
        oracle::filefrag_count(&other)
    );
    let facts = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.len(), found.mode(), found.blocks())
    };
    assert_eq!(facts(&file), facts(&other));
}

#[test]
fn create_killed_without_extent_map_resumes_from_the_size() {
    require!(Faulty::requirement());
    let mut random = Random::seeded("--test interrupt create_killed_where");
    for fallocate in [FallocateFault::None, FallocateFault::Unsupported] {
        let fuse = Faulty::new(
            128 * MIB,
            Faults {
                fallocate,
                latency: Duration::from_millis(1),
                ..Faults::default()
            },
        );
        let file = fuse.path().join("a");
        for _ in 0..5 {
            let delay = Duration::from_millis(random.below(80));
            let command = &mut create_command(&file, "32MiB", &["--rate", "64M"]);
            let (answer, _) = interrupted(command, &file, delay, Signal::KILL);
            assert_eq!(answer.signal, Some(9), "{answer}");
            assert_names(fuse.path(), &[".a.extant-partial"]);
        }
        seeds::counted(5, "kills");
        let before = fuse.counters().bytes_written;
        let answer = create(&file, "32MiB", &["--json"]).success();
        let (resumed, written) = (
            answer.number("/resumed_bytes"),
            answer.number("/written_bytes"),
        );
        assert!(resumed > 0, "{answer}");
        assert_eq!(resumed + written, 32 * MIB, "{answer}");
        assert_eq!(fuse.counters().bytes_written - before, written);
        assert_eq!(oracle::allocated_bytes(&file), 32 * MIB);
        oracle::assert_zeros(&file, ByteRange::new(0, 32 * MIB));
    }
}

#[test]
fn killed_runs_can_be_repeated_at_once() {
    require!(Filesystem::Ext4.requirement());
    let mut random = Random::seeded("--test interrupt killed_runs");
    let scratch = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let file = scratch.path().join("a");
    for _ in 0..8 {
        let delay = Duration::from_millis(random.below(40));
        let command = &mut create_command(&file, "64MiB", &[]);
        interrupted(command, &file, delay, Signal::KILL);
        // Killed or not, the name exists only if the file was complete.
        if !file.exists() {
            // The kernel may still be finishing requests of the killed process.
            create(&file, "64MiB", &[]).success();
        }
        assert!(oracle::filefrag(&file).is_extant());
        assert_names(scratch.path(), &["a"]);
        fs::remove_file(&file).unwrap();

        fs::File::create(&file).unwrap().set_len(64 * MIB).unwrap();
        let running = Running::start(extant().arg("materialize").arg(&file));
        sleep(Duration::from_millis(random.below(40)));
        let _ = running.stop(Signal::KILL);
        materialize(&file, &[]).success();
        fs::remove_file(&file).unwrap();
    }
    seeds::counted(16, "kills");
}

/// Leaves a partial file of 64 MiB, of which some is written.
#[track_caller]
fn leave_partial(file: &Path) -> u64 {
    let command = &mut create_command(file, "64MiB", &["--rate", "64M"]);
    let (answer, _) = interrupted(command, file, Duration::from_millis(400), Signal::KILL);
    assert_eq!(answer.signal, Some(9), "{answer}");
    let written = left_written(file);
    assert!(written > 4 * MIB && written < 60 * MIB, "{written}");
    written
}

#[test]
fn partial_is_resumed_by_a_command_with_other_options() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 256 * MIB);
    let file = scratch.path().join("a");

    for size in [2 * MIB + 5, 128 * MIB] {
        let kept = leave_partial(&file);
        let answer = create(&file, &size.to_string(), &["--json"]).success();
        let written = answer.number("/written_bytes");
        assert_eq!(written, size.saturating_sub(kept), "{answer}");
        let map = oracle::filefrag(&file);
        assert!(map.is_extant() && map.size_bytes == size, "{map:?}");
        assert!(oracle::allocated_bytes(&file) < size + 64 * KIB);
        fs::remove_file(&file).unwrap();
    }

    leave_partial(&file);
    create(&file, "64MiB", &["--allocation", "3MiB"]).success();
    let map = oracle::filefrag(&file);
    assert_eq!(map.bytes(ExtentState::Written), 3 * MIB);
    assert_eq!(map.bytes(ExtentState::Hole), 61 * MIB);
    fs::remove_file(&file).unwrap();

    leave_partial(&file);
    create(&file, "64MiB", &["--preallocation", "falloc"]).success();
    assert_eq!(oracle::filefrag(&file).bytes(ExtentState::Hole), 0);
    fs::remove_file(&file).unwrap();

    leave_partial(&file);
    create(&file, "64MiB", &["--preallocation", "off"]).success();
    assert_eq!(oracle::allocated_bytes(&file), 0);
    assert_names(scratch.path(), &["a"]);
}

/// A file of 48 MiB with data at random places; all of its bytes.
fn scattered(file: &Path, random: &mut Random) -> Vec<u8> {
    const SIZE: u64 = 48 * MIB;
    let mut bytes = vec![0; SIZE as usize];
    let out = fs::File::create(file).unwrap();
    out.set_len(SIZE).unwrap();
    for _ in 0..40 {
        let length = 1 + random.below(100_000);
        let start = random.below(SIZE - length);
        let data = noise(random.next(), length as usize);
        out.write_all_at(&data, start).unwrap();
        bytes[start as usize..(start + length) as usize].copy_from_slice(&data);
    }
    out.sync_all().unwrap();
    bytes
}

fn materialize_command(file: &Path) -> Command {
    let mut command = extant();
    command.arg("materialize").arg(file).args(["--rate", "64M"]);
    command
}

/// Stops a run of materialize at a random moment.
#[track_caller]
fn stop_materialize(file: &Path, random: &mut Random, signal: Signal) -> Answer {
    let blocks = || fs::metadata(file).unwrap().blocks();
    let before = blocks();
    let mut running = Running::start(&mut materialize_command(file));
    // Later runs change no block count; then the moment may be before the work.
    if before * 512 < 48 * MIB {
        wait_until("space", || blocks() > before || !running.is_alive());
    }
    sleep(Duration::from_millis(random.below(90)));
    running.stop(signal).0
}

#[test]
fn materialize_killed_at_any_moment_keeps_every_byte() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(filesystem.requirement());
        let mut random = Random::seeded("--test interrupt materialize_killed");
        let scratch = Scratch::new(filesystem, filesystem.size_bytes_min().max(128 * MIB));
        let file = scratch.path().join("a");
        let bytes = scattered(&file, &mut random);
        for _ in 0..10 {
            let answer = stop_materialize(&file, &mut random, Signal::KILL);
            assert!(fs::read(&file).unwrap() == bytes, "{answer}");
            assert_names(scratch.path(), &["a"]);
        }
        seeds::counted(10, "kills");
        assert!(!oracle::filefrag(&file).is_extant(), "killed too late");
        materialize(&file, &[]).success();
        assert!(fs::read(&file).unwrap() == bytes);
        assert!(oracle::filefrag(&file).is_extant());
    }
}

#[test]
fn materialize_cancelled_reports_it_and_keeps_every_byte() {
    require!(Filesystem::Ext4.requirement());
    let mut random = Random::seeded("--test interrupt materialize_cancelled");
    let scratch = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let file = scratch.path().join("a");
    let bytes = scattered(&file, &mut random);
    for signal in SIGNALS {
        let mut running = Running::start(&mut materialize_command(&file));
        wait_until("all space", || {
            oracle::allocated_bytes(&file) >= 48 * MIB || !running.is_alive()
        });
        sleep(Duration::from_millis(100));
        let (answer, time) = running.stop(signal);
        eprintln!("materialize: cancelled in {time:?}");
        answer.refused(130, &["/a: ", "cancelled"]);
        assert!(fs::read(&file).unwrap() == bytes);
    }
    materialize(&file, &[]).success();
    assert!(fs::read(&file).unwrap() == bytes);
    assert!(oracle::filefrag(&file).is_extant());
}
