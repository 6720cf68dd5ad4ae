//! The operations that sequences consist of, and the tree on which they are done.

use extant_ext4::RenameMode::{self, Exchange, NoReplace, Replace, Whiteout};
use extant_space::FallocateMode::{self, Allocate, AllocateKeepSize, CollapseRange, InsertRange};
use extant_space::SyncMode;
use extant_testkit::exhaustive::Move;

use crate::step::Kind::{Directory, Regular, SymbolicLink};
use crate::step::Step::{self, *};
use crate::step::{Kind, Target};

/// One block.
const K: u64 = 1024;

/// The root directory, as paths of steps name it.
const ROOT: &str = "";

/// The tree at the beginning: `/foo` has data, a hole, unwritten blocks, and data in the middle of
/// its last block.
pub fn tree() -> Vec<Step> {
    vec![
        Create("/A".into(), Directory),
        Create("/B".into(), Directory),
        Create("/foo".into(), Regular),
        Write(at("/foo"), 0, 2560),
        Fallocate(at("/foo"), Allocate, 4 * K, 2 * K),
        Write(at("/foo"), 7 * K, 700),
        SetXattr(at("/foo"), "user.a", 40),
        Create("/A/bar".into(), Regular),
        Write(at("/A/bar"), 0, 1500),
        SyncAll,
    ]
}

/// One operation, or one done by several calls.
pub struct Operation {
    pub steps: Vec<Step>,
    /// The file that it is about, under its name afterwards, if it has one.
    file: Option<Target>,
    /// Those whose entries it changes.
    directories: Vec<&'static str>,
}

/// Every operation with every sync.
pub fn moves() -> Vec<Move<Step>> {
    operations().iter().flat_map(Operation::moves).collect()
}

pub fn operations() -> Vec<Operation> {
    let mut all = names();
    all.extend(renames());
    all.extend(data());
    all.extend(allocations());
    all.extend(attributes());
    all.extend(unnamed());
    all
}

impl Operation {
    fn new(steps: Vec<Step>, file: Option<Target>, directories: &[&'static str]) -> Self {
        Self {
            steps,
            file,
            directories: directories.to_vec(),
        }
    }

    /// Nothing, fsync and fdatasync of the file, fsync of each directory, or sync.
    pub fn moves(&self) -> Vec<Move<Step>> {
        let mut syncs = vec![None];
        if let Some(file) = &self.file {
            syncs.push(Some(Sync(file.clone(), SyncMode::All)));
            syncs.push(Some(Sync(file.clone(), SyncMode::Data)));
        }
        for directory in &self.directories {
            syncs.push(Some(Sync(at(directory), SyncMode::All)));
        }
        syncs.push(Some(SyncAll));
        let with = |sync| Move {
            steps: self.steps.clone(),
            sync,
        };
        syncs.into_iter().map(with).collect()
    }
}

fn at(path: &str) -> Target {
    Target::At(path.into())
}

/// The directory that a name is in.
fn above(path: &'static str) -> &'static str {
    path.rsplit_once('/').expect("an absolute path").0
}

/// An operation on a file that changes no entry.
fn on(path: &str, step: impl Fn(Target) -> Step) -> Operation {
    Operation::new(vec![step(at(path))], Some(at(path)), &[])
}

fn create(path: &'static str, kind: Kind) -> Operation {
    // A sync of a symbolic link opens the directory in practice.
    let file = (!matches!(kind, SymbolicLink(_))).then(|| at(path));
    Operation::new(vec![Create(path.into(), kind)], file, &[above(path)])
}

fn link(from: &'static str, to: &'static str) -> Operation {
    let step = Link(at(from), to.into());
    Operation::new(vec![step], Some(at(to)), &[above(to)])
}

fn names() -> Vec<Operation> {
    let unlink = |path| Operation::new(vec![Unlink(String::from(path))], None, &[above(path)]);
    let rmdir = |path| {
        let step = RemoveDirectory(String::from(path));
        Operation::new(vec![step], None, &[above(path)])
    };
    vec![
        create("/new", Regular),
        create("/A/new", Regular),
        create("/C", Directory),
        create("/A/C", Directory),
        create("/new", SymbolicLink(20)),
        create("/A/new", SymbolicLink(500)),
        link("/foo", "/new"),
        link("/foo", "/A/new"),
        link("/A/bar", "/new"),
        link("/new", "/A/new"),
        unlink("/foo"),
        unlink("/A/bar"),
        unlink("/new"),
        unlink("/A/new"),
        rmdir("/B"),
        rmdir("/C"),
    ]
}

fn rename(from: &'static str, to: &'static str, mode: RenameMode) -> Operation {
    let mut directories = vec![above(from)];
    if above(to) != above(from) {
        directories.push(above(to));
    }
    let step = Rename(from.into(), to.into(), mode);
    Operation::new(vec![step], Some(at(to)), &directories)
}

fn renames() -> Vec<Operation> {
    let whiteout = Whiteout { uid: 0, gid: 0 };
    vec![
        rename("/foo", "/new", Replace),
        rename("/foo", "/A/new", Replace),
        rename("/foo", "/A/bar", Replace),
        rename("/A/bar", "/foo", Replace),
        rename("/new", "/foo", Replace),
        rename("/A/new", "/A/bar", Replace),
        rename("/A", "/C", Replace),
        rename("/A", "/B", Replace),
        rename("/B", "/A/C", Replace),
        rename("/foo", "/new", NoReplace),
        rename("/A/bar", "/B/new", NoReplace),
        rename("/foo", "/A/bar", Exchange),
        rename("/A", "/B", Exchange),
        rename("/foo", "/B", Exchange),
        rename("/foo", "/new", whiteout),
        rename("/A/bar", "/foo", whiteout),
    ]
}

/// Writes into data, holes, unwritten blocks and behind the end; truncates.
fn data() -> Vec<Operation> {
    let write = |path, offset, length| on(path, |file| Write(file, offset, length));
    let append = |path, length| on(path, |file| Append(file, length));
    let truncate = |path, size| on(path, |file| Resize(file, size));
    vec![
        write("/foo", 0, 1024),
        write("/foo", 100, 1300),
        write("/foo", 3 * K, 900),
        write("/foo", 4 * K + 100, 600),
        write("/foo", 12 * K, 500),
        append("/foo", 700),
        write("/A/bar", 1000, 2000),
        append("/A/bar", 2000),
        write("/new", 0, 3000),
        append("/new", 100),
        truncate("/foo", 0),
        truncate("/foo", 1500),
        truncate("/foo", 20_000),
        truncate("/A/bar", 3000),
    ]
}

/// Every mode over data, a hole and unwritten blocks, and those that reach behind the end.
fn allocations() -> Vec<Operation> {
    use FallocateMode::{WriteZeroes, ZeroRange, ZeroRangeKeepSize};
    let fallocate = |path, mode, range: std::ops::Range<u64>| {
        let length = range.end - range.start;
        on(path, |file| Fallocate(file, mode, range.start, length))
    };
    let inside = FallocateMode::ALL.map(|mode| match mode {
        CollapseRange | InsertRange => fallocate("/foo", mode, K..3 * K),
        _ => fallocate("/foo", mode, 1500..5500),
    });
    let behind = [
        Allocate,
        AllocateKeepSize,
        ZeroRange,
        ZeroRangeKeepSize,
        WriteZeroes,
    ]
    .map(|mode| fallocate("/foo", mode, 7 * K + 300..12 * K));
    let mut all: Vec<_> = inside.into_iter().chain(behind).collect();
    all.push(fallocate("/new", Allocate, 0..3 * K));
    all
}

/// Extended attributes in the inode and in a block, and permissions.
fn attributes() -> Vec<Operation> {
    let set = |path, name, length| on(path, |file| SetXattr(file, name, length));
    vec![
        set("/foo", "user.a", 30),
        set("/foo", "user.b", 600),
        set("/A/bar", "user.b", 600),
        set("/A", "user.a", 30),
        on("/foo", |file| RemoveXattr(file, "user.a")),
        on("/foo", |file| RemoveXattr(file, "user.b")),
        on("/foo", |file| SetPermissions(file, 0o600)),
    ]
}

/// Files without a name that are open at the cut, or get one.
fn unnamed() -> Vec<Operation> {
    let held = |slot| Target::Held(slot);
    let tmpfile = || vec![CreateUnnamed(0), Write(held(0), 0, 2000)];
    let mut named = tmpfile();
    named.push(Link(held(0), "/new".into()));
    vec![
        Operation::new(tmpfile(), Some(held(0)), &[]),
        Operation::new(named, Some(held(0)), &[ROOT]),
        Operation::new(
            vec![Hold("/foo".into(), 1), Unlink("/foo".into())],
            Some(held(1)),
            &[ROOT],
        ),
        Operation::new(
            vec![
                Hold("/A/bar".into(), 1),
                Rename("/foo".into(), "/A/bar".into(), Replace),
            ],
            Some(held(1)),
            &[ROOT, "/A"],
        ),
    ]
}
