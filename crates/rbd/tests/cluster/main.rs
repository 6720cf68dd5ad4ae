//! Images of a real cluster: what librbd stores is read back by Ceph's own tools and QEMU, and the
//! reverse.

#![forbid(unsafe_code)]

mod admin;
mod device;
mod materialize;
mod refused;
mod trouble;

use extant_rbd::{Cluster, ClusterOptions, ImageLayout, Pool, RbdName};
use extant_testkit::ceph::{Ceph, POOL};

/// The options by which tests connect.
fn options(ceph: &Ceph) -> ClusterOptions {
    ClusterOptions {
        conf: Some(ceph.conf()),
        ..ClusterOptions::default()
    }
}

fn pool(ceph: &Ceph) -> Pool {
    let cluster = Cluster::connect(&options(ceph)).unwrap();
    Pool::open(&cluster, POOL, "").unwrap()
}

/// A new image, and its name.
fn image(ceph: &Ceph, name: &str, bytes: u64, layout: &ImageLayout) -> RbdName {
    pool(ceph).create(name, bytes, layout).unwrap();
    ceph.name(name).parse().unwrap()
}
