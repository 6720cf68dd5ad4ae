//! Volumes that share space in the cluster.

use extant_pool::CloneMethod;
use extant_space::{ErrorKind, Remedy};
use extant_testkit::ceph::Ceph;
use extant_testkit::require;

use super::{Stand, noise};
use crate::stand::{MIB, clone, materialize, name, names, perform, unshare};

#[test]
fn clone_shares_space_until_it_is_materialized() {
    require!(Ceph::requirement());
    let stand = Stand::new("clones");
    stand.put("a", &noise(12 * MIB));
    for (volume, method) in [("b", CloneMethod::Auto), ("c", CloneMethod::Reflink)] {
        perform(&stand.pool, clone("a", volume, method)).unwrap();
        assert!(stand.rbd(&["info", volume]).contains("parent: "));
        assert!(stand.read(volume) == noise(12 * MIB));
    }
    let info = stand.pool.info().unwrap();
    assert_eq!(info.space.allocated_bytes, 12 * MIB, "{info:?}");
    let refused = stand.pool.delete(&name("a"), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    assert_eq!(refused.remedies(), [Remedy::MaterializeClones], "{refused}");
    let refused = perform(&stand.pool, materialize("b")).unwrap_err();
    assert_eq!(refused.remedies(), [Remedy::Unshare], "{refused}");
    perform(&stand.pool, unshare("b")).unwrap();
    assert!(!stand.rbd(&["info", "b"]).contains("parent: "));
    stand.assert_at_rest();
    // The other clone goes, and with it the last snapshot.
    stand.pool.delete(&name("c"), false).unwrap();
    assert_eq!(stand.rbd(&["snap", "ls", "a"]).trim(), "");
    stand.pool.delete(&name("a"), false).unwrap();
    assert_eq!(names(&stand.pool), ["b"]);
    assert!(stand.read("b") == noise(12 * MIB));
    stand.assert_at_rest();
}

#[test]
fn snapshots_of_others_keep_a_volume() {
    require!(Ceph::requirement());
    let stand = Stand::new("snapshots");
    stand.put("a", &noise(4 * MIB));
    stand.rbd(&["snap", "create", "a@theirs"]);
    let refused = stand.pool.delete(&name("a"), true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotEmpty, "{refused}");
    assert!(refused.to_string().contains("theirs"), "{refused}");
    assert_eq!(names(&stand.pool), ["a"]);
    stand.rbd(&["snap", "rm", "a@theirs"]);
    stand.pool.delete(&name("a"), true).unwrap();
    stand.assert_at_rest();
}
