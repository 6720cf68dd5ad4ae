//! Extended attributes and access control lists.

use extant_fuse::Operations;
use extant_fuse::operations::{NodeId, Privileges, Result};
use extant_mount::volume::{IdMap, Owners, VolumeOptions};
use extant_testkit::require;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT, new_node};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(kernel: &Kernel, node: NodeId, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
    let request = kernel.request();
    let keep = Privileges::Keep;
    kernel
        .volume
        .set_xattr(&request, node, name, value, flags, keep)
}

fn get(kernel: &Kernel, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    kernel
        .volume
        .xattr(&kernel.request(), node, name, &mut value)?;
    Ok(value)
}

fn names(kernel: &Kernel, node: NodeId) -> Vec<String> {
    let mut names = Vec::new();
    let mut visit = |name: &[u8]| names.push(String::from_utf8(name.to_vec()).unwrap());
    kernel
        .volume
        .list_xattrs(&kernel.request(), node, &mut visit)
        .unwrap();
    names.sort();
    names
}

/// A list for owner, one user, group, mask and others.
fn list(user: u32, mask: u16) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    for (tag, permissions, id) in [
        (0x01u16, 6u16, nobody),
        (0x02, 7, user),
        (0x04, 5, nobody),
        (0x10, mask, nobody),
        (0x20, 0, nobody),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn attributes_have_the_names_and_errors_of_ext4() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    let none = XattrFlags::empty();
    for name in ["user.a", "trusted.b", "security.c"] {
        set(&kernel, node, name.as_bytes(), b"value", none).unwrap();
        assert_eq!(get(&kernel, node, name.as_bytes()).unwrap(), b"value");
    }
    assert_eq!(set(&kernel, node, b"user.", b"x", none), Err(Errno::INVAL));
    for name in ["system.x", "nothing.x", "plain", "system.richacl"] {
        let answer = set(&kernel, node, name.as_bytes(), b"x", none);
        assert_eq!(answer, Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(get(&kernel, node, name.as_bytes()), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(get(&kernel, node, b"user.none"), Err(Errno::NODATA));
    let again = set(&kernel, node, b"user.a", b"x", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let absent = set(&kernel, node, b"user.none", b"x", XattrFlags::REPLACE);
    assert_eq!(absent, Err(Errno::NODATA));
    let large = set(&kernel, node, b"user.large", &[0; 5_000], none);
    assert_eq!(large, Err(Errno::NOSPC));
    assert_eq!(names(&kernel, node), ["security.c", "trusted.b", "user.a"]);
    kernel.user(1000, 1000);
    assert_eq!(names(&kernel, node), ["security.c", "user.a"]);
    kernel
        .volume
        .remove_xattr(&kernel.request(), node, b"user.a")
        .unwrap();
    let again = kernel
        .volume
        .remove_xattr(&kernel.request(), node, b"user.a");
    assert_eq!(again, Err(Errno::NODATA));
    kernel.end();
}

#[test]
fn access_list_and_mode_say_the_same() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.chmod(file.node, 0o2644);
    set(
        &kernel,
        file.node,
        ACCESS,
        &list(1000, 7),
        XattrFlags::empty(),
    )
    .unwrap();
    assert_eq!(kernel.attributes(file.node).mode & 0o7777, 0o2670);
    kernel.chmod(file.node, 0o2640);
    assert_eq!(get(&kernel, file.node, ACCESS).unwrap(), list(1000, 4));
    let request = kernel.request();
    let (value, flags) = (list(1000, 6), XattrFlags::empty());
    let drop = Privileges::Drop;
    kernel
        .volume
        .set_xattr(&request, file.node, ACCESS, &value, flags, drop)
        .unwrap();
    assert_eq!(kernel.attributes(file.node).mode & 0o7777, 0o660);
    let wrong = set(&kernel, file.node, ACCESS, b"nonsense", XattrFlags::empty());
    assert_eq!(wrong, Err(Errno::INVAL));
    kernel.end();
}

#[test]
fn default_list_takes_the_place_of_the_umask() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let directory = kernel.mkdir(ROOT, "d", 0o777).unwrap();
    set(
        &kernel,
        directory.node,
        DEFAULT,
        &list(1000, 7),
        XattrFlags::empty(),
    )
    .unwrap();
    let (file, _) = kernel.create(directory.node, "f", 0o666).unwrap();
    // Owner 6, mask 7 limited by 6, others 0: not 666 with umask 022.
    assert_eq!(file.attributes.mode & 0o7777, 0o660);
    assert_eq!(get(&kernel, file.node, ACCESS).unwrap(), list(1000, 6));
    assert_eq!(get(&kernel, file.node, DEFAULT), Err(Errno::NODATA));
    let inner = kernel.mkdir(directory.node, "inner", 0o777).unwrap();
    assert_eq!(get(&kernel, inner.node, DEFAULT).unwrap(), list(1000, 7));
    let request = kernel.request();
    let link = kernel
        .volume
        .make_symlink(&request, directory.node, b"s", b"f")
        .unwrap();
    assert_eq!(link.attributes.mode & 0o7777, 0o777);
    assert_eq!(get(&kernel, link.node, ACCESS), Err(Errno::NODATA));
    let unnamed = kernel.volume.create_unnamed(
        &request,
        directory.node,
        &new_node(0o600),
        rustix::fs::OFlags::RDWR,
    );
    assert_eq!(
        get(&kernel, unnamed.unwrap().0.node, ACCESS).unwrap(),
        list(1000, 0)
    );
    kernel.end();
}

#[test]
fn lists_name_users_as_the_map_has_them() {
    let [a, b] = needs();
    require!(a, b);
    let options = VolumeOptions {
        owners: Owners {
            users: IdMap::root_as(1000),
            groups: IdMap::default(),
        },
        ..VolumeOptions::default()
    };
    let kernel = Kernel::with(16, options);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    set(
        &kernel,
        file.node,
        ACCESS,
        &list(1000, 6),
        XattrFlags::empty(),
    )
    .unwrap();
    assert_eq!(get(&kernel, file.node, ACCESS).unwrap(), list(1000, 6));
    let engine = kernel.volume.filesystem().root().unwrap();
    let stored = engine.lookup(b"a").unwrap().xattr(ACCESS).unwrap();
    assert_eq!(stored, list(0, 6));
    kernel.end();
}
