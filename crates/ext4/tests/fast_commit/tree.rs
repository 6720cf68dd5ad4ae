//! All that is to be seen of a file system, to compare two.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_ext4::{FileType, Filesystem, Node};
use extant_space::{ByteRange, ExtentState, SpaceFile};

/// Every inode by each of its names.
pub type Tree = BTreeMap<String, Seen>;

/// Visible state of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: FileType,
    pub permissions: u16,
    pub links: u16,
    pub size: u64,
    /// The bytes of a file, the target of a symbolic link.
    pub content: Vec<u8>,
    /// Start, end and state of an extent that is no hole.
    pub extents: Vec<(u64, u64, ExtentState)>,
}

pub fn tree(fs: &Filesystem) -> Tree {
    let mut tree = Tree::new();
    walk(&fs.root().unwrap(), "", &mut tree);
    tree
}

fn walk(directory: &Node, path: &str, tree: &mut Tree) {
    let mut names = Vec::new();
    directory
        .list(0, &mut |listed| {
            if !matches!(listed.name, b"." | b"..") {
                names.push(listed.name.to_vec());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    for name in names {
        let node = directory.lookup(&name).unwrap();
        let path = format!("{path}/{}", name.escape_ascii());
        let seen = look(&node);
        let is_directory = seen.kind == FileType::Directory;
        assert!(tree.insert(path.clone(), seen).is_none(), "{path} twice");
        if is_directory {
            walk(&node, &path, tree);
        }
    }
}

fn look(node: &Node) -> Seen {
    let attributes = node.attributes();
    let (mut content, mut extents) = (Vec::new(), Vec::new());
    match attributes.file_type {
        FileType::Regular => {
            let file = node.file().unwrap();
            content.resize(attributes.size_bytes as usize, 0);
            file.read_at(&mut content, 0).unwrap();
            let all = ByteRange::new(0, 1 << 40);
            file.for_each_extent(all, &mut |extent| {
                let (start, end) = (extent.logical.start(), extent.logical.end());
                match extents.last_mut() {
                    _ if extent.state == ExtentState::Hole => {}
                    Some((_, last, state)) if *last == start && *state == extent.state => {
                        *last = end;
                    }
                    _ => extents.push((start, end, extent.state)),
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        FileType::SymbolicLink => content = node.read_link().unwrap(),
        _ => {}
    }
    Seen {
        kind: attributes.file_type,
        permissions: attributes.permissions,
        links: attributes.links,
        size: match attributes.file_type {
            // The number of blocks of a directory is unspecified.
            FileType::Directory => 0,
            _ => attributes.size_bytes,
        },
        content,
        extents,
    }
}

/// The same for a host directory, except for the extents.
pub fn host_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk_host(root, "", &mut tree);
    tree
}

fn walk_host(dir: &Path, path: &str, tree: &mut Tree) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let path = format!("{path}/{}", name.as_bytes().escape_ascii());
        let metadata = entry.metadata().unwrap();
        let place = entry.path();
        let (kind, content) = match metadata.file_type() {
            kind if kind.is_dir() => (FileType::Directory, Vec::new()),
            kind if kind.is_symlink() => {
                let target = fs::read_link(&place).unwrap();
                (
                    FileType::SymbolicLink,
                    target.as_os_str().as_bytes().to_vec(),
                )
            }
            _ => (FileType::Regular, fs::read(&place).unwrap()),
        };
        let seen = Seen {
            kind,
            permissions: (metadata.mode() & 0o7777) as u16,
            links: metadata.nlink() as u16,
            size: match kind {
                FileType::Directory => 0,
                _ => metadata.len(),
            },
            content,
            extents: Vec::new(),
        };
        tree.insert(path.clone(), seen);
        if kind == FileType::Directory {
            walk_host(&place, &path, tree);
        }
    }
}

/// A tree as [`host_tree`] sees it.
pub fn without_extents(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.values_mut().for_each(|seen| seen.extents.clear());
    tree
}

/// Says where two trees differ.
#[track_caller]
pub fn assert_same(one: &Tree, other: &Tree, what: &str) {
    for path in one.keys().chain(other.keys()) {
        match (one.get(path), other.get(path)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let same = if a.content == b.content {
                    "same"
                } else {
                    "other"
                };
                panic!(
                    "{what}: {path}: {same} content; {:?} {:o} {} {} {:?}; {:?} {:o} {} {} {:?}",
                    a.kind,
                    a.permissions,
                    a.links,
                    a.size,
                    a.extents,
                    b.kind,
                    b.permissions,
                    b.links,
                    b.size,
                    b.extents
                );
            }
            (a, _) => panic!(
                "{what}: {path} is in the {} only",
                if a.is_some() { "first" } else { "second" }
            ),
        }
    }
}
