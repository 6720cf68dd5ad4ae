//! e2fsck on a sample of the cuts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use extant_blockdev::MemoryDevice;
use extant_testkit::command::{describe, run_any_status, tool};
use extant_testkit::workdir::Workdir;

use crate::image::Commits;

/// A file for images; only the differences to the last image are written.
pub struct Oracle {
    _work: Workdir,
    path: PathBuf,
    file: File,
    contents: Vec<u8>,
    pub runs: usize,
}

/// Result of e2fsck on a file system that was cut.
pub enum Theirs {
    Recovered(MemoryDevice),
    /// It drops the log, by a bug of 1.47.0:
    /// - it refuses fast commits of a transaction that has been committed in full since. The
    ///   journal erases them, and this state occurs between the two;
    /// - it cancels where the first of a log is torn inside its first block, and continues with an
    ///   invalid tag. No write order of the kernel's format avoids it.
    Stumbled,
}

/// Compared and written at a time.
const PIECE: usize = 64 << 10;

impl Oracle {
    pub fn new(base: &MemoryDevice) -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        let contents = base.to_vec();
        file.write_all_at(&contents, 0).unwrap();
        Self {
            _work: work,
            path,
            file,
            contents,
            runs: 0,
        }
    }

    fn put(&mut self, image: &MemoryDevice) {
        let new = image.to_vec();
        for (number, piece) in new.chunks(PIECE).enumerate() {
            let range = number * PIECE..number * PIECE + piece.len();
            if self.contents[range.clone()] != *piece {
                self.file.write_all_at(piece, range.start as u64).unwrap();
            }
        }
        self.contents = new;
    }

    /// Returns the repairs that a cleanly closed file system needs.
    pub fn examine(&mut self, image: &MemoryDevice) -> Result<(), String> {
        self.put(image);
        self.runs += 1;
        let output = run_any_status(tool("e2fsck").args(["-f", "-n"]).arg(&self.path));
        let output = output.map_err(|failure| failure.to_string())?;
        match output.status.code() {
            Some(0) => Ok(()),
            _ => Err(describe(&output)),
        }
    }

    /// Repairs a file system without a journal that was cut. One pass of e2fsck 1.47.0 may leave
    /// some of it.
    pub fn repair(&mut self, image: &MemoryDevice) -> Result<MemoryDevice, String> {
        self.put(image);
        let mut words = String::new();
        for _ in 0..4 {
            self.runs += 1;
            let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&self.path));
            let output = output.map_err(|failure| failure.to_string())?;
            self.file.read_exact_at(&mut self.contents, 0).unwrap();
            words += &describe(&output);
            match output.status.code() {
                Some(0) => return Ok(MemoryDevice::from_bytes(&self.contents)),
                Some(1) => {}
                _ => break,
            }
        }
        Err(words)
    }

    /// Recovery by e2fsck of a file system that was cut; it must find nothing else to repair.
    pub fn recover(&mut self, image: &MemoryDevice, commits: Commits) -> Result<Theirs, String> {
        self.put(image);
        self.runs += 1;
        let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&self.path));
        let output = output.map_err(|failure| failure.to_string())?;
        let mut after = vec![0; self.contents.len()];
        self.file.read_exact_at(&mut after, 0).unwrap();
        self.contents = after;
        let words = describe(&output);
        let stumbles = ["Invalid argument", "Operation canceled"];
        let has_stumbled = stumbles
            .iter()
            .any(|stumble| words.contains(&format!("{stumble} while recovering journal")));
        if commits == Commits::Fast && has_stumbled {
            return Ok(Theirs::Stumbled);
        }
        // 1: it wrote, as it had to.
        let is_good = matches!(output.status.code(), Some(0 | 1));
        if is_good && !words.contains("FIXED") && !words.contains("e2fsck:") {
            Ok(Theirs::Recovered(MemoryDevice::from_bytes(&self.contents)))
        } else {
            Err(words)
        }
    }
}
