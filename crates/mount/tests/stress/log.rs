//! The log of synced data, kept outside the mount.
//!
//! Model: a file was synced with some content under a name. A later operation may have happened or
//! not: each byte is the old or the new one, and the name is one of the two. A name that was
//! removed and whose directory was synced is absent.

use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;

/// Bytes that follow from a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub seed: u64,
    pub length: usize,
}

impl Content {
    /// Those of the shorter of two contents with the same seed are the first of the longer.
    pub fn bytes(self) -> Vec<u8> {
        let mut rng = Rng::with_seed(self.seed);
        (0..self.length).map(|_| rng.u8(..)).collect()
    }
}

/// A file.
#[derive(Clone, Debug)]
pub struct Known {
    /// Relative to the root; exactly one of them exists.
    pub names: Vec<PathBuf>,
    /// Contents at the last sync.
    pub old: Content,
    /// Contents being written; the same as `old` if there are none.
    pub new: Content,
}

/// All that one worker knows.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub files: Vec<Known>,
    pub gone: Vec<PathBuf>,
    /// How many calls of `fsync` and its kind returned.
    pub syncs: u64,
}

impl Log {
    /// Files that are missing or wrong.
    pub fn judge(&self, root: &Path) -> Vec<String> {
        let lost = self.files.iter().filter_map(|file| file.judge(root));
        let left = self.gone.iter().filter(|name| root.join(name).exists());
        let left = left.map(|name| format!("{} is still there", name.display()));
        lost.chain(left).collect()
    }
}

impl Known {
    pub fn new(name: &Path, content: Content) -> Self {
        Self {
            names: vec![name.to_owned()],
            old: content,
            new: content,
        }
    }

    fn judge(&self, root: &Path) -> Option<String> {
        let mut there = self.names.iter().filter(|name| root.join(name).exists());
        let (Some(name), None) = (there.next(), there.next()) else {
            return Some(format!("not exactly one of {:?} is there", self.names));
        };
        let found = match fs::read(root.join(name)) {
            Ok(found) => found,
            Err(error) => return Some(format!("{}: {error}", name.display())),
        };
        let (old, new) = (self.old.bytes(), self.new.bytes());
        let lengths = old.len().min(new.len())..=old.len().max(new.len());
        if !lengths.contains(&found.len()) {
            return Some(format!(
                "{}: {} bytes, not {lengths:?}",
                name.display(),
                found.len()
            ));
        }
        let may_be = |(at, byte): (usize, &u8)| {
            let old = old.get(at);
            // A part never synced may be a hole.
            old == Some(byte) || new.get(at) == Some(byte) || old.is_none() && *byte == 0
        };
        let wrong = found.iter().enumerate().position(|place| !may_be(place));
        wrong.map(|at| {
            format!(
                "{}: another byte at {at} of {}; {:?}, then {:?}",
                name.display(),
                found.len(),
                self.old,
                self.new
            )
        })
    }
}
