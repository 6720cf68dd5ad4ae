//! Pools of kind `disk`: volumes are partitions of a GPT disk. sgdisk reads every table.

mod devices;
mod faults;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use extant_pool::{
    CloneMethod, CreateVolume, Definition, JobState, Leftovers, Limits, OnStop, Operation, Pool,
    Resize, WipeMethod,
};
use extant_space::{
    CancelToken, Control, ErrorKind, MappedProgress, Preallocation, Progress, ProgressSink, Remedy,
    Result, Silent,
};
use extant_testkit::{command, require, requires};

use crate::stand::{
    MIB, assert_at_rest, at_rate, clone, create, download, name, names, perform, resize, run,
    submit, upload, wipe,
};

const DISK_BYTES: u64 = 64 * MIB;

struct Stand {
    pool: Pool,
    directory: tempfile::TempDir,
}

fn define(disk: &Path, state: Option<&Path>, adopt: bool) -> Result<Pool> {
    let name = "bare".parse().unwrap();
    Pool::build(Definition::on_disk(
        name,
        disk,
        state,
        adopt,
        Limits::default(),
    )?)
}

fn blank(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

impl Stand {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk.img");
        blank(&disk, DISK_BYTES);
        Self {
            pool: define(&disk, None, false).unwrap(),
            directory,
        }
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk.img")
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Fills all space with old data, as earlier volumes leave it.
    fn fill(&self) {
        let disk = File::options().write(true).open(self.disk()).unwrap();
        let old = vec![0xee; (DISK_BYTES - 2 * MIB) as usize];
        disk.write_all_at(&old, MIB).unwrap();
    }

    /// The content of a volume, read past the pool at the place that sgdisk prints.
    fn read(&self, volume: &str) -> Vec<u8> {
        read_at(&self.disk(), volume)
    }

    #[track_caller]
    fn assert_at_rest(&self) {
        assert_at_rest(&self.pool);
        assert_sgdisk_clean(&self.disk());
    }
}

fn read_at(disk: &Path, volume: &str) -> Vec<u8> {
    let (_, first, last) = partitions(disk)
        .into_iter()
        .find(|(name, ..)| name == volume)
        .expect("a partition of that name");
    let mut bytes = vec![0; ((last - first + 1) * 512) as usize];
    File::open(disk)
        .unwrap()
        .read_exact_at(&mut bytes, first * 512)
        .unwrap();
    bytes
}

/// Names and sectors of the partitions, from sgdisk.
fn partitions(disk: &Path) -> Vec<(String, u64, u64)> {
    let printed = command::text(command::tool("sgdisk").arg("-p").arg(disk)).unwrap();
    let lines = printed
        .lines()
        .skip_while(|line| !line.starts_with("Number"));
    let rows = lines.skip(1).filter(|line| !line.trim().is_empty());
    rows.map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let number = |index: usize| words[index].parse().unwrap();
        (words[6..].join(" "), number(1), number(2))
    })
    .collect()
}

#[track_caller]
fn assert_sgdisk_clean(disk: &Path) {
    let said = command::text(command::tool("sgdisk").arg("-v").arg(disk)).unwrap();
    assert!(said.contains("No problems found"), "{said}");
}

fn noise(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 | 1).collect()
}

fn shrink(volume: &str, bytes: u64) -> Operation {
    Operation::Resize(Resize {
        volume: name(volume),
        capacity_bytes: bytes,
        preallocation: Preallocation::Full.into(),
        shrink: true,
    })
}

fn full(volume: &str, bytes: u64) -> Operation {
    create(volume, bytes, Preallocation::Full)
}

#[test]
fn volume_is_an_aligned_partition_of_zeros_whatever_was_there() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    perform(&stand.pool, full("web", 5 * MIB + 1)).unwrap();
    assert!(stand.read("web") == vec![0; 6 * MIB as usize]);
    let found = partitions(&stand.disk());
    assert_eq!(found, [("web".to_owned(), 2048, 2048 * 7 - 1)]);
    let info = stand.pool.volume(&name("web")).unwrap();
    assert_eq!(
        (info.capacity_bytes, info.written_bytes),
        (6 * MIB, 6 * MIB)
    );
    let info = stand.pool.info().unwrap();
    assert_eq!(info.space.total_bytes, DISK_BYTES - 2 * MIB);
    assert_eq!(info.largest_gap_bytes, Some(DISK_BYTES - 8 * MIB));
    stand.assert_at_rest();
    stand.pool.delete(&name("web"), false).unwrap();
    assert!(partitions(&stand.disk()).is_empty());
    stand.assert_at_rest();
}

#[test]
fn content_goes_in_and_out_and_holes_of_a_source_show_no_old_data() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    let source = stand.outside("source");
    let file = File::create(&source).unwrap();
    file.set_len(4 * MIB + 1000).unwrap();
    file.write_all_at(&noise(MIB), 2 * MIB).unwrap();
    let mut content = fs::read(&source).unwrap();
    content.resize(5 * MIB as usize, 0);
    perform(&stand.pool, Operation::Upload(upload("a", &source))).unwrap();
    assert!(stand.read("a") == content);
    perform(&stand.pool, clone("a", "b", CloneMethod::Auto)).unwrap();
    assert!(stand.read("b") == content);
    let target = stand.outside("target");
    perform(&stand.pool, Operation::Download(download("b", &target))).unwrap();
    assert!(fs::read(target).unwrap() == content);
    perform(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap();
    assert!(stand.read("a") == vec![0; content.len()]);
    assert!(stand.read("b") == content);
    let mut replace = upload("a", &source);
    replace.replace = true;
    perform(&stand.pool, Operation::Upload(replace)).unwrap();
    assert!(stand.read("a") == content);
    assert_eq!(names(&stand.pool), ["a", "b"]);
    stand.assert_at_rest();
}

#[test]
fn volume_grows_in_place_with_zeros_and_only_there() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    fs::write(stand.outside("source"), noise(2 * MIB)).unwrap();
    let source = upload("a", &stand.outside("source"));
    perform(&stand.pool, Operation::Upload(source)).unwrap();
    perform(&stand.pool, resize("a", 6 * MIB, Preallocation::Full)).unwrap();
    let mut content = noise(2 * MIB);
    content.resize(6 * MIB as usize, 0);
    assert!(stand.read("a") == content);
    perform(&stand.pool, full("b", 4 * MIB)).unwrap();
    let refused = perform(&stand.pool, resize("a", 8 * MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("0 B free there"), "{refused}");
    perform(&stand.pool, shrink("a", MIB)).unwrap();
    assert!(stand.read("a") == noise(2 * MIB)[..MIB as usize]);
    // The data that was cut off is not readable in the next volume.
    perform(&stand.pool, full("c", 5 * MIB)).unwrap();
    assert!(stand.read("c") == vec![0; 5 * MIB as usize]);
    stand.assert_at_rest();
}

#[test]
fn volume_without_a_gap_is_refused_with_the_largest() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    for volume in ["a", "b", "c"] {
        perform(&stand.pool, full(volume, 20 * MIB)).unwrap();
    }
    for volume in ["a", "c"] {
        stand.pool.delete(&name(volume), false).unwrap();
    }
    let refused = submit(&stand.pool, full("d", 30 * MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let said = refused.to_string();
    assert!(said.contains("the largest of 2 gaps has 22 MiB"), "{said}");
    let refused = submit(&stand.pool, full("d", 50 * MIB)).unwrap_err();
    assert!(refused.to_string().contains("missing"), "{refused}");
    assert_eq!(names(&stand.pool), ["b"]);
    stand.assert_at_rest();
}

#[test]
fn what_a_partition_cannot_be_is_refused_by_name() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    let with = |change: fn(&mut CreateVolume)| {
        let mut create = CreateVolume::new(name("a"), 4 * MIB, Preallocation::Full);
        change(&mut create);
        Operation::Create(create)
    };
    for (operation, word) in [
        (create("a", MIB, Preallocation::Off), "preallocation off"),
        (
            create("a", MIB, Preallocation::Falloc),
            "preallocation falloc",
        ),
        (
            with(|create| create.format = extant_pool::Format::Qcow2),
            "raw volumes only",
        ),
        (
            with(|create| create.allocation_bytes = MIB),
            "a smaller allocation",
        ),
        (with(|create| create.mode = 0o644), "permissions"),
        (
            with(|create| create.volume = name(&"n".repeat(40))),
            "36 UTF-16",
        ),
        (clone("none", "a", CloneMethod::Reflink), "share space"),
    ] {
        let refused = submit(&stand.pool, operation).unwrap_err().to_string();
        assert!(refused.contains(word), "{word}: {refused}");
    }
    stand.assert_at_rest();
    let thin = Limits {
        preallocation: Preallocation::Off,
        ..Limits::default()
    };
    let path = stand.disk();
    let refused = Definition::on_disk("thin".parse().unwrap(), &path, None, false, thin);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn table_of_another_program_is_used_only_if_adopted_and_its_partitions_stay() {
    require!(requires::tool("sgdisk"));
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    blank(&disk, DISK_BYTES);
    let mut sgdisk = command::tool("sgdisk");
    sgdisk
        .args(["-n", "3:10M:20M", "-c", "3:theirs"])
        .arg(&disk);
    command::must(&mut sgdisk);
    let before = fs::read(&disk).unwrap();
    let refused = define(&disk, None, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert_eq!(refused.remedies(), [Remedy::AdoptTable], "{refused}");
    assert!(fs::read(&disk).unwrap() == before);
    let pool = define(&disk, None, true).unwrap();
    assert!(fs::read(&disk).unwrap() == before);
    perform(&pool, full("ours", 12 * MIB)).unwrap();
    assert_eq!(names(&pool), ["ours"]);
    assert_eq!(pool.refresh(Leftovers::Keep).unwrap().other_names, 1);
    let found = partitions(&disk);
    assert_eq!(found.len(), 2);
    assert!(
        found.contains(&("theirs".to_owned(), 20480, 40960)),
        "{found:?}"
    );
    assert_eq!(
        pool.delete(&name("theirs"), true).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_sgdisk_clean(&disk);
    // Another disk in its place is noticed.
    command::must(command::tool("sgdisk").arg("-G").arg(&disk));
    let other = pool.volumes().unwrap_err();
    assert!(
        other.to_string().contains("another partition table"),
        "{other}"
    );
}

#[test]
fn disk_with_a_file_system_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    blank(&disk, DISK_BYTES);
    command::must(command::tool("mke2fs").args(["-q", "-F"]).arg(&disk));
    let before = fs::read(&disk).unwrap();
    for adopt in [false, true] {
        let refused = define(&disk, None, adopt).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    }
    assert!(fs::read(&disk).unwrap() == before);
}

/// Cancels at the report with a number.
struct CancelAt<'c> {
    left: Mutex<u32>,
    cancel: &'c CancelToken,
}

impl ProgressSink for CancelAt<'_> {
    fn update(&self, _: Progress) {
        let mut left = self.left.lock().unwrap();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.cancel.cancel();
        }
    }
}

#[test]
fn cancel_at_any_report_leaves_the_pool_as_before() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    fs::write(stand.outside("source"), noise(4 * MIB)).unwrap();
    let source = || Operation::Upload(upload("a", &stand.outside("source")));
    perform(&stand.pool, source()).unwrap();
    let mut cancelled = 0;
    for operation in [
        full("b", 4 * MIB),
        clone("a", "b", CloneMethod::Copy),
        resize("a", 8 * MIB, Preallocation::Full),
    ] {
        for report in 1.. {
            let cancel = CancelToken::new();
            let sink = CancelAt {
                left: Mutex::new(report),
                cancel: &cancel,
            };
            let job = submit(&stand.pool, operation.clone()).unwrap();
            match job.run(OnStop::Cancel, Control::new(&cancel, &sink)) {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
            }
            cancelled += 1;
            assert_eq!(names(&stand.pool), ["a"]);
            assert!(stand.read("a") == noise(4 * MIB));
            stand.assert_at_rest();
        }
        if stand.pool.volume(&name("b")).is_ok() {
            stand.pool.delete(&name("b"), false).unwrap();
        }
    }
    assert!(cancelled > 6, "{cancelled}");
}

#[test]
fn interrupted_jobs_are_found_and_resumed() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    fs::write(stand.outside("source"), noise(8 * MIB)).unwrap();
    perform(
        &stand.pool,
        Operation::Upload(upload("a", &stand.outside("source"))),
    )
    .unwrap();
    for (operation, volumes) in [
        (full("b", 8 * MIB), vec!["a", "b"]),
        (clone("a", "c", CloneMethod::Copy), vec!["a", "b", "c"]),
    ] {
        let cancel = CancelToken::new();
        let sink = MappedProgress {
            update: |progress: Progress| {
                if progress.done_bytes > 2 * MIB {
                    cancel.cancel();
                }
            },
            caller: &Silent,
        };
        let job = stand.pool.submit(operation, at_rate(32 * MIB)).unwrap();
        let id = job.id();
        let stopped = job.run(OnStop::Interrupt, Control::new(&cancel, &sink));
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Interrupted);
        let found = stand.pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!(found.interrupted.len(), 1);
        assert_eq!(found.interrupted[0].allocated_bytes, 8 * MIB);
        assert_eq!(names(&stand.pool).len(), volumes.len() - 1);
        run(stand.pool.resume(id).unwrap()).unwrap();
        assert_eq!(names(&stand.pool), volumes);
        stand.assert_at_rest();
    }
    assert!(stand.read("b") == vec![0; 8 * MIB as usize]);
    assert!(stand.read("c") == noise(8 * MIB));
}

#[test]
fn upload_of_a_source_that_loses_data_meanwhile_shows_no_old_data() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    stand.fill();
    let source = stand.outside("source");
    let file = File::create(&source).unwrap();
    file.write_all_at(&vec![1; 12 << 20], 4 * MIB).unwrap();
    let operation = Operation::Upload(upload("b", &source));
    let job = stand.pool.submit(operation, at_rate(8 * MIB)).unwrap();
    let begun = AtomicBool::new(false);
    thread::scope(|scope| {
        let job = scope.spawn(|| {
            let sink = |progress: Progress| {
                if progress.done_bytes > 5 * MIB {
                    begun.store(true, Ordering::Relaxed);
                }
            };
            job.run(OnStop::Cancel, Control::new(&CancelToken::new(), &sink))
        });
        while !begun.load(Ordering::Relaxed) && !job.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut punch = command::tool("fallocate");
        punch.args(["-p", "-o", "14MiB", "-l", "2MiB"]).arg(&source);
        command::must(&mut punch);
        job.join().unwrap().unwrap();
    });
    let read = stand.read("b");
    assert!(!read.contains(&0xee), "data of an earlier volume");
    assert!(read[4 << 20..13 << 20].iter().all(|&byte| byte == 1));
    stand.assert_at_rest();
}

#[test]
fn killed_definition_is_made_again() {
    require!(requires::tool("sgdisk"));
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    // Of a whole table, what a killed process has written: the backup alone, then both copies.
    for (number, kept) in [(0, 1 << 20..1 << 20), (1, 512..1 << 20)]
        .into_iter()
        .enumerate()
    {
        let (_, kept) = kept;
        blank(&disk, DISK_BYTES);
        let state = directory.path().join(format!("state-{number}"));
        drop(define(&disk, Some(&state), false).unwrap());
        let file = File::options().read(true).write(true).open(&disk).unwrap();
        let mut head = vec![0; 1 << 20];
        file.read_exact_at(&mut head, 0).unwrap();
        let mut partial = vec![0; 1 << 20];
        partial[kept.clone()].copy_from_slice(&head[kept]);
        file.write_all_at(&partial, 0).unwrap();
        let state = directory.path().join(format!("state-{number}-again"));
        let pool = define(&disk, Some(&state), false).unwrap();
        perform(&pool, create("a", MIB, Preallocation::Full)).unwrap();
        assert_sgdisk_clean(&disk);
        fs::remove_file(&disk).unwrap();
    }
}

#[test]
fn jobs_are_not_done_on_another_disk() {
    require!(requires::tool("sgdisk"));
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one.img", "other.img"].map(|name| directory.path().join(name));
    let state = directory.path().join("state");
    blank(&one, DISK_BYTES);
    blank(&other, DISK_BYTES);
    let pool = define(&one, Some(&state), false).unwrap();
    perform(&pool, create("a", 8 * MIB, Preallocation::Full)).unwrap();
    let job = pool
        .submit(wipe("a", WipeMethod::Zero), at_rate(MIB))
        .unwrap();
    let id = job.id();
    let cancel = CancelToken::new();
    cancel.cancel();
    job.run(OnStop::Interrupt, Control::new(&cancel, &Silent))
        .unwrap_err();
    let refused = define(&other, Some(&state), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    assert_eq!(pool.cancel(id).unwrap().state, JobState::Cancelled);
    drop(define(&other, Some(&state), false).unwrap());
}

#[test]
fn disk_whose_image_became_shorter_is_an_error_with_its_name() {
    require!(requires::tool("sgdisk"));
    let stand = Stand::new();
    perform(&stand.pool, full("a", 40 * MIB)).unwrap();
    let file = File::options().write(true).open(stand.disk()).unwrap();
    file.set_len(20 * MIB).unwrap();
    let error = stand.pool.volumes().err().map(|error| error.to_string());
    // The volume ends past the disk: the table is not that of this disk.
    let download = download("a", &stand.outside("target"));
    let failed = perform(&stand.pool, Operation::Download(download)).unwrap_err();
    assert!(
        failed.to_string().contains("disk.img"),
        "{failed} {error:?}"
    );
    assert!(!stand.outside("target").exists());
}
