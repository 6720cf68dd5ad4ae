//! File systems of mke2fs in files, and the locations of their journals.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_jbd2::{JournalLocation, Recovery, Run};
use extant_ondisk::ext4::PhysicalBlock;
use extant_testkit::command::{self, tool};
use extant_testkit::workdir::Workdir;

pub const BLOCK: usize = 1024;

/// A file system of 16 MiB in blocks of 1 KiB with a journal of 1,024 blocks.
pub struct Image {
    _work: Workdir,
    pub path: PathBuf,
}

impl Image {
    #[track_caller]
    pub fn new() -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        let file = fs::File::create_new(&path).unwrap();
        file.set_len(16 << 20).unwrap();
        let mut mkfs = tool("mkfs.ext4");
        mkfs.args(["-q", "-b", "1024", "-J", "size=1"]).arg(&path);
        command::run(&mut mkfs).unwrap_or_else(|failure| panic!("{failure}"));
        Self { _work: work, path }
    }

    /// A copy of `other` in a directory of its own.
    #[track_caller]
    pub fn copy_of(other: &Path) -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::copy(other, &path).unwrap();
        Self { _work: work, path }
    }

    pub fn load(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(&fs::read(&self.path).unwrap()))
    }

    pub fn store(&self, device: &MemoryDevice) {
        fs::write(&self.path, device.to_vec()).unwrap();
    }

    /// Runs commands of debugfs that may write; returns what it printed.
    #[track_caller]
    pub fn debugfs(&self, commands: &str) -> String {
        let script = self.path.with_extension("script");
        fs::write(&script, commands).unwrap();
        let mut debugfs = tool("debugfs");
        debugfs.arg("-w").arg("-f").arg(script).arg(&self.path);
        command::text(&mut debugfs).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Says that the journal is to be replayed.
    #[track_caller]
    pub fn set_needs_recovery(&self) {
        self.debugfs("feature needs_recovery\n");
    }

    /// Blocks that the file system does not use.
    #[track_caller]
    pub fn free_blocks(&self, count: usize) -> Vec<u64> {
        let answer = self.debugfs(&format!("ffb {count} 4000\n"));
        let (_, numbers) = answer
            .split_once("Free blocks found:")
            .expect("free blocks");
        let numbers = numbers.split_whitespace().map(|word| word.parse().unwrap());
        numbers.collect()
    }

    #[track_caller]
    pub fn location(&self, block: usize) -> JournalLocation {
        let answer = self.debugfs("dump_extents -l <8>\n");
        let runs: Vec<Run> = answer.lines().filter_map(run).collect();
        JournalLocation::new(block as u32, &runs)
            .unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// `e2fsck -y` with options; it must report no error, or that it repaired all errors.
    #[track_caller]
    pub fn e2fsck(&self, options: &[&str]) -> String {
        let mut e2fsck = tool("e2fsck");
        e2fsck.arg("-y").args(options).arg(&self.path);
        let output = command::run_any_status(&mut e2fsck).unwrap();
        let report = command::describe(&output);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{report}");
        report
    }

    pub fn block(&self, number: u64) -> Vec<u8> {
        block(&*self.load(), number)
    }
}

/// A line such as ` 0/ 0   1/  1     0 -  1023  8322 -  9345   1024`.
fn run(line: &str) -> Option<Run> {
    let words: Vec<&str> = line
        .split(|letter: char| !letter.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    let [_, _, _, _, _, _, first, _, blocks] = words[..] else {
        return None;
    };
    Some(Run {
        first: PhysicalBlock(first.parse().ok()?),
        blocks: blocks.parse().ok()?,
    })
}

pub fn block(device: &dyn Device, number: u64) -> Vec<u8> {
    let mut contents = vec![0; BLOCK];
    let at = number * BLOCK as u64;
    device.read_at(&mut contents, at).unwrap();
    contents
}

/// Recovers wholly.
#[track_caller]
pub fn recover(device: Arc<dyn Device>, location: JournalLocation) -> extant_jbd2::RecoveryReport {
    let recovery = Recovery::read(device, location).unwrap();
    let report = *recovery.report();
    recovery.replay().unwrap();
    recovery.finish().unwrap();
    report
}
