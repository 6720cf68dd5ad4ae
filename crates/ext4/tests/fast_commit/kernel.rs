//! Images that the kernel left with fast commits: we, e2fsck and the kernel itself see the same in
//! them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};
use rustix::fs::{FallocateFlags, fallocate};

use crate::snapshot::Snapshot;
use crate::tree::{Tree, assert_same, host_tree, without_extents};

const SIZE_BYTES: u64 = 32 << 20;
const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// Changes a file and syncs it, together with all earlier changes.
fn sync(anchor: &File) {
    let size = anchor.metadata().unwrap().len();
    anchor.write_all_at(b".", size).unwrap();
    anchor.sync_all().unwrap();
}

/// Another implementation that replays.
#[derive(Clone, Copy, Debug)]
enum Other {
    E2fsck,
    Kernel,
}

/// Image of a scenario whose power fails after the last sync, and its visible state then.
fn left_by(prepare: impl Fn(&Path), scenario: impl Fn(&Path)) -> (Snapshot, Tree) {
    let scratch = Scratch::builder(Filesystem::Ext4FastCommit, SIZE_BYTES)
        // Nothing but a sync commits.
        .mount_options("commit=300")
        .build();
    prepare(scratch.path());
    rustix::fs::syncfs(File::open(scratch.path()).unwrap()).unwrap();
    scenario(scratch.path());
    let image = Snapshot::of_file(scratch.backing_file().unwrap());
    assert!(image.has_fast_commits(), "the kernel wrote no fast commit");
    (image, host_tree(scratch.path()))
}

/// Replays the image of a scenario with the engine, and with the other implementations that handle
/// it correctly.
fn compare(prepare: impl Fn(&Path), scenario: impl Fn(&Path), others: &[Other]) {
    let (image, truth) = left_by(prepare, scenario);
    let ours = image.ours();
    assert_same(&truth, &without_extents(&ours), "existing state and ours");
    assert_same(&ours, &image.ours_read_only(), "ours and read-only");
    for other in others {
        let theirs = match other {
            Other::E2fsck => image.e2fsck(),
            Other::Kernel => image.kernel(),
        };
        assert_same(&ours, &theirs, &format!("ours and that of {other:?}"));
    }
}

/// e2fsck 1.47.0 loses extents of a file that has more than fit the inode.
#[test]
fn writes_are_replayed_as_the_kernel_does() {
    require!(Filesystem::Ext4FastCommit.requirement());
    compare(
        |root| fs::write(root.join("old"), vec![1; 100_000]).unwrap(),
        |root| {
            let file = open(&root.join("old"));
            file.write_all_at(&[2; 50_000], 80_000).unwrap();
            file.sync_data().unwrap();
            file.write_all_at(&[3; 5_000], 1_000_000).unwrap();
            file.sync_all().unwrap();
            for block in 0..40 {
                file.write_all_at(&[4; 4096], 2_000_000 + block * 12_288)
                    .unwrap();
                file.sync_data().unwrap();
            }
        },
        &[Other::Kernel],
    );
}

#[test]
fn holes_and_unwritten_space_are_replayed_as_others_do() {
    require!(Filesystem::Ext4FastCommit.requirement());
    compare(
        |root| fs::write(root.join("old"), vec![1; 1_000_000]).unwrap(),
        |root| {
            let file = open(&root.join("old"));
            let punch = FallocateFlags::PUNCH_HOLE | KEEP;
            fallocate(&file, punch, 100_000, 300_000).unwrap();
            file.sync_all().unwrap();
            fallocate(&file, KEEP, 900_000, 2_000_000).unwrap();
            file.sync_all().unwrap();
            fallocate(&file, FallocateFlags::empty(), 5_000_000, 100_000).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&[5; 20_000], 5_020_000).unwrap();
            file.sync_data().unwrap();
            file.set_len(5_030_000).unwrap();
            file.sync_all().unwrap();
            let cut = open(&root.join("cut"));
            cut.write_all_at(&[7; 60_000], 0).unwrap();
            cut.sync_all().unwrap();
            cut.set_len(10_000).unwrap();
            cut.sync_all().unwrap();
        },
        &[Other::E2fsck, Other::Kernel],
    );
}

#[test]
fn names_are_replayed_as_others_do() {
    require!(Filesystem::Ext4FastCommit.requirement());
    compare(
        |root| {
            for name in ["a", "b", "c", "d", "e"] {
                fs::write(root.join(name), name).unwrap();
            }
            fs::create_dir(root.join("directory")).unwrap();
        },
        |root| {
            let anchor = open(&root.join("anchor"));
            sync(&anchor);
            fs::rename(root.join("a"), root.join("directory/moved")).unwrap();
            fs::rename(root.join("b"), root.join("c")).unwrap();
            sync(&anchor);
            fs::hard_link(root.join("d"), root.join("directory/d2")).unwrap();
            fs::remove_file(root.join("d")).unwrap();
            File::open(root.join("directory/d2"))
                .unwrap()
                .sync_all()
                .unwrap();
            fs::remove_file(root.join("e")).unwrap();
            sync(&anchor);
            // The number of the removed file is used again.
            let new = open(&root.join("new"));
            new.write_all_at(&[9; 9_000], 0).unwrap();
            new.sync_all().unwrap();
            for number in 0..60 {
                let file = open(&root.join(format!("directory/a name of some length {number}")));
                file.write_all_at(&[number; 100], 0).unwrap();
                file.sync_all().unwrap();
            }
        },
        &[Other::E2fsck, Other::Kernel],
    );
}

/// Linux 6.18 gives the new directory too few links, and e2fsck 1.47.0 has no block for the name in
/// it.
#[test]
fn directories_are_replayed() {
    require!(Filesystem::Ext4FastCommit.requirement());
    compare(
        |root| fs::create_dir(root.join("old")).unwrap(),
        |root| {
            let anchor = open(&root.join("anchor"));
            sync(&anchor);
            fs::create_dir(root.join("made")).unwrap();
            let file = open(&root.join("made/file"));
            file.write_all_at(b"x", 0).unwrap();
            file.sync_all().unwrap();
            sync(&anchor);
            fs::remove_dir(root.join("old")).unwrap();
            sync(&anchor);
        },
        &[],
    );
}

/// Linux 6.18 does not mount the image that it wrote here.
#[test]
fn unlinked_open_file_is_gone_after_replay() {
    require!(Filesystem::Ext4FastCommit.requirement());
    compare(
        |root| fs::write(root.join("open"), vec![1; 30_000]).unwrap(),
        |root| {
            let anchor = open(&root.join("anchor"));
            sync(&anchor);
            let file = open(&root.join("open"));
            fs::remove_file(root.join("open")).unwrap();
            file.write_all_at(&[1; 5000], 100_000).unwrap();
            sync(&anchor);
            file.sync_all().unwrap();
            anchor.write_all_at(&[1; 5000], 0).unwrap();
            sync(&anchor);
        },
        &[Other::E2fsck],
    );
}
