//! Fast commits that we write: the kernel, e2fsck and the engine replay them to the synced state.

use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Filesystem, FollowLast, NewKind, Node, Options, RenameMode};
use extant_jbd2::{JournalLocation, Recovery};
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::scratch::Filesystem as Kind;
use extant_testkit::{require, requires};

use crate::made::{journal_place, mke2fs, node};
use crate::snapshot::Snapshot;
use crate::tree::{Tree, assert_same, tree};

const FORMATS: [&str; 3] = [
    "-t ext4 -b 4096 -O fast_commit",
    "-t ext4 -O fast_commit -b 1024 -J size=4",
    "-t ext4 -O fast_commit,^metadata_csum,^64bit,^orphan_file -b 2048 -J size=8",
];

/// An open file system, and its image after a power cut now.
struct Open {
    device: Arc<MemoryDevice>,
    fs: Filesystem,
    journal: JournalLocation,
}

impl Open {
    fn new(format: &str) -> Self {
        let device = Arc::new(mke2fs(format, 32));
        let journal = journal_place(&device);
        // Nothing but a sync commits.
        let options = Options {
            commit_interval: Duration::from_secs(10_000),
            ..Options::default()
        };
        let fs = Filesystem::open(device.clone(), options).unwrap();
        Self {
            device,
            fs,
            journal,
        }
    }

    fn root(&self) -> Node {
        self.fs.root().unwrap()
    }

    fn create(&self, name: &str) -> Node {
        let new = node(NewKind::Regular);
        self.root().create(name.as_bytes(), &new).unwrap()
    }

    /// The device after a sync, which must have been a fast commit, and the expected visible state.
    #[track_caller]
    fn left(&self, before: u32) -> (Snapshot, Tree) {
        assert_eq!(self.full_commits(), before, "it was committed in full");
        let image = Snapshot::of_device(&self.device.snapshot());
        (image, tree(&self.fs))
    }

    /// The number of the transaction that would be committed next.
    fn full_commits(&self) -> u32 {
        let device = Arc::new(self.device.snapshot());
        let recovery = Recovery::read(device, self.journal.clone()).unwrap();
        recovery.report().next.0
    }
}

fn write(node: &Node, at: u64, bytes: usize, value: u8) {
    let file = node.file().unwrap();
    file.write_at(&vec![value; bytes], at).unwrap();
}

fn sync(node: &Node) {
    node.sync(SyncMode::All).unwrap();
}

#[track_caller]
fn judge(left: &(Snapshot, Tree), what: &str) {
    let (image, seen) = left;
    assert!(image.has_fast_commits());
    assert_same(seen, &image.ours(), &format!("{what}: seen and ours"));
    assert_same(
        seen,
        &image.kernel(),
        &format!("{what}: seen and the kernel's"),
    );
    assert_same(seen, &image.e2fsck(), &format!("{what}: seen and e2fsck's"));
}

#[test]
fn fast_commits_are_replayed_by_every_implementation() {
    require!(Kind::Ext4FastCommit.requirement(), requires::tool("e2fsck"));
    for format in FORMATS {
        let open = Open::new(format);
        let root = open.root();
        let data = open.create("data");
        write(&data, 0, 100_000, 1);
        for name in ["a", "b"] {
            write(&open.create(name), 0, 10_000, 2);
        }
        let other = open.create("other");
        write(&other, 0, 61_440, 9);
        let dir = root.create(b"dir", &node(NewKind::Directory)).unwrap();
        open.fs.sync().unwrap();
        let before = open.full_commits();

        write(&data, 90_000, 30_000, 3);
        sync(&data);
        judge(&open.left(before), &format!("{format}: append"));

        let file = data.file().unwrap();
        let space = |mode, start, end| file.fallocate(mode, ByteRange::new(start, end)).unwrap();
        space(FallocateMode::PunchHole, 20_000, 60_000);
        space(FallocateMode::AllocateKeepSize, 200_000, 300_000);
        sync(&data);
        judge(&open.left(before), &format!("{format}: punch and allocate"));

        // No file here has more extents than fit its inode: see `write.rs` of the engine.
        let file = other.file().unwrap();
        file.fallocate(FallocateMode::ZeroRange, ByteRange::new(20_000, 61_440))
            .unwrap();
        write(&other, 30_000, 5_000, 4);
        file.resize(400_000).unwrap();
        file.sync(SyncMode::Data).unwrap();
        file.resize(31_000).unwrap();
        sync(&other);
        judge(&open.left(before), &format!("{format}: zero, write, cut"));

        let new = open.create("new");
        write(&new, 0, 50_000, 5);
        root.link(b"second", &new).unwrap();
        dir.create(b"inner", &node(NewKind::Regular)).unwrap();
        root.rename(b"a", &dir, b"moved", RenameMode::NoReplace)
            .unwrap();
        root.link(b"b2", &root.lookup(b"b").unwrap()).unwrap();
        root.unlink(b"b").unwrap();
        sync(&new);
        judge(&open.left(before), &format!("{format}: names"));

        write(&new, 60_000, 9_000, 6);
        root.unlink(b"new").unwrap();
        sync(&open.fs.resolve(b"/second", FollowLast::Yes).unwrap());
        judge(&open.left(before), &format!("{format}: more names"));
    }
}

#[test]
fn change_without_a_record_is_committed_in_full() {
    require!(requires::tool("mke2fs"));
    type Act = fn(&Open, &Node);
    let cases: [(&str, Act); 8] = [
        ("a directory", |open, _| {
            drop(open.root().create(b"x", &node(NewKind::Directory)).unwrap());
        }),
        ("no directory", |open, _| {
            open.root().remove_directory(b"dir").unwrap()
        }),
        ("a symbolic link", |open, _| {
            drop(
                open.root()
                    .create(b"x", &node(NewKind::SymbolicLink(b"y")))
                    .unwrap(),
            );
        }),
        ("the last name", |open, _| {
            open.root().unlink(b"file").unwrap()
        }),
        ("an exchange", |open, _| {
            let root = open.root();
            root.rename(b"file", &root, b"dir", RenameMode::Exchange)
                .unwrap();
        }),
        ("a moved directory", |open, _| {
            let root = open.root();
            root.rename(b"dir", &root, b"x", RenameMode::Replace)
                .unwrap();
        }),
        ("a replaced file", |open, _| {
            let root = open.root();
            root.rename(b"anchor", &root, b"file", RenameMode::Replace)
                .unwrap();
        }),
        ("a shift", |_, anchor| {
            let range = ByteRange::new(0, 4096);
            anchor
                .file()
                .unwrap()
                .fallocate(FallocateMode::CollapseRange, range)
                .unwrap();
        }),
    ];
    for (what, act) in cases {
        let open = Open::new(FORMATS[0]);
        let anchor = open.create("anchor");
        write(&anchor, 0, 20_000, 1);
        write(&open.create("file"), 0, 10_000, 2);
        drop(
            open.root()
                .create(b"dir", &node(NewKind::Directory))
                .unwrap(),
        );
        open.fs.sync().unwrap();
        let before = open.full_commits();
        act(&open, &anchor);
        write(&anchor, 30_000, 10, 1);
        sync(&anchor);
        assert_eq!(open.full_commits(), before + 1, "{what}");
        let image = Snapshot::of_device(&open.device.snapshot());
        assert_same(&tree(&open.fs), &image.ours(), what);
    }
}

#[test]
fn full_area_is_emptied_by_a_full_commit() {
    require!(requires::tool("mke2fs"));
    let open = Open::new(FORMATS[1]);
    let file = open.create("file");
    write(&file, 0, 1000, 1);
    open.fs.sync().unwrap();
    let before = open.full_commits();
    for number in 0..600 {
        write(&file, number * 1000, 1000, number as u8);
        file.sync(SyncMode::Data).unwrap();
        if number % 50 == 0 {
            let image = Snapshot::of_device(&open.device.snapshot());
            assert_same(&tree(&open.fs), &image.ours_read_only(), "in between");
        }
    }
    let full = open.full_commits() - before;
    assert!((2..20).contains(&full), "{full} full commits");
}

#[test]
fn unwritten_file_that_is_written_here_and_there_is_there_in_every_hand() {
    require!(Kind::Ext4FastCommit.requirement(), requires::tool("e2fsck"));
    let open = Open::new(FORMATS[0]);
    let file = open.create("file");
    let space = file.file().unwrap();
    let whole = ByteRange::new(0, 4 << 20);
    space.fallocate(FallocateMode::Allocate, whole).unwrap();
    open.fs.sync().unwrap();
    let before = open.full_commits();
    for number in 0..14 {
        write(&file, number * 370 % 1000 * 4096, 4096, number as u8 + 1);
        file.sync(SyncMode::Data).unwrap();
    }
    judge(&open.left(before), "here and there");
}

#[test]
fn new_blocks_and_nodes_are_never_together_in_fast_commits() {
    require!(Kind::Ext4FastCommit.requirement(), requires::tool("e2fsck"));
    let open = Open::new(FORMATS[0]);
    let file = open.create("file");
    open.fs.sync().unwrap();
    for number in 0..20 {
        write(&file, number * 20_480, 4096, number as u8);
        file.sync(SyncMode::Data).unwrap();
        if number % 6 == 0 {
            let image = Snapshot::of_device(&open.device.snapshot());
            let seen = tree(&open.fs);
            assert_same(&seen, &image.ours(), "ours");
            assert_same(&seen, &image.kernel(), "the kernel's");
            assert_same(&seen, &image.e2fsck(), "e2fsck's");
        }
    }
}
