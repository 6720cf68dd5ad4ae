//! Small file systems of mke2fs, and their oracles.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{Filesystem, NewKind, NewNode, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Error, ErrorKind, Result, Silent};
use extant_testkit::command::{describe, run, run_any_status, tool};
use extant_testkit::mke2fs;
use extant_testkit::workdir::Workdir;

use crate::scenario;

pub const PLAIN: &str = "-t ext4 -b 1024 -J size=1 -N 128 -m 0 -O casefold,encrypt,verity";
pub const NO_JOURNAL: &str = "-t ext4 -b 1024 -N 128 -m 0 -O ^has_journal";
pub const OLD: &str = "-t ext4 -b 1024 -J size=1 -N 128 -m 0 -O ^orphan_file,^metadata_csum,^64bit,^flex_bg,uninit_bg";

pub const MAPS: &str = "-t ext3 -b 1024 -J size=1 -N 128 -m 0";

/// Makes a file system by mke2fs with `options`.
#[track_caller]
pub fn make(options: &str, kibibytes: u64) -> MemoryDevice {
    MemoryDevice::from_bytes(&mke2fs(options, kibibytes << 10))
}

/// The same, where the scenario ran before: there is something to be read.
#[track_caller]
pub fn used(options: &str) -> MemoryDevice {
    let image = Arc::new(make(options, 3072));
    let filesystem = open(image.clone()).unwrap();
    let outcome = scenario::run(&filesystem, "before");
    let is_refused = |error: &Error| options == MAPS && error.kind() == ErrorKind::Unsupported;
    assert!(
        outcome.errors.iter().all(is_refused),
        "{:?}",
        outcome.errors
    );
    filesystem.close().unwrap();
    image.snapshot()
}

/// Next to nothing is kept in memory, so that the device is asked again and again.
pub fn forgetful() -> Options {
    Options {
        commit_interval: Duration::from_secs(100_000),
        cached_blocks: 4,
        cached_inodes: 4,
        ..Options::default()
    }
}

pub fn open(device: Arc<dyn Device>) -> Result<Filesystem> {
    Filesystem::open(device, forgetful())
}

pub fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// Opens, closes and verifies the state after a failure.
#[track_caller]
pub fn assert_usable(image: &Arc<MemoryDevice>, judge: &mut Judge, what: &str) {
    let closed = open(image.clone()).and_then(Filesystem::close);
    closed.unwrap_or_else(|error| panic!("{what}: opened again: {error}"));
    judge.assert_clean(image, what);
}

/// Our check, and e2fsck with a file for it.
pub struct Judge {
    _work: Workdir,
    path: PathBuf,
}

impl Judge {
    pub fn new() -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        Self { _work: work, path }
    }

    #[track_caller]
    pub fn assert_clean(&mut self, image: &MemoryDevice, what: &str) {
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        let report = check(image, &CheckOptions::default(), control).unwrap();
        assert!(report.is_clean(), "{what}: {report}");
        if let Err(words) = self.e2fsck(image) {
            let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("trouble.img");
            fs::write(&kept, image.to_vec()).unwrap();
            panic!("{what}: {words}\nimage: {}", kept.display());
        }
    }

    /// Nothing is to be repaired, whatever errors are on record.
    pub fn e2fsck(&mut self, image: &MemoryDevice) -> Result<(), String> {
        fs::write(&self.path, image.to_vec()).unwrap();
        let output = run_any_status(tool("e2fsck").args(["-f", "-n"]).arg(&self.path));
        let output = output.map_err(|failure| failure.to_string())?;
        match output.status.code() {
            Some(0) => Ok(()),
            _ => Err(describe(&output)),
        }
    }

    /// Output of `dumpe2fs -h`.
    pub fn dumpe2fs(&mut self, image: &MemoryDevice) -> String {
        fs::write(&self.path, image.to_vec()).unwrap();
        let output = run(tool("dumpe2fs").arg("-h").arg(&self.path));
        let output = output.unwrap_or_else(|failure| panic!("{failure}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
