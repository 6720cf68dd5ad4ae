//! Short sequences that failed once.

use extant_ext4::{InodeFlags, XattrMode};
use extant_space::{ByteRange, FallocateMode};
use extant_testkit::{require, requires};

use crate::image::make;
use crate::operation::{Change, Data, Made, Name, Operation, Owner, Path, Place, Tooth, Value};
use crate::reference::{ACL_ACCESS, Format};
use crate::run::{Room, Start};

const MINE: Owner = Owner {
    permissions: 0o755,
    uid: 0,
    gid: 0,
    umask: 0,
};

fn run(format: &str, steps: Vec<Operation>) {
    let device = make(format, 32);
    let mut steps = steps.into_iter();
    let count = steps.len();
    Start::new(device, Format::of(format), Room::Ample)
        .run(count, &mut |_| steps.next().expect("as many as there are"));
}

fn at(name: &str) -> Place {
    Place::At(Path::default().join(name.as_bytes()))
}

fn create(name: &str, made: Made) -> Operation {
    Operation::Create(named(name), made, MINE)
}

fn named(name: &str) -> Name {
    Name::new(Place::At(Path::default()), name.as_bytes())
}

fn allocate(place: Place, mode: FallocateMode, start: u64, end: u64) -> Operation {
    Operation::Fallocate(place, mode, ByteRange::new(start, end))
}

/// Its block was written to the journal and then in place, over the data of the file.
#[test]
fn block_of_removed_directory_that_a_file_gets_at_once_keeps_the_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    run(
        "-t ext4 -b 1024 -N 2048",
        vec![
            create("other", Made::Regular),
            create("directory", Made::Directory),
            Operation::RemoveDirectory(named("directory")),
            create("file", Made::Regular),
            Operation::Write(
                at("file"),
                0,
                Data {
                    length: 409,
                    seed: 1,
                },
            ),
            Operation::Crash,
        ],
    );
}

/// The end of the truncation removed the orphan entry, which was then missing when the inode lost
/// its last user.
#[test]
fn file_without_name_stays_an_orphan_when_it_is_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^orphan_file"] {
        let file = Place::Handle(0);
        run(
            format,
            vec![
                Operation::CreateUnnamed(Place::At(Path::default()), MINE, 0),
                Operation::Comb(file.clone(), 0, 50, Tooth::Written(5)),
                Operation::Resize(file.clone(), 3000),
                Operation::Crash,
                Operation::CreateUnnamed(Place::At(Path::default()), MINE, 0),
                Operation::Comb(file.clone(), 0, 50, Tooth::Written(5)),
                Operation::Resize(file, 3000),
            ],
        );
    }
}

/// It was longer afterwards.
#[test]
fn insert_range_that_fails_leaves_the_size() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let far = (u64::from(u32::MAX) - 2) * 4096;
    run(
        "-t ext4 -b 4096",
        vec![
            create("file", Made::Regular),
            Operation::Write(
                at("file"),
                0,
                Data {
                    length: 9000,
                    seed: 1,
                },
            ),
            allocate(at("file"), FallocateMode::AllocateKeepSize, far, far + 4096),
            allocate(at("file"), FallocateMode::InsertRange, 4096, 40_960),
        ],
    );
}

/// Its edges were computed at other blocks of the file, and zeros were written past it.
#[test]
fn punch_past_the_largest_file_is_refused() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let wrapped = (1 << 32) * 4096;
    run(
        "-t ext4 -b 4096",
        vec![
            create("file", Made::Regular),
            Operation::Write(
                at("file"),
                0,
                Data {
                    length: 9000,
                    seed: 1,
                },
            ),
            allocate(
                at("file"),
                FallocateMode::PunchHole,
                wrapped + 10,
                wrapped + 20,
            ),
        ],
    );
}

/// The map panicked.
#[test]
fn map_of_a_range_past_the_end_has_the_blocks_allocated_there() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    run(
        "-t ext4 -b 4096",
        vec![
            create("file", Made::Regular),
            allocate(at("file"), FallocateMode::AllocateKeepSize, 40_960, 81_920),
            Operation::Extents(at("file"), ByteRange::new(20_000, 50_000)),
        ],
    );
}

/// Cutting to the size it has left them.
#[test]
fn resize_to_the_same_size_gives_back_blocks_past_the_end() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    run(
        "-t ext4 -b 4096",
        vec![
            create("file", Made::Regular),
            Operation::Write(
                at("file"),
                0,
                Data {
                    length: 9000,
                    seed: 1,
                },
            ),
            allocate(at("file"), FallocateMode::AllocateKeepSize, 0, 81_920),
            Operation::Resize(at("file"), 9000),
        ],
    );
}

/// The list still had its old content.
#[test]
fn new_permissions_change_the_access_list() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let list = Value::Acl(vec![(1, 6), (2, 5), (4, 4), (16, 6), (32, 4)]);
    let change = |permissions, flags| {
        let change = Change {
            permissions,
            flags,
            ..Change::default()
        };
        Operation::SetAttributes(at("file"), change)
    };
    run(
        "-t ext4 -b 4096",
        vec![
            create("file", Made::Regular),
            Operation::SetXattr(at("file"), ACL_ACCESS.into(), list, XattrMode::Set),
            change(Some(0o710), None),
            change(None, Some(InodeFlags::IMMUTABLE.bits())),
            change(Some(0o777), None),
            change(None, Some(0)),
        ],
    );
}
