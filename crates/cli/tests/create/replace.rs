//! `--force`: another file has the name, and keeps it until the new one is complete.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use extant_space::ErrorKind;
use extant_testkit::faulty::{Faults, Faulty, RenameFault, WriteFault};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};
use rustix::process::Signal;

use crate::support::{MIB, Running, assert_names, create, create_command, wait_for_space_of};

const OLD: &str = "precious";

fn old_file(directory: &Path) -> std::path::PathBuf {
    let file = directory.join("a");
    fs::write(&file, OLD).unwrap();
    file
}

/// Output of a system tool for a file.
#[track_caller]
fn tool(words: &[&str], file: &Path) -> String {
    command::text(command::tool(words[0]).args(&words[1..]).arg(file)).unwrap()
}

#[track_caller]
fn assert_old(file: &Path) {
    assert_eq!(fs::read_to_string(file).unwrap(), OLD);
}

/// A creation over `file` that takes seconds, once it writes.
fn slow_replacement(file: &Path) -> Running {
    let mut command = create_command(file, "24MiB", &["--force", "--rate", "16M"]);
    let running = Running::start(&mut command);
    wait_for_space_of(file);
    running
}

#[test]
fn forced_creation_shows_the_old_file_until_the_new_one_is_complete() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let file = old_file(&directory);
    let mut running = slow_replacement(&file);
    let mut looks = 0;
    while running.is_alive() {
        let now = fs::read(&file).unwrap();
        if now != OLD.as_bytes() {
            assert_eq!(now.len() as u64, 24 * MIB, "incomplete under its name");
            break;
        }
        looks += 1;
    }
    assert!(looks > 100, "it was replaced at once: {looks}");
    running.wait().success();
    assert_eq!(fs::metadata(&file).unwrap().len(), 24 * MIB);
    assert_names(&directory, &["a"]);
}

#[test]
fn forced_creation_keeps_owner_mode_and_attributes_of_the_old_file() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("setfacl"),
        requires::tool("setcap")
    );
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let file = old_file(scratch.path());
    chown(&file, Some(1000), Some(1001)).unwrap();
    tool(&["setfacl", "-m", "u:1002:r,m::rw"], &file);
    tool(&["setfattr", "-n", "user.note", "-v", "x"], &file);
    tool(&["setcap", "cap_net_raw=ep"], &file);
    fs::set_permissions(&file, Permissions::from_mode(0o4660)).unwrap();
    let acl = tool(&["getfacl", "--absolute-names"], &file);
    assert!(acl.contains("user:1002:r--"), "{acl}");
    create(&file, "1MiB", &["--force"]).success();
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.gid()), (1000, 1001));
    assert_eq!(found.mode() & 0o7777, 0o660, "{:o}", found.mode());
    assert_eq!(found.len(), MIB);
    let without_flags = |acl: &str| -> Vec<String> {
        let lines = acl.lines().filter(|line| !line.starts_with("# flags"));
        lines.map(str::to_owned).collect()
    };
    let now = tool(&["getfacl", "--absolute-names"], &file);
    assert_eq!(without_flags(&now), without_flags(&acl));
    assert!(tool(&["getfattr", "-n", "user.note"], &file).contains("user.note"));
    assert!(tool(&["getcap"], &file).is_empty());
    create(&file, "1MiB", &["--force", "--mode", "0640"]).success();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn forced_creation_that_is_cancelled_keeps_the_old_file() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let file = old_file(&directory);
    let (answer, _) = slow_replacement(&file).stop(Signal::INT);
    answer.refused(130, &["cancelled"]);
    assert_old(&file);
    assert_names(&directory, &["a"]);
}

#[test]
fn forced_creation_that_is_killed_keeps_the_old_file() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let file = old_file(&directory);
    let (answer, _) = slow_replacement(&file).stop(Signal::KILL);
    assert_eq!(answer.signal, Some(9), "{answer}");
    assert_old(&file);
    assert_names(&directory, &[".a.extant-partial", "a"]);
}

#[test]
fn forced_creation_that_fails_keeps_the_old_file() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 * MIB, Faults::default());
    let file = old_file(fuse.path());
    fuse.set_faults(Faults {
        write: WriteFault::FailsAfter(5 * MIB, ErrorKind::Io),
        ..Faults::default()
    });
    create(&file, "16MiB", &["--force"]).refused(1, &["/a: "]);
    assert_old(&file);
    assert_names(fuse.path(), &["a"]);
}

#[test]
fn file_that_appears_meanwhile_is_not_replaced_without_force() {
    require!(Faulty::requirement());
    let work = Workdir::new();
    let local = work.directory("f");
    // Renames that know no flags must find it as well.
    let fuse = Faulty::new(
        64 * MIB,
        Faults {
            rename: RenameFault::NoFlags,
            ..Faults::default()
        },
    );
    for directory in [local.as_path(), fuse.path()] {
        let file = directory.join("a");
        let mut command = create_command(&file, "8MiB", &["--rate", "16M"]);
        let running = Running::start(&mut command);
        wait_for_space_of(&file);
        fs::write(&file, OLD).unwrap();
        running.wait().refused(4, &["/a: ", "meanwhile"]);
        assert_old(&file);
        assert_names(directory, &["a"]);
    }
}

#[test]
fn existing_file_is_refused_without_force_before_anything_is_done() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let file = old_file(&directory);
    create(&file, "1TiB", &[]).refused(4, &["/a: ", "exists", "--force"]);
    assert_old(&file);
    assert_names(&directory, &["a"]);
}

#[test]
fn link_is_refused_without_force_and_followed_with_it() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let elsewhere = work.directory("elsewhere");
    let target = old_file(&elsewhere);
    let link = directory.join("link");
    symlink(&target, &link).unwrap();

    create(&link, "1MiB", &[]).refused(4, &["/link: ", "exists"]);
    assert_old(&target);

    create(&link, "1MiB", &["--force"]).success();
    assert!(link.is_symlink(), "the link stays");
    assert_eq!(fs::metadata(&target).unwrap().len(), MIB);
    assert_names(&directory, &["link"]);
    assert_names(&elsewhere, &["a"]);
}

#[test]
fn link_to_nothing_is_refused_and_stays() {
    let work = Workdir::new();
    let directory = work.directory("f");
    let link = directory.join("link");
    symlink(directory.join("nothing"), &link).unwrap();
    create(&link, "1MiB", &[]).refused(4, &["/link: ", "exists"]);
    create(&link, "1MiB", &["--force"]).refused(4, &["/link: "]);
    assert_names(&directory, &["link"]);
}

#[test]
fn forced_creation_without_an_old_file_is_an_ordinary_one() {
    let work = Workdir::new();
    let directory = work.directory("f");
    create(&directory.join("a"), "1MiB", &["-f"]).success();
    assert_names(&directory, &["a"]);
}
