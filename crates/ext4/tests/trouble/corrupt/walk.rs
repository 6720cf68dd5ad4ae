//! Reading everything in a damaged file system, and changing parts of it.

use std::ops::ControlFlow;

use extant_ext4::{FileType, Filesystem, NewKind, Node, RenameMode, XattrMode};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, SpaceFile, SyncMode};

use crate::image::new;

/// Read of one file; sizes may be anything.
const READ_MAX: u64 = 256 << 10;
/// Entered at most: directory loops are part of the test.
const DIRECTORIES_MAX: usize = 60;

/// The device never fails, and never receives a request outside its range.
#[track_caller]
pub(super) fn assert_named(error: &Error, what: &str) {
    let text = error.to_string();
    assert_ne!(error.kind(), ErrorKind::Io, "{what}: {text}");
    if error.kind() == ErrorKind::Corrupt {
        assert!(
            text.len() > 12 && text != ErrorKind::Corrupt.description(),
            "{what}: {text}"
        );
    }
}

pub(super) struct Walk<'w> {
    what: &'w str,
    directories: usize,
    pub(super) errors: usize,
    files: Vec<Node>,
}

impl<'w> Walk<'w> {
    pub(super) fn new(what: &'w str) -> Self {
        Self {
            what,
            directories: 0,
            errors: 0,
            files: Vec::new(),
        }
    }

    pub(super) fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert_named(&error, self.what);
                self.errors += 1;
                None
            }
        }
    }

    /// Reads everything of a node, and continues below.
    pub(super) fn node(&mut self, node: &Node, depth: usize) {
        for name in self.note(node.xattr_names()).unwrap_or_default() {
            self.note(node.xattr(&name));
        }
        match node.file_type() {
            FileType::Directory => self.directory(node, depth),
            FileType::SymbolicLink => drop(self.note(node.read_link())),
            FileType::Regular => {
                self.data(node);
                self.files.push(node.clone());
            }
            _ => {}
        }
    }

    fn directory(&mut self, node: &Node, depth: usize) {
        self.directories += 1;
        if self.directories > DIRECTORIES_MAX || depth > 20 {
            return;
        }
        let mut names = Vec::new();
        let listed = node.list(0, &mut |listed| {
            names.push(listed.name.to_vec());
            if names.len() < 2000 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.note(listed);
        for name in names
            .iter()
            .filter(|name| !matches!(&name[..], b"." | b".."))
        {
            if let Some(child) = self.note(node.lookup(name))
                && (self.files.len() < 40 || child.file_type() != FileType::Regular)
            {
                self.node(&child, depth + 1);
            }
        }
    }

    fn data(&mut self, node: &Node) {
        let Some(file) = self.note(node.file()) else {
            return;
        };
        let mut seen = 0;
        let mapped = file.for_each_extent(ByteRange::new(0, u64::MAX), &mut |_| {
            seen += 1;
            if seen < 5000 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.note(mapped);
        let size = self.note(file.size()).unwrap_or_default();
        let mut buffer = vec![0; size.min(READ_MAX) as usize];
        self.note(file.read_at(&mut buffer, 0));
        self.note(file.read_at(&mut buffer, size.saturating_sub(READ_MAX)));
    }

    /// Closes the handles for the changes.
    pub(super) fn let_go(&mut self) {
        self.files.clear();
    }

    /// A few changes of everything.
    pub(super) fn changes(&mut self, filesystem: &Filesystem) {
        let Some(root) = self.note(filesystem.root()) else {
            return;
        };
        for (number, node) in self.files.split_off(0).into_iter().take(3).enumerate() {
            if let Some(file) = self.note(node.file()) {
                let size = file.size().unwrap_or_default();
                self.note(file.write_at(&[7; 3000], 5000));
                self.note(file.write_at(&[7; 300], size));
                self.note(file.fallocate(FallocateMode::PunchHole, ByteRange::new(2048, 40_000)));
                self.note(file.fallocate(FallocateMode::CollapseRange, ByteRange::new(1024, 4096)));
                self.note(file.fallocate(FallocateMode::InsertRange, ByteRange::new(1024, 3072)));
                self.note(file.resize(size / 2));
            }
            self.note(node.set_xattr(b"user.new", &[1; 500], XattrMode::Set));
            self.note(root.link(format!("new{number}").as_bytes(), &node));
            self.note(node.sync(SyncMode::All));
        }
        let made = root.create(b"made", &new(NewKind::Directory));
        if let Some(made) = self.note(made) {
            for number in 0..30 {
                let name = format!("another name that is rather long, number {number}");
                self.note(made.create(name.as_bytes(), &new(NewKind::Regular)));
            }
            self.note(root.rename(b"sub", &made, b"sub", RenameMode::Replace));
        }
        self.note(root.unlink(b"long"));
        self.note(root.unlink(b"pipe"));
        if let Some(large) = self.note(root.lookup(b"large")) {
            for number in 0..40 {
                let name = format!("a name that fills a block of the directory, number {number}");
                self.note(large.unlink(name.as_bytes()));
            }
        }
        self.note(filesystem.sync());
    }
}
