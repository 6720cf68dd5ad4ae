//! The guarantee of [`Assign::Require`] for metadata: no write whose error cannot be reported fails
//! because a layer below is full.
//!
//! The device between two levels records every write that found no space. The level below has
//! almost no space left; every operation above either fails itself, or is written back later.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_blockdev::{Device, Geometry, RangeStatus, Request};
use extant_ext4::{
    Assign, File, Filesystem, NewKind, NewNode, Node, Options, RenameMode, XattrMode,
};
use extant_space::{ByteRange, ErrorKind, FallocateMode, Result, SpaceFile};
use extant_testkit::{require, requires};

use crate::full::fill;
use crate::program;
use crate::tower::{Tower, assert_clean, loop_over};

const KIB: u64 = 1 << 10;
const SIZES: [u64; 2] = [128, 64];
/// Space left below, KiB.
const LEFT: [u64; 4] = [0, 64, 512, 4096];
const OPERATIONS: u32 = 400;
const SEEDS: u64 = 3;

/// Notes writes that found no space.
struct Watched {
    below: Arc<dyn Device>,
    without_space: AtomicU64,
}

impl Watched {
    fn failures(&self) -> u64 {
        self.without_space.load(Ordering::Relaxed)
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.below.submit(requests);
        for request in requests {
            let is_write = matches!(request.operation.name(), "write" | "write zeroes" | "flush");
            if is_write
                && let Some(Err(error)) = request.result()
                && error.kind() == ErrorKind::NoSpace
            {
                self.without_space.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.below.status(range, visit)
    }
}

fn options(assign: Assign) -> Options {
    Options {
        assign,
        // A commit starts only when the test requests it.
        commit_interval: Duration::from_secs(3600),
        ..Options::default()
    }
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// Random operations that need blocks of metadata of every kind.
struct Script {
    random: fastrand::Rng,
    directories: Vec<Node>,
    files: Vec<(usize, Vec<u8>, File)>,
    made: u32,
}

impl Script {
    fn new(root: Node, seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            directories: vec![root],
            files: Vec::new(),
            made: 0,
        }
    }

    fn name(&mut self) -> Vec<u8> {
        self.made += 1;
        format!("{:0>200}", self.made).into_bytes()
    }

    fn step(&mut self) -> Result<()> {
        let parent = self.random.usize(..self.directories.len());
        let name = self.name();
        match self.random.u32(..10) {
            0 => {
                let made = self.directories[parent].create(&name, &new(NewKind::Directory))?;
                self.directories.push(made);
                Ok(())
            }
            1 => {
                let target = vec![b't'; 500];
                let kind = NewKind::SymbolicLink(&target);
                self.directories[parent].create(&name, &new(kind)).map(drop)
            }
            2..=4 => {
                let made = self.directories[parent].create(&name, &new(NewKind::Regular))?;
                self.files.push((parent, name, made.file()?));
                Ok(())
            }
            _ if self.files.is_empty() => Ok(()),
            choice => {
                let at = self.random.usize(..self.files.len());
                self.change(choice, at, name)
            }
        }
    }

    fn change(&mut self, choice: u32, at: usize, new_name: Vec<u8>) -> Result<()> {
        let place = self.random.u64(..1024) * 8192;
        let (parent, name, file) = &mut self.files[at];
        let piece = ByteRange::at(place, 4096).unwrap();
        match choice {
            5 => file.write_at(&[1; 4096], place),
            6 => file.fallocate(
                FallocateMode::Allocate,
                ByteRange::at(place, 64 * KIB).unwrap(),
            ),
            7 => file.fallocate(FallocateMode::PunchHole, piece),
            8 => {
                let value = vec![2; 3000];
                file.node().set_xattr(b"user.large", &value, XattrMode::Set)
            }
            _ => {
                let directory = &self.directories[*parent];
                directory.rename(name, directory, &new_name, RenameMode::NoReplace)?;
                *name = new_name;
                if self.random.bool() {
                    let (parent, name, file) = self.files.swap_remove(at);
                    drop(file);
                    self.directories[parent].unlink(&name)?;
                }
                Ok(())
            }
        }
    }
}

#[test]
fn accepted_writes_are_written_back_when_the_layer_below_is_full() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let ground = Tower::build(&SIZES);
    let (mut done, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        for left in LEFT {
            let what = format!("seed {seed}, {left} KiB left");
            let tower = Tower::open(Arc::new(ground.snapshot()), 1, Assign::Require);
            let device = Arc::new(Watched {
                below: loop_over(tower.lowest()),
                without_space: AtomicU64::new(0),
            });
            let inner = Filesystem::open(device.clone(), options(Assign::Require)).unwrap();
            fill(tower.lowest(), left * KIB);
            let mut script = Script::new(inner.root().unwrap(), seed);
            for number in 0..OPERATIONS {
                let before = device.failures();
                match script.step() {
                    Ok(()) => {
                        assert_eq!(device.failures(), before, "operation {number}, {what}");
                        done += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
                        refused += 1;
                    }
                }
                if number % 50 == 49 {
                    let before = device.failures();
                    inner
                        .sync()
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(device.failures(), before, "sync after {number}, {what}");
                }
            }
            drop(script);
            let before = device.failures();
            inner
                .close()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(device.failures(), before, "close, {what}");
            assert_clean(&*device);
            drop(device);
            tower.close_clean();
        }
    }
    assert!(
        done > 100 && refused > 100,
        "{done} done, {refused} refused"
    );
}

#[test]
fn opening_without_space_for_the_metadata_is_no_space() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let tower = Tower::open(Arc::new(Tower::build(&SIZES)), 1, Assign::Require);
    fill(tower.lowest(), 0);
    let open = || Filesystem::open(loop_over(tower.lowest()), options(Assign::Require));
    assert_eq!(open().unwrap_err().kind(), ErrorKind::NoSpace);
    tower
        .lowest()
        .filesystem
        .root()
        .unwrap()
        .unlink(b"filler")
        .unwrap();
    tower.lowest().filesystem.sync().unwrap();
    open().unwrap().close().unwrap();
    tower.close_clean();
}

#[test]
fn blocks_allocated_before_are_written_though_the_map_gets_no_block_below() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let sizes = [160, 128, 96];
    let size = 16 << 20;
    let tower = Tower::open(Arc::new(Tower::build(&sizes)), sizes.len(), Assign::Require);
    let top = tower.top();
    let range = ByteRange::new(0, size);
    top.file.fallocate(FallocateMode::Allocate, range).unwrap();
    fill(tower.lowest(), 0);
    program::run(&top.file, size).unwrap();
    program::assert_holds(&top.file, size, program::PASSES);
    tower.close_clean();
}
