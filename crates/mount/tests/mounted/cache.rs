//! The kernel's cache and direct I/O: `cache.c`.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use extant_testkit::command::{run, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{fuse_rings, require, requires};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::mounts::{Ours, needs};

const SOURCE: &str = include_str!("cache.c");
const MEBIBYTES: u64 = 16;
const FILE_BYTES: usize = 1 << 20;

/// Runs the program on each kind of mount; `words` stand around the file's name.
#[track_caller]
fn each_mount(before: &str, after: &[&str]) {
    let work = Workdir::new();
    let program = compiled(&work);
    let rings = format!("writeback,{}", fuse_rings::option());
    for options in ["writeback", "no_writeback", &rings] {
        let ours = Ours::new(MEBIBYTES, options);
        let path = ours.path().join("f");
        fs::write(&path, vec![0; FILE_BYTES]).unwrap();
        let output = std::process::Command::new(&program)
            .arg(before)
            .arg(&path)
            .args(after)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "ok\n", "{options}: {}", output.status);
        ours.end();
    }
}

fn compiled(work: &Workdir) -> PathBuf {
    let (source, program) = (work.path().join("cache.c"), work.path().join("cache"));
    fs::write(&source, SOURCE).unwrap();
    run(tool("cc")
        .args(["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-o"])
        .args([&program, &source]))
    .unwrap_or_else(|failure| panic!("{failure}"));
    program
}

#[test]
fn page_with_the_end_of_a_file_that_is_open_past_the_cache_can_be_mapped() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("cc"));
    each_mount("map", &[]);
}

#[test]
fn read_through_the_cache_sees_each_asynchronous_direct_write_that_has_ended() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("cc"));
    each_mount("strict", &["32", "2000"]);
}

#[test]
fn more_asynchronous_direct_writes_than_the_kernel_has_in_its_background_end_and_are_seen() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("cc"));
    each_mount("late", &["100", "3000"]);
}

#[test]
fn data_for_which_there_is_no_space_fails_the_sync() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in ["writeback", "no_writeback"] {
        let ours = Ours::new(MEBIBYTES, options);
        let filler = File::create(ours.path().join("filler")).unwrap();
        let space = statvfs(ours.path()).unwrap();
        let length = space.f_bavail * space.f_frsize - (512 << 10);
        fallocate(&filler, FallocateFlags::empty(), 0, length).unwrap();
        drop(filler);
        let mut file = File::create(ours.path().join("f")).unwrap();
        let written = file.write_all(&vec![7; 1 << 20]);
        let synced = written.and_then(|()| file.sync_all());
        let error = synced.expect_err(options);
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{options}: {error}");
        drop(file);
        ours.end();
    }
}
