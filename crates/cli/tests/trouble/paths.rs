//! The path cannot be used: exit code 4.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::support::{
    Answer, MIB, Running, assert_names, create, create_command, materialize, partial_of,
    wait_for_space_of,
};

#[track_caller]
fn tool(words: &[&str], path: &Path) {
    let mut tool = command::tool(words[0]);
    command::run(tool.args(&words[1..]).arg(path)).unwrap();
}

/// Refused, with and without `--force`.
#[track_caller]
fn assert_in_the_way(path: &Path) -> [Answer; 2] {
    let plain = create(path, "1MiB", &[]).refused(4, &[]);
    let forced = create(path, "1MiB", &["--force"]).refused(4, &["not a regular file"]);
    [plain, forced]
}

#[test]
fn missing_directory_is_named() {
    let work = Workdir::new();
    let path = work.path().join("none/a");
    create(&path, "1MiB", &[]).refused(4, &["/none: ", "no such directory"]);
    assert!(!work.path().join("none").exists());
}

#[test]
fn file_in_place_of_the_directory_is_named() {
    let work = Workdir::new();
    fs::write(work.path().join("file"), "data").unwrap();
    create(&work.path().join("file/a"), "1MiB", &[]).refused(4, &["/file: ", "not a directory"]);
    assert_eq!(fs::read(work.path().join("file")).unwrap(), b"data");
}

#[test]
fn whatever_is_no_regular_file_is_not_replaced() {
    require!(
        requires::root(),
        requires::tool("mknod"),
        requires::tool("mkfifo")
    );
    let work = Workdir::new();
    let dir = work.directory("f");
    let place = |name: &str| dir.join(name);
    fs::create_dir(place("directory")).unwrap();
    tool(&["mkfifo"], &place("fifo"));
    command::run(
        command::tool("mknod")
            .arg(place("device"))
            .args(["c", "1", "3"]),
    )
    .unwrap();
    let _socket = UnixListener::bind(place("socket")).unwrap();
    symlink("directory", place("to-directory")).unwrap();
    for name in ["directory", "fifo", "device", "socket", "to-directory"] {
        assert_in_the_way(&place(name));
        if name != "to-directory" {
            materialize(&place(name), &[]).refused(4, &["not a regular file"]);
        }
    }
    let all = ["device", "directory", "fifo", "socket", "to-directory"];
    assert_names(&dir, &all);
    let kind = fs::symlink_metadata(place("fifo")).unwrap().file_type();
    assert!(kind.is_fifo());
}

#[test]
fn path_that_ends_in_no_name_is_refused() {
    let work = Workdir::new();
    let dir = work.directory("f");
    for path in ["new/", "..", ".", "../f/"] {
        let mut command = create_command(Path::new(path), "1MiB", &[]);
        let answer = crate::support::run(command.current_dir(&dir));
        answer.refused(4, &[]);
    }
    assert_names(&dir, &[]);
}

#[test]
fn read_only_file_system_is_named() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 32 * MIB);
    let old = scratch.path().join("old");
    fs::write(&old, "data").unwrap();
    scratch.remount("ro");
    let words = ["read-only"];
    create(&scratch.path().join("a"), "1MiB", &[]).refused(4, &words);
    create(&old, "1MiB", &["--force"]).refused(4, &words);
    materialize(&old, &[]).refused(4, &words);
    assert_names(scratch.path(), &["old"]);
    assert_eq!(fs::read(&old).unwrap(), b"data");
}

#[test]
fn missing_file_of_materialize_is_named() {
    let work = Workdir::new();
    materialize(&work.path().join("a"), &[]).refused(4, &["/a: ", "no such file"]);
}

/// Removes the attribute again, or the directory could not be removed.
struct Attribute<'p>(&'p Path, &'static str);

impl<'p> Attribute<'p> {
    fn set(path: &'p Path, letter: &'static str) -> Self {
        tool(&["chattr", &format!("+{letter}")], path);
        Self(path, letter)
    }
}

impl Drop for Attribute<'_> {
    fn drop(&mut self) {
        tool(&["chattr", &format!("-{}", self.1)], self.0);
    }
}

#[test]
fn immutable_and_append_only_files_stay_as_they_are() {
    require!(Filesystem::Ext4.requirement(), requires::tool("chattr"));
    let scratch = Scratch::new(Filesystem::Ext4, 32 * MIB);
    for letter in ["i", "a"] {
        let file = scratch.path().join(letter);
        fs::write(&file, "data").unwrap();
        let attribute = Attribute::set(&file, letter);
        materialize(&file, &[]).refused(4, &["immutable or append-only", "chattr"]);
        // Before any work: the size is more than there is room for.
        create(&file, "1G", &["--force"]).refused(4, &["immutable or append-only"]);
        drop(attribute);
        assert_eq!(fs::read(&file).unwrap(), b"data");
    }
    assert_names(scratch.path(), &["a", "i"]);
}

#[test]
fn immutable_and_append_only_directories_stay_as_they_are() {
    require!(Filesystem::Ext4.requirement(), requires::tool("chattr"));
    let scratch = Scratch::new(Filesystem::Ext4, 32 * MIB);
    for letter in ["i", "a"] {
        let dir = scratch.path().join(letter);
        fs::create_dir(&dir).unwrap();
        let attribute = Attribute::set(&dir, letter);
        let answer = create(&dir.join("x"), "1MiB", &[]);
        drop(attribute);
        answer.refused(4, &["immutable or append-only"]);
        assert_names(&dir, &[]);
    }
}

#[test]
fn planted_partial_that_is_no_file_is_neither_followed_nor_removed() {
    require!(requires::tool("mkfifo"));
    let work = Workdir::new();
    let dir = work.directory("f");
    let victim = work.path().join("victim");
    fs::write(&victim, "data").unwrap();
    for name in ["link", "directory", "fifo"] {
        let file = dir.join(name);
        let planted = partial_of(&file);
        match name {
            "link" => symlink(&victim, &planted).unwrap(),
            "directory" => fs::create_dir(&planted).unwrap(),
            _ => tool(&["mkfifo"], &planted),
        }
        create(&file, "1MiB", &[]).refused(4, &[".extant-partial"]);
        assert!(partial_of(&file).symlink_metadata().is_ok(), "{name}");
        assert!(!file.exists());
    }
    assert_eq!(fs::read(&victim).unwrap(), b"data");
}

#[test]
fn planted_partial_of_another_user_is_neither_used_nor_removed() {
    require!(requires::root());
    let work = Workdir::new();
    let dir = work.directory("f");
    let file = dir.join("a");
    let planted = partial_of(&file);
    fs::write(&planted, "data").unwrap();
    std::os::unix::fs::chown(&planted, Some(crate::support::NOBODY), None).unwrap();
    create(&file, "1MiB", &[]).refused(4, &[".a.extant-partial", "in the way"]);
    assert_eq!(fs::read(&planted).unwrap(), b"data");
    assert_names(&dir, &[".a.extant-partial"]);
}

#[test]
fn second_creation_of_one_name_is_refused_and_the_first_wins() {
    let work = Workdir::new();
    let dir = work.directory("f");
    let file = dir.join("a");
    let first = Running::start(&mut create_command(&file, "8MiB", &["--rate", "4M"]));
    wait_for_space_of(&file);
    for options in [&["--keep-partial"][..], &["--force"]] {
        create(&file, "8MiB", options).refused(4, &["/a: ", "being created"]);
    }
    first.wait().success();
    assert_names(&dir, &["a"]);
    assert_eq!(fs::metadata(&file).unwrap().len(), 8 * MIB);
}

#[test]
fn of_many_creations_at_once_one_wins_and_the_others_say_so() {
    let work = Workdir::new();
    let dir = work.directory("f");
    for round in 0..10 {
        let file = dir.join(format!("a{round}"));
        let all: Vec<Running> = (0..4)
            .map(|_| Running::start(&mut create_command(&file, "1MiB", &[])))
            .collect();
        let mut winners = 0;
        for one in all {
            let answer = one.wait();
            match answer.code {
                Some(0) => winners += 1,
                _ => drop(answer.refused(4, &[])),
            }
        }
        assert_eq!(winners, 1);
        assert_eq!(fs::metadata(&file).unwrap().len(), MIB);
        fs::remove_file(&file).unwrap();
        assert_names(&dir, &[]);
    }
}
