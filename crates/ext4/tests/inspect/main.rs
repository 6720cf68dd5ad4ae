//! Looking at a whole file system: all inodes, free runs, descriptors, journal, trees, while it is
//! changed and after.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Access, Filesystem, InodeNumber, NewKind, NewNode, Node, Options, TreeEntry};
use extant_ondisk::ext4::GroupNumber;
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile};
use extant_testkit::{mke2fs, require, requires};

fn device(options: &str) -> Arc<MemoryDevice> {
    let bytes = mke2fs(&format!("-t ext4 {options}"), 64 << 20);
    Arc::new(MemoryDevice::from_bytes(&bytes))
}

fn open(device: &Arc<MemoryDevice>, access: Access) -> Filesystem {
    let options = Options {
        access,
        ..Options::default()
    };
    Filesystem::open(device.clone(), options).unwrap()
}

fn create(directory: &Node, name: &str) -> Node {
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    directory.create(name.as_bytes(), &new).unwrap()
}

/// Files in use, by number, with the bytes of their extents.
fn files(fs: &Filesystem) -> Vec<(u32, u64)> {
    let first = fs.superblock().layout().first_inode();
    let mut found = Vec::new();
    fs.for_each_inode(&mut |inode| {
        let inode = inode.unwrap();
        let mut bytes = 0;
        inode
            .for_each_extent(&mut |extent| {
                bytes += extent.logical.len();
                ControlFlow::Continue(())
            })
            .unwrap();
        if inode.number > first && inode.inode.links() > 0 {
            found.push((inode.number.0, bytes));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn free_blocks(fs: &Filesystem) -> u64 {
    let mut sum = 0;
    let mut end = 0;
    fs.for_each_free_run(&mut |run| {
        assert!(
            run.start > end || end == 0,
            "{run:?} touches the run before it"
        );
        assert!(run.end > run.start);
        end = run.end;
        sum += run.end - run.start;
        ControlFlow::Continue(())
    })
    .unwrap();
    sum
}

#[test]
fn created_files_are_visible_before_and_after_closing() {
    require!(requires::tool("mke2fs"));
    for options in ["-b 4096", "-b 1024 -O ^flex_bg,^metadata_csum"] {
        let device = device(options);
        let fs = open(&device, Access::ReadWrite);
        let empty = free_blocks(&fs);
        let mut wanted = BTreeSet::new();
        for at in 1..=40 {
            let node = create(&fs.root().unwrap(), &at.to_string());
            let file = node.file().unwrap();
            file.write_at(&vec![7; 4096 * at], 0).unwrap();
            wanted.insert((node.number().0, 4096 * at as u64));
        }
        fs.root().unwrap().unlink(b"7").unwrap();
        wanted.retain(|&(_, bytes)| bytes != 4096 * 7);
        let is_wanted = |fs: &Filesystem| {
            let found: BTreeSet<_> = files(fs).into_iter().collect();
            wanted.iter().all(|file| found.contains(file))
        };
        assert!(is_wanted(&fs), "{options}: open for changes");
        let block_bytes = u64::from(fs.block_bytes());
        let taken: u64 = wanted.iter().map(|(_, bytes)| bytes / block_bytes).sum();
        // The root directory may have grown.
        assert!(
            (taken..taken + 4).contains(&(empty - free_blocks(&fs))),
            "{options}"
        );
        assert!(fs.journal().unwrap().unwrap().recovery.is_none());
        fs.close().unwrap();

        let fs = open(&device, Access::ReadOnly);
        assert!(is_wanted(&fs), "{options}: read-only");
        assert_eq!(free_blocks(&fs), fs.statistics().free_blocks, "{options}");
        let groups = fs.superblock().layout().groups();
        let descriptors = (0..groups).map(|group| fs.group_descriptor(GroupNumber(group)).unwrap());
        let sum: u64 = descriptors
            .map(|found| u64::from(found.free_blocks()))
            .sum();
        assert_eq!(sum, fs.statistics().free_blocks, "{options}");
        let error = fs.group_descriptor(GroupNumber(groups)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let journal = fs.journal().unwrap().unwrap();
        assert_eq!(journal.inode, InodeNumber::JOURNAL);
        assert_eq!(journal.recovery.unwrap().transactions, 0);
        let blocks: u32 = journal.runs.iter().map(|run| run.blocks).sum();
        assert_eq!(blocks, journal.superblock.blocks());
    }
}

#[test]
fn entries_of_a_tree_are_its_extents_below_their_nodes() {
    require!(requires::tool("mke2fs"));
    let device = device("-b 1024");
    let fs = open(&device, Access::ReadWrite);
    let node = create(&fs.root().unwrap(), "holes");
    let file = node.file().unwrap();
    for at in 0..500 {
        let range = ByteRange::new(at * 4096, at * 4096 + 1024);
        file.fallocate(FallocateMode::Allocate, range).unwrap();
    }
    let (mut extents, mut nodes, mut below) = (0, 0, 0);
    let root = node
        .for_each_tree_entry(&mut |at, index, entry| {
            assert!(index < at.entries && at.entries <= at.capacity);
            match entry {
                TreeEntry::Extent(extent) => {
                    assert_eq!((at.depth, u64::from(extent.logical.0)), (0, 4 * extents));
                    assert_eq!(at.block.is_some(), at.level > 0);
                    extents += 1;
                }
                TreeEntry::Index(_) => {
                    assert!(at.depth > 0);
                    nodes += 1;
                    below = below.max(at.level + 1);
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(extents, 500);
    assert!(
        nodes >= 500 / 84 && below == root.depth,
        "{nodes} nodes, {root:?}"
    );
    assert_eq!(node.inode().links(), 1);
}
