//! The space of files.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use super::{Case, Expect, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("fallocate", "fallocate", allocates),
    same("fallocate", "punch behind the end", punch_behind_the_end),
    same("fallocate", "fallocate errors", allocate_errors),
    same("fallocate", "full file system", full),
    same("lseek with SEEK_DATA, SEEK_HOLE", "holes", holes),
    same(
        "lseek with SEEK_DATA, SEEK_HOLE",
        "holes of data not written back",
        holes_of_dirty,
    ),
    Case {
        name: "other modes of fallocate",
        row: "fallocate: collapse, insert, write zeroes, unshare",
        expect: Expect::Limit,
        run: other_modes,
    },
    Case {
        name: "extent map",
        row: "FS_IOC_FIEMAP",
        expect: Expect::Limit,
        run: extent_map,
    },
];

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

fn open(notes: &Notes) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(notes.at("f"))
        .unwrap()
}

fn content(notes: &mut Notes, file: &File) {
    let size = file.metadata().unwrap().len() as usize;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let runs: Vec<(u8, usize)> = bytes
        .chunk_by(|a, b| a == b)
        .map(|run| (run[0], run.len()))
        .collect();
    notes.note("content", runs);
}

fn allocates(notes: &mut Notes) {
    let file = open(notes);
    let none = FallocateFlags::empty();
    file.write_all_at(&[7; 30_000], 0).unwrap();
    for (mode, offset, length) in [
        (none, 0, 10_000),
        (none, 20_000, 30_000),
        (KEEP, 40_000, 100_000),
        (PUNCH, 1_000, 10_000),
        (PUNCH, 1 << 30, 4_096),
        (ZERO, 12_288, 4_096),
        (ZERO, 21_000, 1),
        (ZERO | KEEP, 28_000, 100_000),
        (ZERO, 60_000, 10_000),
    ] {
        notes.answer(&format!("{mode:?}"), fallocate(&file, mode, offset, length));
        file.sync_all().unwrap();
        notes.stat("f");
        content(notes, &file);
    }
}

fn punch_behind_the_end(notes: &mut Notes) {
    let file = open(notes);
    file.write_all_at(&[7; 30_000], 0).unwrap();
    fallocate(&file, KEEP, 40_000, 100_000).unwrap();
    for (offset, length) in [(50_000, 10_000), (10_000, 1 << 40), (0, 1 << 40)] {
        notes.answer("punch", fallocate(&file, PUNCH, offset, length));
        file.sync_all().unwrap();
        notes.stat("f");
        content(notes, &file);
    }
    file.set_len(30_000).unwrap();
    notes.stat("f");
}

fn allocate_errors(notes: &mut Notes) {
    let file = open(notes);
    let none = FallocateFlags::empty();
    notes.answer("no length", fallocate(&file, none, 0, 0));
    notes.answer("past the largest", fallocate(&file, none, 1 << 44, 4096));
    notes.answer("past it, keeping", fallocate(&file, KEEP, 1 << 50, 4096));
    notes.answer(
        "overflow",
        fallocate(&file, none, u64::MAX / 2, u64::MAX / 2),
    );
    notes.answer("negative", fallocate(&file, none, u64::MAX, 1));
    let bare = FallocateFlags::PUNCH_HOLE;
    notes.answer("punch that does not keep", fallocate(&file, bare, 0, 4096));
    notes.answer("punch and zero", fallocate(&file, PUNCH | ZERO, 0, 4096));
    let reading = File::open(notes.at("f")).unwrap();
    notes.answer("open to read", fallocate(&reading, none, 0, 4096));
    let directory = File::open(notes.directory()).unwrap();
    notes.answer("directory", fallocate(&directory, none, 0, 4096));
    notes.stat("f");
}

fn full(notes: &mut Notes) {
    let file = open(notes);
    let none = FallocateFlags::empty();
    notes.answer("more than there is", fallocate(&file, none, 0, 1 << 30));
    file.set_len(0).unwrap();
    notes.stat("f");
}

fn answers(notes: &mut Notes, file: &File, places: &[u64]) {
    for &place in places {
        notes.answer(
            &format!("data at {place}"),
            seek(file, SeekFrom::Data(place)),
        );
        notes.answer(
            &format!("hole at {place}"),
            seek(file, SeekFrom::Hole(place)),
        );
    }
}

fn holes(notes: &mut Notes) {
    let file = open(notes);
    answers(notes, &file, &[0]);
    file.write_all_at(&[1; 4096], 8192).unwrap();
    file.write_all_at(&[1; 100], 40_960).unwrap();
    fallocate(&file, KEEP, 65_536, 65_536).unwrap();
    file.sync_all().unwrap();
    answers(
        notes,
        &file,
        &[0, 8192, 10_000, 12_288, 40_960, 41_059, 41_060, 1 << 40],
    );
    fallocate(&file, FallocateFlags::empty(), 12_288, 4096).unwrap();
    file.sync_all().unwrap();
    answers(notes, &file, &[0, 8192, 12_288]);
    let sparse = open(notes);
    sparse.set_len(0).unwrap();
    sparse.set_len(1 << 20).unwrap();
    answers(notes, &sparse, &[0, 4096, (1 << 20) - 1, 1 << 20]);
}

fn holes_of_dirty(notes: &mut Notes) {
    let file = open(notes);
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 4096], 65_536).unwrap();
    file.write_all_at(&[1; 4096], 2 << 20).unwrap();
    let other = File::open(notes.at("f")).unwrap();
    answers(notes, &other, &[0, 65_536, 69_632, 2 << 20]);
    notes.shell(0, "cp --sparse=always f copy; cmp f copy; stat -c %s copy");
}

fn other_modes(notes: &mut Notes) {
    let file = open(notes);
    file.write_all_at(&[7; 65_536], 0).unwrap();
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    notes.answer("collapse", fallocate(&file, collapse, 4096, 4096));
    notes.answer(
        "insert",
        fallocate(&file, FallocateFlags::INSERT_RANGE, 4096, 8192),
    );
    notes.mode("f");
}

fn extent_map(notes: &mut Notes) {
    let file = open(notes);
    file.write_all_at(&[7; 65_536], 0).unwrap();
    file.sync_all().unwrap();
    notes.shell(0, "filefrag f");
}
