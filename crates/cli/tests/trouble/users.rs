//! Operations that a user without privileges may not do: exit code 4, and the reason.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires};

use crate::support::{
    Answer, MIB, NOBODY, as_nobody, assert_names, create, create_command, extant, partial_of, run,
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
    let directory = place.scratch.path().join("closed");
    fs::create_dir(&directory).unwrap();
    let words = ["closed", "permission denied"];
    place.create(&directory.join("a")).refused(4, &words);
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    place.create(&directory.join("a")).refused(4, &words);
    assert_names(&directory, &[]);
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
fn partial_planted_by_another_user_in_a_common_directory_is_not_used() {
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

/// A directory to which every user may write.
fn common_directory(place: &Place, mode: u32) -> PathBuf {
    let common = place.scratch.path().join("common");
    fs::create_dir(&common).unwrap();
    fs::set_permissions(&common, Permissions::from_mode(mode)).unwrap();
    common
}

#[test]
fn own_file_renamed_to_a_partial_one_by_another_user_is_not_published() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    // Without the sticky bit, users can rename files of others.
    let common = common_directory(&place, 0o777);
    let file = common.join("a");
    let mut secret = vec![0; MIB as usize];
    secret[5000..5010].copy_from_slice(b"TOP SECRET");
    fs::write(partial_of(&file), &secret).unwrap();
    fs::set_permissions(partial_of(&file), Permissions::from_mode(0o600)).unwrap();
    create(&file, "1MiB", &[]).refused(4, &[".extant-partial", "it holds data"]);
    assert!(fs::read(partial_of(&file)).unwrap() == secret);
    assert_names(&common, &[".a.extant-partial"]);
}

/// Sets `fs.protected_symlinks` while it lives.
struct ProtectedLinks(String);

impl ProtectedLinks {
    const SETTING: &str = "/proc/sys/fs/protected_symlinks";

    fn on() -> Self {
        let before = fs::read_to_string(Self::SETTING).unwrap();
        fs::write(Self::SETTING, "1").unwrap();
        Self(before)
    }
}

impl Drop for ProtectedLinks {
    fn drop(&mut self) {
        let _ = fs::write(Self::SETTING, &self.0);
    }
}

#[test]
fn link_of_another_user_is_followed_as_the_kernel_follows_it() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let victim = place.scratch.path().join("important");
    fs::write(&victim, "precious").unwrap();
    let source = place.scratch.path().join("source.raw");
    create(&source, "64KiB", &[]).success();
    let common = common_directory(&place, 0o1777);
    let link = common.join("a");
    symlink(&victim, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let convert = || {
        let mut command = extant();
        command.args(["image", "convert", "--force"]);
        run(command.arg(&source).arg(&link))
    };
    let protected = ProtectedLinks::on();
    assert!(fs::File::options().write(true).open(&link).is_err());
    create(&link, "64KiB", &["--force"]).refused(4, &["follow link", "permission denied"]);
    convert().refused(4, &["permission denied"]);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    lchown(&link, Some(0), Some(0)).unwrap();
    create(&link, "64KiB", &["--force"]).success();
    drop(protected);
    assert_eq!(fs::metadata(&victim).unwrap().len(), 64 << 10);
    assert!(link.is_symlink());
}

#[test]
fn forced_creation_by_a_user_keeps_permitted_attributes_and_reports_the_rest() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let directory = place.scratch.user_directory(NOBODY);
    let file = directory.join("a");
    fs::write(&file, "data").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
    let command = create_command(&file, "1MiB", &["--force", "--json"]);
    let answer = run(&mut as_nobody(&command, &place.work)).success();
    assert!(
        answer.text("/notes/0").contains("owner 0, group 0"),
        "{answer}"
    );
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.gid()), (NOBODY, NOBODY));
    // The group is another one: it gets the permissions of others.
    assert_eq!(found.mode() & 0o7777, 0o644, "{:o}", found.mode());
}

#[test]
fn own_file_of_a_user_is_materialized() {
    require!(Filesystem::Ext4.requirement(), requires::tool("setpriv"));
    let place = Place::new();
    let file = place.scratch.user_directory(NOBODY).join("a");
    fs::File::create(&file).unwrap().set_len(MIB).unwrap();
    std::os::unix::fs::chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    place.materialize(&file, &[]).success();
    assert!(oracle::filefrag(&file).is_extant());
}
