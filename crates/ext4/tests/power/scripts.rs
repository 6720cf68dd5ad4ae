//! Scripts of workloads: together they use every operation of the engine.
//!
//! Scripts hold back with syncs, so that cuts find transactions that matter; `life` determines the
//! promised state.

use extant_ext4::RenameMode::{Exchange, NoReplace, Replace};
use extant_space::FallocateMode::{
    Allocate, AllocateKeepSize, CollapseRange, InsertRange, PunchHole, WriteZeroes, ZeroRange,
    ZeroRangeKeepSize,
};
use extant_space::SyncMode;

use crate::step::Kind::{Device, Directory, Fifo, Regular, SymbolicLink};
use crate::step::Step::{self, *};
use crate::step::Target;

/// One block of the small formats.
const K: u64 = 1024;

fn at(path: &str) -> Target {
    Target::At(path.into())
}

fn create(path: &str) -> Step {
    Create(path.into(), Regular)
}

fn mkdir(path: &str) -> Step {
    Create(path.into(), Directory)
}

fn write(path: &str, offset: u64, length: u64) -> Step {
    Write(at(path), offset, length as usize)
}

fn append(path: &str, length: usize) -> Step {
    Append(at(path), length)
}

fn resize(path: &str, size: u64) -> Step {
    Resize(at(path), size)
}

fn fsync(path: &str) -> Step {
    Sync(at(path), SyncMode::All)
}

fn fdatasync(path: &str) -> Step {
    Sync(at(path), SyncMode::Data)
}

fn rename(from: &str, to: &str, mode: extant_ext4::RenameMode) -> Step {
    Rename(from.into(), to.into(), mode)
}

/// Everything that can have a name is made, linked, moved and removed.
pub fn names() -> Vec<Step> {
    let mut steps = vec![
        mkdir("/a"),
        mkdir("/b"),
        create("/a/file"),
        fsync("/a/file"),
        Create("/a/short".into(), SymbolicLink(20)),
        Create("/a/long".into(), SymbolicLink(500)),
        Create("/b/pipe".into(), Fifo),
        Create("/b/disk".into(), Device(77_777)),
        fsync("/b"),
        Link(at("/a/file"), "/b/other".into()),
        Link(at("/a/long"), "/b/link".into()),
        fsync("/a/file"),
        mkdir("/a/sub"),
        mkdir("/a/sub/deep"),
        create("/a/sub/deep/x"),
        write("/a/sub/deep/x", 0, 1500),
        fsync("/a/sub/deep/x"),
        // A directory with subdirectories moves to another directory, and back over an empty one.
        rename("/a/sub", "/b/moved", NoReplace),
        fsync("/b"),
        mkdir("/a/sub"),
        rename("/b/moved", "/a/sub", Replace),
        SyncAll,
        create("/b/victim"),
        append("/b/victim", 3000),
        fsync("/b/victim"),
        rename("/a/sub/deep/x", "/b/victim", Replace),
        fsync("/b/victim"),
        rename("/a/sub/deep", "/b/victim", Exchange),
        rename("/a", "/b/a", NoReplace),
        SyncAll,
        rename("/b/a/file", "/b/a/renamed", Replace),
        rename("/b/a/renamed", "/b/other", Replace),
        Unlink("/b/a/short".into()),
        Unlink("/b/a/long".into()),
        Unlink("/b/pipe".into()),
        Unlink("/b/disk".into()),
        SyncAll,
        Unlink("/b/link".into()),
        RemoveDirectory("/b/victim".into()),
        mkdir("/c"),
        rename("/b/a/sub", "/c/sub", Replace),
        // Both names were of one file, so that the last rename did nothing.
        Unlink("/b/a/renamed".into()),
        RemoveDirectory("/b/a".into()),
        Reopen,
    ];
    for number in 0..6 {
        steps.push(mkdir(&format!("/c/d{number}")));
        steps.push(create(&format!("/c/d{number}/f")));
        if number % 2 == 1 {
            steps.push(fsync(&format!("/c/d{number}/f")));
        }
    }
    for number in 0..6 {
        steps.push(Unlink(format!("/c/d{number}/f")));
        steps.push(RemoveDirectory(format!("/c/d{number}")));
    }
    steps
}

/// Data into holes, into unwritten and into written blocks, with sizes at odd bytes.
pub fn data() -> Vec<Step> {
    vec![
        create("/f"),
        write("/f", 0, 10 * K),
        fsync("/f"),
        // In place: nothing to commit but times.
        write("/f", 2 * K, 3 * K),
        fdatasync("/f"),
        write("/f", 100, 5000),
        write("/f", 1, 10),
        fdatasync("/f"),
        append("/f", 100),
        append("/f", 700),
        append("/f", 5000),
        fsync("/f"),
        write("/f", 40 * K, 2 * K),
        write("/f", 20 * K + 17, 1),
        fdatasync("/f"),
        create("/u"),
        Fallocate(at("/u"), Allocate, 0, 32 * K),
        fsync("/u"),
        write("/u", 4 * K, 2 * K),
        write("/u", 9 * K + 100, 50),
        fdatasync("/u"),
        write("/u", 3 * K + 500, 8 * K),
        write("/u", 30 * K, 6 * K),
        fsync("/u"),
        resize("/f", 3 * K + 333),
        append("/f", 400),
        resize("/f", 9 * K),
        fsync("/f"),
        resize("/f", 0),
        write("/f", 0, 500),
        fsync("/f"),
        resize("/u", 5 * K + 1),
        resize("/u", 50 * K),
        write("/u", 48 * K, 1000),
        fdatasync("/u"),
        // Blocks that were one file's become another's.
        create("/g"),
        write("/g", 0, 60 * K),
        fsync("/g"),
        Unlink("/g".into()),
        fsync("/u"),
        create("/h"),
        write("/h", 0, 60 * K),
        resize("/h", 20 * K + 3),
        fsync("/h"),
        Fallocate(at("/h"), Allocate, 0, 200 * K),
        fsync("/h"),
        write("/h", 100 * K, 10 * K),
        SetPermissions(at("/h"), 0o600),
        fsync("/h"),
        Reopen,
        write("/h", 0, 21 * K),
        fdatasync("/h"),
    ]
}

/// Every mode of fallocate over every state.
pub fn allocations() -> Vec<Step> {
    let mut steps = Vec::new();
    for (number, mode) in [
        PunchHole,
        ZeroRange,
        ZeroRangeKeepSize,
        WriteZeroes,
        AllocateKeepSize,
        Allocate,
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/m{number}");
        let target = at(&path);
        steps.extend([
            create(&path),
            write(&path, 0, 12 * K + 100),
            Fallocate(target.clone(), AllocateKeepSize, 14 * K, 8 * K),
            fsync(&path),
            // From the middle of a written block to the middle of an unwritten one.
            Fallocate(target.clone(), mode, 3 * K + 100, 13 * K),
            fsync(&path),
            write(&path, 8 * K, 3000),
            Fallocate(target.clone(), mode, K, K),
            Fallocate(target.clone(), mode, 20 * K, 10 * K + 5),
            fdatasync(&path),
            write(&path, 22 * K, 100),
            fsync(&path),
        ]);
        if number % 2 == 0 {
            steps.push(Unlink(path));
        }
    }
    for (number, mode) in [CollapseRange, InsertRange].into_iter().enumerate() {
        let path = format!("/s{number}");
        let target = at(&path);
        steps.push(create(&path));
        // Pieces that do not merge.
        for piece in 0..7 {
            steps.push(write(&path, piece * 3 * K, 2 * K));
        }
        steps.extend([
            Fallocate(target.clone(), Allocate, 24 * K, 4 * K),
            fsync(&path),
            Fallocate(target.clone(), mode, 4 * K, 5 * K),
            fsync(&path),
            Fallocate(target.clone(), mode, 0, K),
            write(&path, 5 * K, 3 * K),
            fdatasync(&path),
            Fallocate(target.clone(), mode, 2 * K, 2 * K),
            resize(&path, 10 * K),
            fsync(&path),
        ]);
    }
    steps.push(SyncAll);
    steps
}

/// Files with enough extents that they have nodes, and that truncating them takes several
/// transactions.
pub fn pieces() -> Vec<Step> {
    let mut steps = Vec::new();
    for path in ["/p", "/q"] {
        steps.push(create(path));
    }
    // Alternating, so that neither is in one piece.
    for piece in 0..90 {
        steps.push(write("/p", piece * 2 * K, K));
        steps.push(write("/q", piece * 3 * K, 2 * K));
        if piece % 30 == 29 {
            steps.push(fsync("/p"));
        }
    }
    steps.extend([
        fsync("/q"),
        Fallocate(at("/p"), PunchHole, 10 * K, 80 * K),
        fdatasync("/p"),
        Fallocate(at("/q"), CollapseRange, 30 * K, 60 * K),
        fdatasync("/q"),
        Fallocate(at("/p"), InsertRange, 20 * K, 40 * K),
        Fallocate(at("/q"), WriteZeroes, 10 * K, 100 * K),
        fsync("/q"),
        Fallocate(at("/p"), ZeroRange, 0, 120 * K),
        fsync("/p"),
        resize("/q", 5 * K + 100),
        fsync("/q"),
        resize("/p", 0),
        Unlink("/q".into()),
        SyncAll,
    ]);
    steps
}

/// A long file in small pieces over all groups is cut, while the log is short.
pub fn long_cuts() -> Vec<Step> {
    let mut steps = vec![create("/long"), create("/between")];
    for piece in 0..150 {
        steps.push(write("/long", piece * 2 * K, K));
        steps.push(append("/between", 1024));
    }
    steps.extend([
        SyncAll,
        resize("/long", 40 * K + 10),
        fsync("/long"),
        Hold("/long".into(), 0),
        Unlink("/long".into()),
        SyncAll,
        write("/between", 0, 50),
        Release(0),
        fsync("/between"),
        resize("/between", 1),
        SyncAll,
    ]);
    steps
}

/// Files without names that are open when the power fails.
pub fn orphans() -> Vec<Step> {
    let mut steps = Vec::new();
    for number in 0..6 {
        let path = format!("/o{number}");
        steps.extend([
            create(&path),
            append(&path, 2500),
            SetXattr(at(&path), "user.a", 600),
            Hold(path.clone(), number),
        ]);
    }
    steps.push(SyncAll);
    for number in 0..6 {
        steps.push(Unlink(format!("/o{number}")));
        if number == 2 {
            steps.push(SyncAll);
        }
    }
    steps.extend([
        SyncAll,
        // Written to and cut without a name.
        Append(Target::Held(1), 9000),
        Sync(Target::Held(1), SyncMode::All),
        Release(3),
        Resize(Target::Held(0), 100),
        SyncAll,
        // One gets a name again.
        Link(Target::Held(2), "/again".into()),
        fsync("/again"),
        Release(0),
        Release(5),
        Release(2),
        SyncAll,
        CreateUnnamed(7),
        Write(Target::Held(7), 0, 7000),
        CreateUnnamed(8),
        Write(Target::Held(8), 4000, 100),
        SyncAll,
        Link(Target::Held(7), "/named".into()),
        fsync("/named"),
        Unlink("/again".into()),
        mkdir("/dir"),
        mkdir("/dir/in"),
        Hold("/dir/in".into(), 9),
        RemoveDirectory("/dir/in".into()),
        SyncAll,
        RemoveDirectory("/dir".into()),
        Release(9),
        // Left open to the end.
        SyncAll,
    ]);
    steps
}

/// A directory that grows: linear, hashed, split.
pub fn big_directory() -> Vec<Step> {
    let mut steps = vec![mkdir("/d")];
    let name =
        |number: usize| format!("/d/a rather long name that fills the blocks quickly {number:03}");
    for number in 0..110 {
        steps.push(match number % 5 {
            0 => Create(name(number), SymbolicLink(9)),
            1 => Create(name(number), Fifo),
            _ => Link(at(&name(number / 5 * 5)), name(number)),
        });
        if number % 12 == 11 {
            steps.push(fsync("/d"));
        }
    }
    for number in 0..110 {
        if number % 3 != 0 {
            steps.push(Unlink(name(number)));
        }
        if number % 40 == 1 {
            steps.push(SyncAll);
        }
    }
    for number in 0..20 {
        steps.push(rename(
            &name(number * 3),
            &format!("/d/other {number}"),
            NoReplace,
        ));
    }
    steps.push(fsync("/d"));
    steps
}

/// Attributes in the inode and in a block.
pub fn attributes() -> Vec<Step> {
    let mut steps = vec![mkdir("/x"), create("/x/f"), create("/x/g")];
    let (f, g) = (at("/x/f"), at("/x/g"));
    steps.extend([
        SetXattr(f.clone(), "user.small", 8),
        fsync("/x/f"),
        SetXattr(f.clone(), "user.large", 700),
        SetXattr(g.clone(), "trusted.other", 500),
        fsync("/x/f"),
        SetXattr(f.clone(), "user.large", 650),
        SetXattr(f.clone(), "user.more", 40),
        SetPermissions(f.clone(), 0o640),
        fsync("/x/f"),
        RemoveXattr(f.clone(), "user.large"),
        SetXattr(at("/x"), "user.dir", 300),
        fsync("/x"),
        RemoveXattr(g.clone(), "trusted.other"),
        SetXattr(f.clone(), "user.small", 0),
        append("/x/g", 3000),
        fsync("/x/g"),
        SetXattr(g.clone(), "user.again", 800),
        SyncAll,
        Unlink("/x/g".into()),
        // The block of attributes of one becomes that of another, or data.
        SetXattr(f.clone(), "user.large", 800),
        create("/x/h"),
        write("/x/h", 0, 8 * K),
        fsync("/x/h"),
        RemoveXattr(f.clone(), "user.large"),
        fsync("/x/f"),
        write("/x/h", 8 * K, 8 * K),
        fsync("/x/h"),
        Unlink("/x/f".into()),
        Unlink("/x/h".into()),
        RemoveDirectory("/x".into()),
        SyncAll,
    ]);
    steps
}

/// Blocks alternate between metadata and data while the log wraps several times.
pub fn round_and_round() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..40 {
        let (dir, file) = (format!("/r{round}"), format!("/r{round}/f"));
        steps.extend([
            mkdir(&dir),
            create(&file),
            SetXattr(at(&file), "user.block", 700),
            write(&file, 0, 3 * K),
            fsync(&file),
        ]);
        if round >= 3 {
            let old = round - 3;
            steps.extend([
                Unlink(format!("/r{old}/f")),
                RemoveDirectory(format!("/r{old}")),
            ]);
        }
        if round % 4 == 3 {
            steps.push(write(&file, 3 * K, 20 * K));
            steps.push(fdatasync(&file));
        }
    }
    steps.push(Reopen);
    steps.push(create("/last"));
    steps.push(fsync("/last"));
    steps
}

/// Steps of one of several actors that work at the same time, each in its own directory.
pub fn together(number: u64) -> Vec<Step> {
    let mut steps = vec![create("/f"), fsync("/f")];
    for round in 0..12 {
        let other = format!("/g{round}");
        steps.extend([
            append("/f", 1500),
            write("/f", round * 700, 900 + number),
            fdatasync("/f"),
            create(&other),
            append(&other, 2000),
            fsync(&other),
            write(&other, 0, 1024),
            fdatasync(&other),
        ]);
        if round > 1 {
            steps.push(Unlink(format!("/g{}", round - 2)));
        }
        if round % 5 == 4 {
            steps.push(resize("/f", 1000));
            steps.push(fsync("/f"));
        }
    }
    steps
}
