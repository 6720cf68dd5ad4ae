//! Names of images beside the list: a process killed within one of librbd's calls leaves them.
//!
//! The object `rbd_id.NAME` has the identifier of an image, and makes NAME open it. A creation
//! makes it first. A rename makes that of the new name, changes the list, and removes that of the
//! old.

use std::fs;

use extant_pool::{Leftovers, Operation};
use extant_space::Preallocation;
use extant_testkit::ceph::{Ceph, POOL};
use extant_testkit::{command, require};

use super::{Stand, noise};
use crate::stand::{MIB, create, name, names, perform, run, submit, upload};

const VOLUME: &str = "extant.volume";
const REPLACED: &str = "extant.replaced";

impl Stand {
    /// The name of an unfinished image of the pool.
    fn hidden(&self, inner: &str) -> String {
        let identifier = fs::read_to_string(self.directory.path().join("state/identifier"));
        format!(".extant-{}-{inner}", identifier.unwrap().trim())
    }

    fn identifier(&self, image: &str) -> String {
        let info = self.rbd(&["info", "--format", "json", image]);
        let rest = info.split("\"id\":\"").nth(1).unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    fn rados(&self, words: &[&str]) -> bool {
        let mut rados = command::tool("rados");
        rados.arg("--conf").arg(self.ceph.conf());
        rados.args(["--pool", POOL, "--namespace", &self.namespace]);
        command::run(rados.args(words)).is_ok()
    }

    /// Makes `name` open the image with this identifier.
    fn put_name(&self, name: &str, identifier: &str) {
        let object = self.outside("object");
        let length = u32::try_from(identifier.len()).unwrap().to_le_bytes();
        fs::write(&object, [&length, identifier.as_bytes()].concat()).unwrap();
        let object = object.to_str().unwrap();
        assert!(self.rados(&["put", &format!("rbd_id.{name}"), object]));
    }

    fn has_name(&self, name: &str) -> bool {
        self.rados(&["stat", &format!("rbd_id.{name}")])
    }

    fn note(&self, image: &str, key: &str, value: &str) {
        self.rbd(&["image-meta", "set", image, key, value]);
    }

    /// Makes a volume; an operation that replaces it.
    fn with_replacing(&self) -> Operation {
        self.put("a", &noise(4 * MIB));
        let source = self.source(&vec![5; 8 * MIB as usize]);
        let mut replacing = upload("a", &source);
        replacing.replace = true;
        Operation::Upload(replacing)
    }
}

#[test]
fn name_without_an_image_that_a_killed_creation_left_is_used() {
    require!(Ceph::requirement());
    let stand = Stand::new("created");
    let source = stand.source(&noise(4 * MIB));
    let job = submit(&stand.pool, Operation::Upload(upload("b", &source))).unwrap();
    let image = stand.hidden(&format!("{}.copy", job.id()));
    stand.put_name(&image, "0123456789ab");
    run(job).unwrap();
    assert!(stand.read("b") == noise(4 * MIB));
    stand.assert_at_rest();
}

#[test]
fn replaced_volume_that_has_kept_its_name_or_got_the_hidden_one_is_replaced_all_the_same() {
    require!(Ceph::requirement());
    let stand = Stand::new("replaced");
    let replacing = stand.with_replacing();
    let job = submit(&stand.pool, replacing.clone()).unwrap();
    let hidden = stand.hidden(&format!("replaced.{}", job.id()));
    stand.note("a", REPLACED, "a");
    stand.put_name(&hidden, &stand.identifier("a"));
    run(job).unwrap();
    assert!(stand.read("a") == vec![5; 8 * MIB as usize]);
    assert!(!stand.has_name(&hidden));
    stand.assert_at_rest();
}

#[test]
fn replaced_volume_gets_its_name_back_from_wherever_the_rename_was_killed() {
    require!(Ceph::requirement());
    let stand = Stand::new("back");
    let _ = stand.with_replacing();
    let identifier = stand.identifier("a");
    let (old, new) = (stand.hidden("replaced.77"), stand.hidden("77.copy"));
    stand.note("a", REPLACED, "a");
    let check = |place: &str| {
        stand.pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!(names(&stand.pool), ["a"], "{place}");
        assert!(stand.read("a") == noise(4 * MIB), "{place}");
        assert_eq!(stand.identifier("a"), identifier, "{place}");
        assert!(!stand.has_name(&old) && !stand.has_name(&new), "{place}");
        stand.assert_at_rest();
    };
    let make_new = || {
        stand.rbd(&["create", "--size", "8M", &new]);
        stand.note(&new, REPLACED, &old);
        stand.note(&new, VOLUME, "a");
    };
    // The old one is being hidden.
    make_new();
    stand.put_name(&old, &identifier);
    check("before the list");
    make_new();
    stand.rbd(&["mv", "a", &old]);
    stand.put_name("a", &identifier);
    check("after the list");
    // The new one is being published.
    make_new();
    stand.rbd(&["mv", "a", &old]);
    stand.put_name("a", &stand.identifier(&new));
    check("before the list of the new one");
}

#[test]
fn names_of_removed_images_can_be_given_again() {
    require!(Ceph::requirement());
    let stand = Stand::new("again");
    let thin = |volume: &str| create(volume, 4 * MIB, Preallocation::Off);
    perform(&stand.pool, thin("a")).unwrap();
    let identifier = stand.identifier("a");
    // A killed deletion.
    let removed = stand.hidden("removed.0000000000000001");
    stand.note("a", VOLUME, "a");
    stand.rbd(&["mv", "a", &removed]);
    stand.put_name("a", &identifier);
    stand.pool.refresh(Leftovers::Keep).unwrap();
    assert!(!stand.has_name("a"));
    perform(&stand.pool, thin("a")).unwrap();
    // A killed publication whose job is not resumed.
    let work = stand.hidden("77.complete");
    stand.rbd(&["create", "--size", "4M", &work]);
    stand.note(&work, VOLUME, "b");
    stand.put_name("b", &stand.identifier(&work));
    stand.pool.refresh(Leftovers::Keep).unwrap();
    perform(&stand.pool, thin("b")).unwrap();
    assert_eq!(names(&stand.pool), ["a", "b"]);
    // A removal that was killed between the name and the list.
    let removed = stand.hidden("removed.0000000000000002");
    stand.rbd(&["create", "--size", "4M", &removed]);
    assert!(stand.rados(&["rm", &format!("rbd_id.{removed}")]));
    let found = stand.pool.refresh(Leftovers::Keep).unwrap();
    assert_eq!(found.removed_files, 1);
    assert_eq!(stand.images(), ["a", "b"]);
    stand.assert_at_rest();
}

#[test]
fn name_of_an_image_of_another_client_is_not_taken() {
    require!(Ceph::requirement());
    let stand = Stand::new("foreign");
    stand.rbd(&["create", "--size", "4M", "theirs"]);
    stand.put_name("a", &stand.identifier("theirs"));
    let refused = perform(&stand.pool, create("a", 4 * MIB, Preallocation::Off)).unwrap_err();
    assert_eq!(
        refused.kind(),
        extant_space::ErrorKind::AlreadyExists,
        "{refused}"
    );
    assert!(stand.has_name("a"));
    stand.pool.delete(&name("theirs"), false).unwrap();
    stand.assert_at_rest();
}
