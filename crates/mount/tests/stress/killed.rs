//! `kill -9` of the server during operations: synced data survives.
//!
//! Workers write, sync, rename and remove, and keep a log outside the mount, while a build, a clone
//! and tar run concurrently. The remaining image is replayed twice, on copies: by us and by the
//! kernel.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use extant_testkit::command::{run, tool};
use extant_testkit::fuse_rings;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::{require, requires, seeds};
use fastrand::Rng;

use crate::log::{Content, Known, Log};
use crate::programs::{make_repository, within};
use crate::server::{Ground, Served, can_mount};
use crate::{project, tree};

const WORKERS: u64 = 3;
const FILES_MAX: usize = 60;
/// Longer than anything takes that does not hang.
const PATIENCE_SECONDS: &str = "60";

/// A worker that writes and syncs until the server is dead.
struct Worker {
    root: PathBuf,
    /// Relative to the root.
    place: PathBuf,
    rng: Rng,
    log: Log,
    made: u64,
}

impl Worker {
    fn new(root: &Path, seed: u64, number: u64) -> Self {
        let place = PathBuf::from(format!("worker{number}"));
        fs::create_dir(root.join(&place)).unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        Self {
            root: root.to_owned(),
            place,
            rng: Rng::with_seed(seed * 100 + number),
            log: Log::default(),
            made: 0,
        }
    }

    /// Ends with the first error, which the kill makes.
    fn work(mut self) -> Log {
        while self.step().is_ok() {}
        self.log
    }

    fn step(&mut self) -> io::Result<()> {
        let files = self.log.files.len();
        match self.rng.u32(0..10) {
            _ if files == 0 => self.make(),
            0..4 if files < FILES_MAX => self.make(),
            0..6 => self.rewrite(),
            6..8 => self.append(),
            8 => self.rename(),
            _ => self.remove(),
        }
    }

    fn new_name(&mut self) -> PathBuf {
        self.made += 1;
        self.place.join(format!("f{}", self.made))
    }

    fn content(&mut self) -> Content {
        let most = *self.rng.choice([100, 5000, 300_000].iter()).expect("some");
        Content {
            seed: self.rng.u64(..),
            length: self.rng.usize(1..most),
        }
    }

    fn make(&mut self) -> io::Result<()> {
        let (name, content) = (self.new_name(), self.content());
        let file = File::create_new(self.root.join(&name))?;
        file.write_all_at(&content.bytes(), 0)?;
        self.sync(&file)?;
        self.log.files.push(Known::new(&name, content));
        Ok(())
    }

    /// Other bytes in the same place.
    fn rewrite(&mut self) -> io::Result<()> {
        let index = self.rng.usize(0..self.log.files.len());
        let seed = self.rng.u64(..);
        let content = Content {
            seed,
            ..self.log.files[index].old
        };
        let from = self.rng.usize(0..content.length);
        let file = self.open(index)?;
        self.log.files[index].new = content;
        // In two parts, so that a kill may happen between.
        let bytes = content.bytes();
        file.write_all_at(&bytes[from..], from as u64)?;
        file.write_all_at(&bytes[..from], 0)?;
        self.settle(index, &file)
    }

    fn append(&mut self) -> io::Result<()> {
        let index = self.rng.usize(0..self.log.files.len());
        let old = self.log.files[index].old;
        let content = Content {
            length: old.length + self.rng.usize(1..20_000),
            ..old
        };
        let file = self.open(index)?;
        self.log.files[index].new = content;
        file.write_all_at(&content.bytes()[old.length..], old.length as u64)?;
        self.settle(index, &file)
    }

    fn rename(&mut self) -> io::Result<()> {
        let index = self.rng.usize(0..self.log.files.len());
        let new = self.new_name();
        let old = self.log.files[index].names[0].clone();
        self.log.files[index].names.push(new.clone());
        fs::rename(self.root.join(&old), self.root.join(&new))?;
        let place = File::open(self.root.join(&self.place))?;
        self.sync(&place)?;
        self.log.files[index].names = vec![new];
        self.log.gone.push(old);
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        let index = self.rng.usize(0..self.log.files.len());
        let file = self.log.files.swap_remove(index);
        let name = file.names[0].clone();
        fs::remove_file(self.root.join(&name))?;
        let place = File::open(self.root.join(&self.place))?;
        self.sync(&place)?;
        self.log.gone.push(name);
        Ok(())
    }

    fn open(&self, index: usize) -> io::Result<File> {
        let name = &self.log.files[index].names[0];
        OpenOptions::new().write(true).open(self.root.join(name))
    }

    fn settle(&mut self, index: usize, file: &File) -> io::Result<()> {
        self.sync(file)?;
        let known = &mut self.log.files[index];
        known.old = known.new;
        Ok(())
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        if self.rng.bool() {
            file.sync_all()?
        } else {
            file.sync_data()?
        }
        self.log.syncs += 1;
        Ok(())
    }
}

/// Programs that work on the mount over and over, until they fail.
fn start_programs(root: &Path, repository: &Path) -> Vec<Child> {
    for name in ["project", "clones", "trees"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    project::generate(&root.join("project"));
    tree::generate(&root.join("trees"), 3);
    let url = format!("file://{}", repository.display());
    let start = |directory: &str, script: &str| {
        within(&root.join(directory), "timeout")
            .args([PATIENCE_SECONDS, "sh", "-c", script, "sh", &url])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    vec![
        start("project", "while make -s -j2 && make -s clean; do :; done"),
        start(
            "clones",
            "while git clone -q \"$1\" c && rm -rf c; do :; done",
        ),
        start(
            "trees",
            "while mkdir t && tar c d0 | tar x -C t && sync -f t && rm -rf t; do :; done",
        ),
    ]
}

/// Everything at once, killed at a moment that follows from the seed; the data synced until then.
fn killed(ground: &Ground, repository: &Path, seed: u64) -> Vec<Log> {
    let cache = ["writeback", "no_writeback"][(seed % 2) as usize];
    let transport = [fuse_rings::option(), "no_io_uring"][((seed + seed / 2) % 2) as usize];
    let options = format!("{cache},{transport}");
    let served = Served::new(&ground.image, &ground.place, &options);
    let root = served.path().to_owned();
    let workers: Vec<_> = (0..WORKERS).map(|n| Worker::new(&root, seed, n)).collect();
    let mut programs = start_programs(&root, repository);
    let threads = workers
        .into_iter()
        .map(|worker| thread::spawn(|| worker.work()));
    let threads: Vec<_> = threads.collect();
    let moment = Rng::with_seed(seed).u64(500..3000);
    thread::sleep(Duration::from_millis(moment));
    served.kill();
    for program in &mut programs {
        program.wait().unwrap();
    }
    let logs = threads.into_iter().map(|thread| thread.join().unwrap());
    logs.collect()
}

#[track_caller]
fn judge(logs: &[Log], root: &Path, who: &str, repeat: &str) {
    let wrong: Vec<_> = logs.iter().flat_map(|log| log.judge(root)).collect();
    assert!(
        wrong.is_empty(),
        "after the replay of {who}:\n{}\n{repeat}",
        wrong.join("\n")
    );
}

fn copy(image: &Path, name: &str) -> PathBuf {
    let target = image.with_file_name(name);
    run(tool("cp").arg("--sparse=always").args([image, &target]))
        .unwrap_or_else(|failure| panic!("{failure}"));
    target
}

#[test]
fn kill_of_the_server_loses_nothing_that_was_synced() {
    require!(
        can_mount(),
        requires::tool("make"),
        requires::tool("cc"),
        requires::tool("git"),
        requires::tool("losetup"),
        requires::kernel_filesystem("ext4")
    );
    for seed in seeds::seeds("EXTANT_STRESS_SEEDS", 0..2) {
        let repeat = format!(
            "repeat: EXTANT_STRESS_SEEDS={seed}..{} cargo test -p extant-mount --test stress kill",
            seed + 1
        );
        let ground = Ground::new(256);
        let repository = ground.work.directory("repository");
        make_repository(&repository, 2);
        let logs = killed(&ground, &repository, seed);
        let syncs: u64 = logs.iter().map(|log| log.syncs).sum();
        println!("seed {seed}: killed after {syncs} syncs");
        assert!(
            logs.iter().all(|log| log.syncs > 0),
            "no worker got far;  {repeat}"
        );

        let theirs = copy(&ground.image, "theirs");
        let served = Served::new(&ground.image, &ground.place, "writeback");
        judge(&logs, &ground.place, "ours", &repeat);
        served.end();
        assert_e2fsck_clean(&ground.image);

        let device = LoopDevice::attach(&theirs);
        let mount = Mount::new("ext4", device.path(), &ground.place, "");
        judge(&logs, &ground.place, "the kernel", &repeat);
        mount.unmount();
        drop(device);
        assert_e2fsck_clean(&theirs);
        seeds::counted(1, "kills");
    }
}
