//! Names, and the life of nodes.

use extant_fuse::Operations;
use extant_fuse::operations::{LookupEntry, NewNode, NodeId, Privileges};
use extant_testkit::require;
use rustix::fs::{OFlags, RenameFlags, makedev};
use rustix::io::Errno;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT, new_node};

const S_IFREG: u32 = 0o100_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFMT: u32 = 0o170_000;

fn rename(kernel: &Kernel, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
    let request = kernel.request();
    let (from, to) = (from.as_bytes(), to.as_bytes());
    kernel
        .volume
        .rename(&request, (ROOT, from), (ROOT, to), flags)
}

fn free_inodes(kernel: &Kernel) -> u64 {
    kernel.volume.sync_all(&kernel.request()).unwrap();
    kernel
        .volume
        .statistics(&kernel.request(), ROOT)
        .unwrap()
        .files_free
}

#[test]
fn node_is_known_until_every_use_is_released() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let made = kernel.mkdir(ROOT, "a", 0o755).unwrap();
    let found = kernel.lookup(ROOT, "a").unwrap();
    assert_eq!(found.node, made.node);
    assert_eq!(found.generation, made.generation);
    kernel.volume.forget(made.node, 1);
    assert_eq!(kernel.attributes(made.node).links, 2);
    kernel.volume.forget(made.node, 1);
    let gone = kernel.volume.attributes(&kernel.request(), made.node, None);
    assert_eq!(gone, Err(Errno::STALE));
    assert_eq!(kernel.volume.known_nodes(), 0);
    kernel.volume.forget(ROOT, 1_000);
    assert_eq!(kernel.attributes(ROOT).inode, 2);
    kernel.end();
}

#[test]
fn file_without_name_is_freed_with_its_last_handle() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let before = free_inodes(&kernel);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"still here").unwrap();
    kernel.unlink(ROOT, "a").unwrap();
    assert_eq!(kernel.lookup(ROOT, "a"), Err(Errno::NOENT));
    assert_eq!(kernel.attributes(file.node).links, 0);
    assert_eq!(kernel.read(file.node, 0, 100), b"still here");
    assert_eq!(free_inodes(&kernel), before - 1);
    kernel.volume.forget(file.node, 1);
    assert_eq!(free_inodes(&kernel), before);
    kernel.end();
}

#[test]
fn files_without_names_are_gone_after_the_end() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let before = free_inodes(&kernel);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, &[1; 100_000]).unwrap();
    kernel.unlink(ROOT, "a").unwrap();
    let request = kernel.request();
    let unnamed = kernel
        .volume
        .create_unnamed(&request, ROOT, &new_node(0o600), OFlags::RDWR);
    unnamed.unwrap();
    kernel.volume.destroy();
    assert_eq!(kernel.create(ROOT, "b", 0o644), Err(Errno::ROFS));
    let device = kernel.device.clone();
    drop(kernel);
    let again = crate::image::open(&device);
    assert_eq!(u64::from(again.statistics().free_inodes), before);
    drop(again);
    crate::image::assert_clean(&device);
}

#[test]
fn unnamed_file_that_gets_a_name_stays() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let request = kernel.request();
    let unnamed = kernel
        .volume
        .create_unnamed(&request, ROOT, &new_node(0o640), OFlags::RDWR);
    let (entry, _) = unnamed.unwrap();
    assert_eq!(entry.attributes.links, 0);
    kernel.write(entry.node, 0, b"named later").unwrap();
    let linked = kernel
        .volume
        .link(&request, entry.node, ROOT, b"a")
        .unwrap();
    assert_eq!((linked.node, linked.attributes.links), (entry.node, 1));
    kernel.volume.forget(entry.node, 2);
    let found = kernel.lookup(ROOT, "a").unwrap();
    assert_eq!(kernel.read(found.node, 0, 100), b"named later");
    kernel.end();
}

#[test]
fn create_of_a_taken_name_opens_it_unless_exclusive() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"data").unwrap();
    assert_eq!(kernel.create(ROOT, "a", 0o644), Err(Errno::EXIST));
    let create = |flags| {
        let (request, new) = (kernel.request(), new_node(0o600));
        kernel
            .volume
            .create(&request, ROOT, b"a", &new, flags, Privileges::Keep)
    };
    let (again, _) = create(OFlags::RDWR).unwrap();
    assert_eq!((again.node, again.attributes.size), (file.node, 4));
    assert_eq!(again.attributes.mode & 0o7777, 0o644);
    create(OFlags::RDWR | OFlags::TRUNC).unwrap();
    assert_eq!(kernel.attributes(file.node).size, 0);
    kernel.mkdir(ROOT, "d", 0o755).unwrap();
    let request = kernel.request();
    let (flags, keep) = (OFlags::RDWR, Privileges::Keep);
    let directory = kernel
        .volume
        .create(&request, ROOT, b"d", &new_node(0o600), flags, keep);
    assert_eq!(directory, Err(Errno::ISDIR));
    // The reference that a failed open took was returned.
    let known = kernel.volume.known_nodes();
    let d = kernel.lookup(ROOT, "d").unwrap();
    kernel.volume.forget(d.node, 2);
    assert_eq!(kernel.volume.known_nodes(), known - 1);
    kernel.end();
}

#[test]
fn new_file_belongs_to_the_caller_and_obeys_umask_and_setgid() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let directory = kernel.mkdir(ROOT, "d", 0o777).unwrap();
    assert_eq!(directory.attributes.mode & 0o7777, 0o755);
    let change = extant_fuse::operations::AttributeChange {
        permissions: Some(0o2777),
        gid: Some(77),
        ..Default::default()
    };
    kernel.change(directory.node, change).unwrap();
    kernel.user(1000, 1000);
    let (file, _) = kernel.create(directory.node, "f", 0o666).unwrap();
    let (attributes, mode) = (file.attributes, file.attributes.mode & 0o7777);
    assert_eq!((attributes.uid, attributes.gid, mode), (1000, 77, 0o644));
    let inner = kernel.mkdir(directory.node, "inner", 0o777).unwrap();
    assert_eq!(inner.attributes.mode & 0o7777, 0o2755);
    assert_eq!(inner.attributes.gid, 77);
    let (plain, _) = kernel.create(ROOT, "f", 0o666).unwrap();
    assert_eq!(plain.attributes.gid, 1000);
    kernel.end();
}

#[test]
fn device_keeps_its_number() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let make = |name: &str, mode, device| {
        let new = NewNode {
            mode,
            umask: 0,
            device,
        };
        let request = kernel.request();
        kernel
            .volume
            .make_node(&request, ROOT, name.as_bytes(), &new)
    };
    for (index, (major, minor)) in [(1, 3), (259, 70_000), (0xFFF, 0xF_FFFF)]
        .into_iter()
        .enumerate()
    {
        let made = make(&format!("d{index}"), S_IFCHR | 0o600, makedev(major, minor)).unwrap();
        assert_eq!(made.attributes.device, makedev(major, minor));
        assert_eq!(made.attributes.mode, S_IFCHR | 0o600);
    }
    assert_eq!(make("x", S_IFCHR, makedev(0x1000, 0)), Err(Errno::INVAL));
    assert_eq!(make("x", 0o040_755, 0), Err(Errno::INVAL));
    let plain = make("plain", S_IFREG | 0o600, 0).unwrap();
    assert_eq!(plain.attributes.mode & S_IFMT, S_IFREG);
    kernel.end();
}

#[test]
fn forgotten_node_is_found_by_its_number() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let directory = kernel.mkdir(ROOT, "d", 0o755).unwrap();
    let (file, _) = kernel.create(directory.node, "f", 0o644).unwrap();
    kernel.volume.forget(file.node, 1);
    kernel.volume.forget(directory.node, 1);
    let found = kernel.lookup(file.node, ".").unwrap();
    assert_eq!((found.node, found.generation), (file.node, file.generation));
    let up = kernel.lookup(directory.node, "..").unwrap();
    assert_eq!(up.node, ROOT);
    assert_eq!(kernel.lookup(NodeId(11_111), "."), Err(Errno::STALE));
    for reserved in [0, 2, 7, 8] {
        assert_eq!(kernel.lookup(NodeId(reserved), "."), Err(Errno::STALE));
    }
    kernel.unlink(directory.node, "f").unwrap_err();
    let directory = kernel.lookup(directory.node, ".").unwrap();
    kernel.unlink(directory.node, "f").unwrap();
    // Known until it is forgotten, but not to be found again.
    assert_eq!(kernel.lookup(file.node, "."), Err(Errno::STALE));
    assert_eq!(kernel.attributes(file.node).links, 0);
    kernel.volume.forget(directory.node, 1);
    assert_eq!(kernel.lookup(NodeId(u64::MAX), "."), Err(Errno::STALE));
    assert_eq!(kernel.lookup(directory.node, "f"), Err(Errno::STALE));
    kernel.end();
}

#[test]
fn rename_obeys_its_flags() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (one, _) = kernel.create(ROOT, "one", 0o644).unwrap();
    let (two, _) = kernel.create(ROOT, "two", 0o644).unwrap();
    let node = |kernel: &Kernel, name: &str| {
        kernel
            .lookup(ROOT, name)
            .map(|entry: LookupEntry| entry.node)
    };
    let (none, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
    assert_eq!(
        rename(&kernel, "one", "two", RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    assert_eq!(rename(&kernel, "one", "three", exchange), Err(Errno::NOENT));
    rename(&kernel, "one", "two", exchange).unwrap();
    assert_eq!(node(&kernel, "two"), Ok(one.node));
    assert_eq!(node(&kernel, "one"), Ok(two.node));
    kernel.user(1000, 1001);
    rename(&kernel, "one", "three", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(node(&kernel, "three"), Ok(two.node));
    let left = kernel.lookup(ROOT, "one").unwrap().attributes;
    assert_eq!((left.mode & S_IFMT, left.device), (S_IFCHR, 0));
    assert_eq!((left.uid, left.gid), (1000, 1001));
    rename(&kernel, "two", "three", none).unwrap();
    assert_eq!(node(&kernel, "three"), Ok(one.node));
    let both = exchange | RenameFlags::WHITEOUT;
    assert_eq!(rename(&kernel, "three", "one", both), Err(Errno::INVAL));
    assert_eq!(kernel.names(ROOT), ["lost+found", "one", "three"]);
    kernel.end();
}

#[test]
fn names_have_the_errors_of_ext4() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let long = "x".repeat(256);
    assert_eq!(kernel.lookup(ROOT, &long), Err(Errno::NAMETOOLONG));
    assert_eq!(kernel.create(ROOT, &long, 0o644), Err(Errno::NAMETOOLONG));
    kernel.create(ROOT, &long[1..], 0o644).unwrap();
    let directory = kernel.mkdir(ROOT, "d", 0o755).unwrap();
    let (file, _) = kernel.create(directory.node, "f", 0o644).unwrap();
    let request = kernel.request();
    let rmdir = |parent, name: &[u8]| kernel.volume.remove_directory(&request, parent, name);
    assert_eq!(rmdir(ROOT, b"d"), Err(Errno::NOTEMPTY));
    assert_eq!(rmdir(directory.node, b"f"), Err(Errno::NOTDIR));
    assert_eq!(kernel.unlink(ROOT, "d"), Err(Errno::ISDIR));
    assert_eq!(kernel.unlink(ROOT, "none"), Err(Errno::NOENT));
    assert_eq!(kernel.lookup(file.node, "x"), Err(Errno::NOTDIR));
    let link = kernel.volume.link(&request, directory.node, ROOT, b"d2");
    assert_eq!(link, Err(Errno::PERM));
    let target = vec![b'x'; 4096];
    let symlink = |target: &[u8]| kernel.volume.make_symlink(&request, ROOT, b"s", target);
    assert_eq!(symlink(&target), Err(Errno::NAMETOOLONG));
    let made = symlink(&target[1..]).unwrap();
    assert_eq!(made.attributes.mode, 0o120_777);
    let mut read = Vec::new();
    kernel
        .volume
        .read_link(&request, made.node, &mut read)
        .unwrap();
    assert_eq!(read, target[1..]);
    // A directory that was removed takes no new names.
    kernel.unlink(directory.node, "f").unwrap();
    rmdir(ROOT, b"d").unwrap();
    assert_eq!(kernel.create(directory.node, "g", 0o644), Err(Errno::NOENT));
    kernel.end();
}
