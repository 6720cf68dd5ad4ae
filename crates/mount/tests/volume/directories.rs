//! Listing directories.

use std::collections::BTreeSet;

use extant_fuse::Operations;
use extant_testkit::require;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::image::needs;
use crate::kernel::{Kernel, Names, ROOT};

fn fill(kernel: &Kernel, count: usize) -> BTreeSet<String> {
    let names: BTreeSet<_> = (0..count).map(|index| format!("file-{index}")).collect();
    for name in &names {
        let (file, _) = kernel.create(ROOT, name, 0o644).unwrap();
        kernel.volume.forget(file.node, 1);
    }
    names
}

#[test]
fn every_name_is_listed_once_however_few_fit() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let mut expected = fill(&kernel, 1_500);
    expected.extend([".", "..", "lost+found"].map(String::from));
    for room in [1, 7, 511, 512, 513, 5_000] {
        let opened = kernel
            .volume
            .open_directory(&kernel.request(), ROOT, OFlags::RDONLY);
        let handle = opened.unwrap().handle;
        let (mut cookie, mut seen) = (0, BTreeSet::new());
        loop {
            let listed = kernel.list(ROOT, handle, cookie, room);
            let Some((_, last)) = listed.names.last() else {
                break;
            };
            cookie = *last;
            for (name, _) in listed.names {
                assert!(
                    seen.insert(name.clone()),
                    "{name} twice with room for {room}"
                );
            }
        }
        assert_eq!(seen, expected, "room for {room}");
        kernel
            .volume
            .release_directory(&kernel.request(), ROOT, handle);
    }
    assert_eq!(kernel.volume.known_nodes(), 0);
    kernel.end();
}

#[test]
fn listing_continues_behind_a_removed_name() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let expected = fill(&kernel, 300);
    let opened = kernel
        .volume
        .open_directory(&kernel.request(), ROOT, OFlags::RDONLY);
    let handle = opened.unwrap().handle;
    let (mut cookie, mut seen) = (0, BTreeSet::new());
    loop {
        let listed = kernel.list(ROOT, handle, cookie, 10);
        let Some((_, last)) = listed.names.last() else {
            break;
        };
        cookie = *last;
        for (name, _) in listed.names {
            if name.starts_with("file-") {
                kernel.unlink(ROOT, &name).unwrap();
                seen.insert(name);
            }
        }
    }
    assert_eq!(seen, expected);
    assert_eq!(kernel.names(ROOT), ["lost+found"]);
    kernel.end();
}

#[test]
fn entries_of_a_listing_are_uses_of_their_nodes() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    fill(&kernel, 50);
    let mut sink = Names {
        room: 20,
        plus: true,
        ..Names::default()
    };
    let request = kernel.request();
    let handle = kernel
        .volume
        .open_directory(&request, ROOT, OFlags::RDONLY)
        .unwrap()
        .handle;
    kernel
        .volume
        .list(&request, ROOT, handle, 0, &mut sink)
        .unwrap();
    let entries: Vec<_> = sink.entries.into_iter().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 18);
    assert_eq!(kernel.volume.known_nodes(), 18);
    for entry in entries {
        assert_eq!(kernel.attributes(entry.node), entry.attributes);
        kernel.volume.forget(entry.node, 1);
    }
    assert_eq!(kernel.volume.known_nodes(), 0);
    let (file, _) = kernel.create(ROOT, "f", 0o644).unwrap();
    let mut sink = Names::default();
    let listed = kernel
        .volume
        .list(&request, file.node, handle, 0, &mut sink);
    assert_eq!(listed, Err(Errno::NOTDIR));
    kernel.end();
}
