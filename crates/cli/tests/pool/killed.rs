//! `kill -9` at random moments of every operation.
//!
//! After each: no incomplete volume has its name, `refresh` finds the files of the killed process,
//! and after a resume or a cancel none of them is left. `EXTANT_KILLS` is the number for each kind
//! of pool (60 by default). An image is clean for e2fsck each time; half of the jobs there run with
//! concurrent waiters for the image.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::tool;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, seeds};
use rustix::process::Signal;

use crate::stand::{in_memory, make_image};
use crate::support::{Answer, MIB, Random, Running, extant, noise, run, wait_until};

const SIZE: u64 = 8 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    Image,
}

struct Stand {
    kind: Kind,
    scratch: Scratch,
    content: Vec<u8>,
    /// The file of an image whose disk has data in a part.
    image: Vec<u8>,
    /// For copies that other programs read.
    aside: Workdir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    CreateImage,
    CloneImage,
    UploadImage,
    GrowImage,
    ShrinkImage,
    MaterializeImage,
    WipeImage,
    Create,
    Clone,
    Upload,
    Replace,
    Download,
    Resize,
    Materialize,
    Wipe,
}

const ALL: [Operation; 15] = [
    Operation::CreateImage,
    Operation::CloneImage,
    Operation::UploadImage,
    Operation::GrowImage,
    Operation::ShrinkImage,
    Operation::MaterializeImage,
    Operation::WipeImage,
    Operation::Create,
    Operation::Clone,
    Operation::Upload,
    Operation::Replace,
    Operation::Download,
    Operation::Resize,
    Operation::Materialize,
    Operation::Wipe,
];

impl Stand {
    fn new(kind: Kind) -> Self {
        let bytes = match kind {
            Kind::Directory => 128 * MIB,
            Kind::Image => 256 * MIB,
        };
        let stand = Self::empty(kind, in_memory(bytes), 128 * MIB);
        fs::write(stand.outside("source"), &stand.content).unwrap();
        let source = stand.outside("source.qcow2");
        run(extant()
            .args(["create", "--preallocation", "off"])
            .arg(&source)
            .arg(SIZE.to_string()))
        .success();
        for write in ["write -P 7 1M 3M", "write -P 9 6M 1000"] {
            let mut command = command::tool("qemu-io");
            command.args(["-f", "qcow2", "-c", write]).arg(&source);
            command::must(&mut command);
        }
        let image = fs::read(&source).unwrap();
        let stand = Self { image, ..stand };
        stand.reset();
        stand
    }

    /// A pool without volumes: a directory, or an image of `bytes`.
    fn empty(kind: Kind, scratch: Scratch, bytes: u64) -> Self {
        let stand = Self {
            kind,
            scratch,
            content: noise(7, SIZE as usize),
            image: Vec::new(),
            aside: Workdir::new(),
        };
        match kind {
            Kind::Directory => fs::create_dir(stand.pool()).unwrap(),
            Kind::Image => make_image(&stand.pool(), bytes),
        }
        stand
    }

    fn pool(&self) -> PathBuf {
        self.scratch.path().join("pool")
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Contents of a volume, read without the pool; `None` if there is none.
    fn read(&self, volume: &str) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Directory => fs::read(self.pool().join(volume)).ok(),
            Kind::Image => {
                let mut cat = extant();
                cat.args(["fs", "cat"]).arg(self.pool()).arg(volume);
                let output = cat.output().unwrap();
                output.status.success().then_some(output.stdout)
            }
        }
    }

    /// Makes a volume like a file outside.
    fn put(&self, file: &Path, volume: &str) {
        match self.kind {
            Kind::Directory => {
                let target = self.pool().join(volume);
                let _ = fs::remove_file(&target);
                let mut copy = command::tool("cp");
                command::must(copy.arg("--sparse=always").arg(file).arg(target));
            }
            Kind::Image => {
                let mut put = extant();
                put.args(["fs", "put"]).arg(self.pool()).arg(file);
                run(put.arg(format!("/{volume}"))).success();
            }
        }
    }

    fn remove(&self, volume: &str) {
        if self.read(volume).is_none() {
            return;
        }
        match self.kind {
            Kind::Directory => fs::remove_file(self.pool().join(volume)).unwrap(),
            Kind::Image => {
                run(extant().args(["fs", "rm"]).arg(self.pool()).arg(volume)).success();
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        match self.kind {
            Kind::Directory => {
                sync(&self.pool());
                free_bytes(&self.pool())
            }
            Kind::Image => run(extant().args(["fs", "df", "--json"]).arg(self.pool()))
                .success()
                .number("/filesystems/0/free_bytes"),
        }
    }

    /// `data` has content, `sparse` none, `old` another one.
    fn reset(&self) {
        let files = [
            ("data", &self.content[..]),
            ("old", b"old"),
            ("image.qcow2", &self.image),
        ];
        for (name, content) in files {
            // The same content of an image may take more space than before: zeros that were holes.
            if name == "image.qcow2" || self.read(name).as_deref() != Some(content) {
                let file = self.outside("content");
                fs::write(&file, content).unwrap();
                self.put(&file, name);
                fs::remove_file(file).unwrap();
            }
        }
        let sparse = self.outside("content");
        fs::File::create(&sparse).unwrap().set_len(SIZE).unwrap();
        self.put(&sparse, "sparse");
        fs::remove_file(sparse).unwrap();
        self.remove("new");
        self.remove("new.qcow2");
        let _ = fs::remove_file(self.outside("target"));
    }

    fn command(&self, operation: Operation) -> std::process::Command {
        let mut command = extant();
        command.arg("vol").arg(match operation {
            Operation::Create | Operation::CreateImage => "create",
            Operation::Clone | Operation::CloneImage => "clone",
            Operation::Upload | Operation::Replace | Operation::UploadImage => "upload",
            Operation::Download => "download",
            Operation::Resize | Operation::GrowImage | Operation::ShrinkImage => "resize",
            Operation::Materialize | Operation::MaterializeImage => "materialize",
            Operation::Wipe | Operation::WipeImage => "wipe",
        });
        command.arg(self.pool());
        match operation {
            Operation::CreateImage => command.args(["new.qcow2", "8MiB"]),
            Operation::CloneImage => command.args(["image.qcow2", "new.qcow2", "--method", "copy"]),
            Operation::UploadImage => command.arg("new.qcow2").arg(self.outside("source.qcow2")),
            Operation::GrowImage => command.args(["image.qcow2", "16MiB"]),
            Operation::ShrinkImage => command.args(["image.qcow2", "5MiB", "--shrink"]),
            Operation::MaterializeImage | Operation::WipeImage => command.arg("image.qcow2"),
            Operation::Create => command.args(["new", "8MiB"]),
            Operation::Clone => command.args(["data", "new", "--method", "copy"]),
            Operation::Upload => command.arg("new").arg(self.outside("source")),
            Operation::Replace => command
                .arg("old")
                .arg(self.outside("source"))
                .arg("--force"),
            Operation::Download => command.arg("data").arg(self.outside("target")),
            Operation::Resize => command.args(["data", "16MiB"]),
            Operation::Materialize => command.arg("sparse"),
            Operation::Wipe => command.arg("data"),
        };
        command.args(["--rate", "64M"]);
        command
    }

    /// The contents are complete: the old or the new ones.
    #[track_caller]
    fn check_nothing_is_half(&self, operation: Operation, is_done: bool) {
        let new = self.read("new");
        let zeros = vec![0; SIZE as usize];
        let data = self.read("data").unwrap();
        match operation {
            Operation::CreateImage
            | Operation::CloneImage
            | Operation::UploadImage
            | Operation::GrowImage
            | Operation::ShrinkImage
            | Operation::MaterializeImage
            | Operation::WipeImage => self.check_images(operation, is_done),
            Operation::Create => assert!(new.is_none() && !is_done || new == Some(zeros)),
            Operation::Clone | Operation::Upload => {
                assert!(new.is_none() && !is_done || new.as_ref() == Some(&self.content));
            }
            Operation::Replace => {
                let old = self.read("old").unwrap();
                assert!(old == b"old" && !is_done || old == self.content);
            }
            Operation::Download => {
                let target = fs::read(self.outside("target")).ok();
                assert!(target.is_none() && !is_done || target.as_ref() == Some(&self.content));
            }
            Operation::Materialize => {
                assert!(self.read("sparse") == Some(zeros));
            }
            Operation::Wipe if is_done => assert!(data == zeros),
            Operation::Resize | Operation::Wipe => {}
        }
        if operation != Operation::Wipe {
            assert!(
                data.starts_with(&self.content),
                "{operation:?} changed data"
            );
        }
    }

    /// A file with the content of a volume, for operations that need one; `None`: there is no such
    /// volume.
    fn copy_of(&self, volume: &str) -> Option<PathBuf> {
        let copy = self.aside.path().join(volume);
        fs::write(&copy, self.read(volume)?).unwrap();
        Some(copy)
    }

    /// QEMU finds no corruption at any time, and no leak in a new image; the disk has its old or
    /// its new content.
    #[track_caller]
    fn check_images(&self, operation: Operation, is_done: bool) {
        let disk = disk_of(&self.outside("source.qcow2"));
        let new = self.copy_of("new.qcow2");
        if let Some(new) = &new {
            assert_eq!(check_code(new), 0);
            match operation {
                Operation::CreateImage => assert!(disk_of(new) == vec![0; SIZE as usize]),
                _ => assert!(disk_of(new) == disk),
            }
        }
        let makes_new = matches!(
            operation,
            Operation::CreateImage | Operation::CloneImage | Operation::UploadImage
        );
        assert!(new.is_some() || !(makes_new && is_done));
        let image = self.copy_of("image.qcow2").unwrap();
        if operation == Operation::WipeImage {
            // Between the loss of its header and the end it is none.
            if is_done {
                assert_eq!(check_code(&image), 0);
                assert!(disk_of(&image).iter().all(|&byte| byte == 0));
            }
            return;
        }
        let code = check_code(&image);
        assert!(
            code == 0 || code == LEAKS && !is_done,
            "{operation:?}: {code}"
        );
        let found = disk_of(&image);
        let kept = found.len().min(disk.len());
        assert!(found[..kept] == disk[..kept] && found[kept..].iter().all(|&byte| byte == 0));
        match (operation, is_done) {
            (Operation::GrowImage, true) => assert_eq!(found.len() as u64, 2 * SIZE),
            (Operation::ShrinkImage, true) => assert_eq!(found.len() as u64, 5 * MIB),
            (Operation::GrowImage | Operation::ShrinkImage, false) => {}
            _ => assert_eq!(found.len() as u64, SIZE),
        }
    }

    /// After the job was cancelled: no leak, and the size that it had, unless it was cut off in one
    /// step.
    #[track_caller]
    fn check_image_is_freed(&self, operation: Operation) {
        let image = self.copy_of("image.qcow2").unwrap();
        assert_eq!(check_code(&image), 0, "{operation:?}");
        let length = disk_of(&image).len() as u64;
        match operation {
            Operation::ShrinkImage => assert!(length == SIZE || length == 5 * MIB),
            _ => assert_eq!(length, SIZE, "{operation:?}"),
        }
    }

    /// Makes a job yield again and again.
    fn look_for(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            run(extant().args(["vol", "list"]).arg(self.pool())).success();
        }
    }

    /// Neither jobs nor reservations nor unfinished files; space is that of the volumes.
    #[track_caller]
    fn check_at_rest(&self) {
        let info = run(extant().args(["pool", "info", "--json"]).arg(self.pool())).success();
        assert_eq!(info.number("/jobs"), 0, "{info}");
        assert_eq!(info.number("/space/reserved_bytes"), 0, "{info}");
        match self.kind {
            Kind::Directory => {
                let work = fs::read_dir(self.pool().join(".extant/work")).unwrap();
                assert_eq!(work.count(), 0);
            }
            Kind::Image => {
                let mut list = extant();
                list.args(["fs", "ls", "-a"]).arg(self.pool());
                let work = run(list.arg("/.extant/work")).success();
                assert_eq!(
                    work.stdout.split_whitespace().collect::<Vec<_>>(),
                    [".", ".."]
                );
                assert_e2fsck_clean(&self.pool());
            }
        }
        let left = fs::read_dir(self.scratch.path()).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            ![
                "pool",
                "pool.extant",
                "source",
                "source.qcow2",
                "target",
                "lost+found",
            ]
            .iter()
            .any(|known| name == *known)
        });
        assert_eq!(left.count(), 0);
    }
}

/// The exit status of `qemu-img check` for lost clusters.
const LEAKS: i32 = 3;

#[track_caller]
fn check_code(image: &Path) -> i32 {
    let mut command = command::tool("qemu-img");
    command.args(["check", "-q", "-f", "qcow2"]).arg(image);
    let output = command::run_any_status(&mut command).unwrap();
    output.status.code().expect("an exit status")
}

/// Guest's disk in an image.
fn disk_of(image: &Path) -> Vec<u8> {
    let layer = extant_image::open_path(
        image,
        Some(extant_image::Format::Qcow2),
        extant_image::ReferencedFiles::Ignore,
    )
    .unwrap();
    let mut bytes = vec![0; layer.virtual_bytes() as usize];
    layer.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn free_bytes(directory: &Path) -> u64 {
    let space = rustix::fs::statvfs(directory).unwrap();
    space.f_bfree * space.f_frsize
}

fn refresh(pool: &Path, more: &[&str]) -> Answer {
    run(extant()
        .args(["pool", "refresh", "--json"])
        .arg(pool)
        .args(more))
    .success()
}

#[test]
fn process_killed_at_any_moment_leaves_nothing_half_and_nothing_lost() {
    require!(
        Filesystem::Ext4.requirement(),
        tool("qemu-img"),
        tool("qemu-io")
    );
    kill(Kind::Directory);
}

#[test]
fn process_killed_at_any_moment_leaves_nothing_half_in_an_image_either() {
    require!(
        Filesystem::Ext4.requirement(),
        tool("qemu-img"),
        tool("qemu-io")
    );
    kill(Kind::Image);
}

fn kill(kind: Kind) {
    let kills = seeds::number("EXTANT_KILLS", 60) as usize;
    let mut random = Random::seeded("--test pool killed");
    let stand = Stand::new(kind);
    let pool = stand.pool();
    // Made now, so that its blocks count before.
    run(extant()
        .args(["vol", "create"])
        .arg(&pool)
        .args(["new", "1MiB"]))
    .success();
    stand.reset();
    let mut interrupted = 0;
    for round in 0..kills {
        let operation = ALL[round % ALL.len()];
        let free_before = stand.free_bytes();
        let delay = Duration::from_millis(random.below(220));
        let running = Running::start(&mut stand.command(operation));
        if kind == Kind::Image && random.below(2) == 0 {
            stand.look_for(delay)
        } else {
            sleep(delay)
        }
        let (answer, _) = running.stop(Signal::KILL);
        let was_killed = answer.signal.is_some();
        assert!(was_killed || answer.code == Some(0), "{answer}");
        stand.check_nothing_is_half(operation, !was_killed);

        let found = refresh(&pool, &[]);
        let jobs = found.json()["interrupted"].as_array().unwrap().len();
        assert!(jobs <= usize::from(was_killed), "{found}");
        interrupted += jobs;
        let is_resumed = jobs == 1 && random.below(2) == 0;
        if is_resumed {
            let id = found.number("/interrupted/0/job").to_string();
            run(extant().args(["job", "resume"]).arg(&pool).arg(&id)).success();
            stand.check_nothing_is_half(operation, true);
        } else if jobs == 1 {
            let cancelled = refresh(&pool, &["--cancel"]);
            assert_eq!(cancelled.json()["cancelled"].as_array().unwrap().len(), 1);
            stand.check_nothing_is_half(operation, false);
            let data = stand.read("data").unwrap().len() as u64;
            assert_eq!(data, SIZE, "{operation:?} was cancelled");
            stand.check_image_is_freed(operation);
        }
        stand.check_at_rest();
        if stand
            .read("data")
            .is_some_and(|data| data.len() as u64 != SIZE)
        {
            let mut shrink = extant();
            shrink.args(["vol", "resize", "--shrink"]).arg(&pool);
            run(shrink.args(["data", "8MiB"])).success();
        }
        stand.reset();
        // Records of jobs take a block or two each.
        wait_until(&format!("{operation:?}: the space comes back"), || {
            stand.free_bytes() + 64 * 1024 >= free_before
        });
    }
    seeds::counted(kills, "kills");
    eprintln!("{interrupted} jobs were interrupted");
    assert!(interrupted > 0, "no job was killed at work");
}

/// Freed blocks count when the journal has committed.
fn sync(directory: &Path) {
    let directory = fs::File::open(directory).unwrap();
    rustix::fs::syncfs(&directory).unwrap();
}

#[test]
fn wipe_resumes_where_it_was_killed() {
    require!(Filesystem::Ext4.requirement());
    for kind in [Kind::Directory, Kind::Image] {
        kill_wipe(kind);
    }
}

fn kill_wipe(kind: Kind) {
    const SIZE: u64 = 400 * MIB;
    /// Bytes that a wipe makes durable at a time.
    const PIECE: u64 = 256 * MIB;
    let stand = Stand::empty(kind, in_memory(640 * MIB), 500 * MIB);
    let pool = stand.pool();
    match kind {
        Kind::Directory => fs::write(pool.join("data"), vec![7; SIZE as usize]).unwrap(),
        Kind::Image => {
            let mut put = extant();
            put.args(["fs", "put"]).arg(&pool).args(["-", "/data"]);
            give(&mut put, &vec![7; SIZE as usize]);
        }
    }
    let mut wipe = extant();
    wipe.args(["vol", "wipe"]).arg(&pool).arg("data");
    let running = Running::start(wipe.args(["--rate", "128M"]));
    let shown = || {
        let answer = run(extant().args(["job", "show", "--json"]).arg(&pool).arg("1"));
        let json = serde_json::from_str::<serde_json::Value>(&answer.stdout).ok();
        json.and_then(|job| job["progress"]["done_bytes"].as_u64())
    };
    wait_until("the second piece", || shown() > Some(PIECE));
    running.stop(Signal::KILL);
    assert!(stand.read("data").unwrap().contains(&7));
    let mut resume = extant();
    resume.args(["job", "resume"]).arg(&pool).arg("1");
    let answer = run(resume.args(["--progress", "json"]));
    assert_eq!(answer.code, Some(0), "{answer}");
    let lines = answer.stderr.lines();
    let mut lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let first = lines.find(|line| line["phase"] == "write").unwrap();
    assert!(
        first["done_bytes"].as_u64() >= Some(PIECE),
        "{kind:?}: {answer}"
    );
    let content = stand.read("data").unwrap();
    assert_eq!(content.len() as u64, SIZE);
    assert!(content == vec![0; SIZE as usize]);
    if kind == Kind::Image {
        assert_e2fsck_clean(&pool);
    }
}

/// Runs `command` with `bytes` on its standard input.
#[track_caller]
fn give(command: &mut std::process::Command, bytes: &[u8]) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success());
}
