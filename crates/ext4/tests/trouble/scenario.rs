//! Some of every operation; failures are ignored, and the synced state is remembered.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use extant_ext4::{FileType, Filesystem, FollowLast, NewKind, Node, RenameMode, XattrMode};
use extant_space::{ByteRange, Error, FallocateMode, Result, SpaceFile, SyncMode};

use crate::image::new;

/// Result of a scenario.
#[derive(Default)]
pub struct Outcome {
    /// Contents of files that were synced, by path.
    pub promised: BTreeMap<String, Vec<u8>>,
    pub errors: Vec<Error>,
    pub done: usize,
}

impl Outcome {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    /// Checks the synced state.
    #[track_caller]
    pub fn assert_kept(&self, filesystem: &Filesystem, what: &str) {
        for (path, contents) in &self.promised {
            let found = filesystem
                .resolve(path.as_bytes(), FollowLast::No)
                .and_then(|node| contents_of(&node));
            match found {
                Ok(found) if found == *contents => {}
                Ok(_) => panic!("{what}: {path} has other contents"),
                Err(error) => panic!("{what}: {path}: {error}"),
            }
        }
    }
}

fn contents_of(node: &Node) -> Result<Vec<u8>> {
    let file = node.file()?;
    let mut bytes = vec![0; file.size()? as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Reads everything and creates more, in directories that begin with `prefix`; continues after
/// every error.
pub fn run(filesystem: &Filesystem, prefix: &str) -> Outcome {
    let mut outcome = Outcome::default();
    run_into(filesystem, prefix, &mut outcome);
    outcome
}

/// The same, and returns the steps before a panic.
pub fn run_into(filesystem: &Filesystem, prefix: &str, outcome: &mut Outcome) {
    if let Some(root) = outcome.note(filesystem.root()) {
        look(&root, outcome);
    }
    for round in 0..4 {
        let Some(root) = outcome.note(filesystem.root()) else {
            continue;
        };
        let name = format!("{prefix}{round}");
        let made = root.create(name.as_bytes(), &new(NewKind::Directory));
        let Some(directory) = outcome.note(made) else {
            continue;
        };
        fill(&directory, &name, round, outcome);
        shuffle(&root, &directory, round, outcome);
        if round == 2 {
            outcome.note(filesystem.sync());
        }
    }
}

/// Reads everything below a directory.
fn look(directory: &Node, outcome: &mut Outcome) {
    let mut names = Vec::new();
    let listed = directory.list(0, &mut |listed| {
        names.push(listed.name.to_vec());
        ControlFlow::Continue(())
    });
    outcome.note(listed);
    for name in names
        .iter()
        .filter(|name| !matches!(&name[..], b"." | b".."))
    {
        let Some(node) = outcome.note(directory.lookup(name)) else {
            continue;
        };
        outcome.note(node.xattr_names());
        match node.file_type() {
            FileType::Directory => look(&node, outcome),
            FileType::Regular => drop(outcome.note(contents_of(&node))),
            FileType::SymbolicLink => drop(outcome.note(node.read_link())),
            _ => {}
        }
    }
}

/// Files with data in every state; the last sync determines the required content.
fn fill(directory: &Node, name: &str, round: u8, outcome: &mut Outcome) {
    let Some(node) = outcome.note(directory.create(b"file", &new(NewKind::Regular))) else {
        return;
    };
    let Some(file) = outcome.note(node.file()) else {
        return;
    };
    let range = |start: u64, end: u64| ByteRange::new(start << 10, end << 10);
    outcome.note(file.write_at(&[round + 1; 9000], 100));
    // Apart from each other, so that the tree gets nodes.
    for piece in 0..6 {
        outcome.note(file.write_at(&[round + 7; 700], (20 + piece * 3) << 10));
    }
    outcome.note(file.fallocate(FallocateMode::Allocate, range(40, 60)));
    outcome.note(file.write_at(&[9; 100], 50 << 10));
    outcome.note(file.fallocate(FallocateMode::WriteZeroes, range(44, 46)));
    outcome.note(file.fallocate(FallocateMode::PunchHole, range(3, 24)));
    outcome.note(file.fallocate(FallocateMode::CollapseRange, range(1, 2)));
    outcome.note(file.fallocate(FallocateMode::InsertRange, range(2, 5)));
    outcome.note(file.fallocate(FallocateMode::ZeroRange, range(30, 33)));
    outcome.note(file.resize(52_000));
    outcome.note(node.set_xattr(b"user.long", &[round; 700], XattrMode::Set));
    outcome.note(node.set_xattr(b"user.short", b"x", XattrMode::Set));
    let contents = contents_of(&node);
    if let (Some(()), Some(contents)) = (
        outcome.note(node.sync(SyncMode::All)),
        outcome.note(contents),
    ) {
        outcome.promised.insert(format!("/{name}/file"), contents);
    }
}

/// Names are created and removed.
fn shuffle(root: &Node, directory: &Node, round: u8, outcome: &mut Outcome) {
    let target = [b't'; 300];
    outcome.note(directory.create(b"link", &new(NewKind::SymbolicLink(&target))));
    outcome.note(directory.create(b"pipe", &new(NewKind::Fifo)));
    for number in 0..12 {
        let name = format!("a name that takes its place in the directory {number}");
        if number % 4 == 0 {
            outcome.note(directory.create(name.as_bytes(), &new(NewKind::Regular)));
        } else if let Some(node) = outcome.note(directory.lookup(b"link")) {
            outcome.note(directory.link(name.as_bytes(), &node));
        }
    }
    let sub = outcome.note(directory.create(b"sub", &new(NewKind::Directory)));
    let moved = format!("moved{round}");
    outcome.note(directory.rename(b"sub", root, moved.as_bytes(), RenameMode::NoReplace));
    outcome.note(directory.rename(b"pipe", directory, b"link", RenameMode::Exchange));
    if let Some(sub) = sub {
        outcome.note(directory.rename(b"pipe", &sub, b"inside", RenameMode::Replace));
        outcome.note(sub.unlink(b"inside"));
    }
    // One is open when it loses its name, and one has none from the start.
    if let Some(unnamed) = outcome.note(directory.create_unnamed(&new(NewKind::Regular))) {
        let file = outcome.note(unnamed.file());
        if let Some(file) = file {
            outcome.note(file.write_at(&[3; 5000], 0));
        }
    }
    for number in 0..6 {
        let name = format!("a name that takes its place in the directory {number}");
        outcome.note(directory.unlink(name.as_bytes()));
    }
    let mut names = 0;
    let listed = directory.list(0, &mut |_| {
        names += 1;
        ControlFlow::Continue(())
    });
    outcome.note(listed);
    outcome.note(root.remove_directory(moved.as_bytes()));
}
