//! What a user without privileges may not do: exit code 4, and why.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires};

use crate::support::{
    Answer, MIB, NOBODY, as_nobody, assert_names, create_command, extant, partial_of, run,
};

struct Place {
    work: Workdir,
    scratch: Scratch,
}

impl Place {
    fn new() -> Self {
        Self {
            work: Workdir::new(),
            scratch: Scratch::new(Filesystem::Ext4, 64 * MIB),
        }
    }

    fn create(&self, path: &Path) -> Answer {
        run(&mut as_nobody(
            &create_command(path, "1MiB", &[]),
            &self.work,
        ))
    }

    fn materialize(&self, path: &Path, more: &[&str]) -> Answer {
        let mut inner = extant();
        inner.arg("materialize").arg(path).args(more);
        run(&mut as_nobody(&inner, &self.work))
    }
}

#[test]
fn directory_without_permission_is_named() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let folder = place.scratch.path().join("closed");
    fs::create_dir(&folder).unwrap();
    let words = ["closed", "permission denied"];
    place.create(&folder.join("a")).refused(4, &words);
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    place.create(&folder.join("a")).refused(4, &words);
    assert_names(&folder, &[]);
}

#[test]
fn file_without_permission_is_named() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let file = place.scratch.path().join("a");
    fs::write(&file, "data").unwrap();
    place
        .materialize(&file, &[])
        .refused(4, &["/a: ", "permission denied"]);
    assert_eq!(fs::read(&file).unwrap(), b"data");
}

#[test]
fn lease_on_the_file_of_another_user_is_refused_with_the_reason() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let file = place.scratch.path().join("a");
    fs::File::create(&file).unwrap().set_len(MIB).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let words = ["/a: ", "lease", "owner", "--shared"];
    place.materialize(&file, &[]).refused(4, &words);
    assert_eq!(oracle::allocated_bytes(&file), 0);
    place.materialize(&file, &["--shared"]).success();
    assert!(oracle::filefrag(&file).is_extant());
}

#[test]
fn partial_planted_by_another_user_in_a_common_folder_is_not_used() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let common = place.scratch.path().join("common");
    fs::create_dir(&common).unwrap();
    fs::set_permissions(&common, Permissions::from_mode(0o1777)).unwrap();
    let file = common.join("a");
    fs::write(partial_of(&file), "trap").unwrap();
    fs::set_permissions(partial_of(&file), Permissions::from_mode(0o666)).unwrap();
    place.create(&file).refused(4, &[]);
    assert_eq!(fs::read(partial_of(&file)).unwrap(), b"trap");
    assert_names(&common, &[".a.extant-partial"]);
}

#[test]
fn own_file_of_a_user_is_made_real() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let file = place.scratch.user_folder(NOBODY).join("a");
    fs::File::create(&file).unwrap().set_len(MIB).unwrap();
    std::os::unix::fs::chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    place.materialize(&file, &[]).success();
    assert!(oracle::filefrag(&file).is_extant());
}
