//! Images made by mke2fs, filled by the kernel or debugfs, checked by our check and by e2fsck.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_blockdev::MemoryDevice;
use extant_fsck::{CheckOptions, Report, check};
use extant_space::{CancelToken, Control, Result, Silent};
use extant_testkit::command::{run, run_any_status, tool};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;

/// A file system in a file.
pub struct Image {
    work: Workdir,
    path: PathBuf,
}

impl Image {
    /// Makes a file system of `mebibytes` MiB by `mke2fs` with `options`.
    #[track_caller]
    pub fn new(options: &str, mebibytes: u64) -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        let file = fs::File::create(&path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        // Numbers that do not change make images that do not.
        run(tool("mke2fs")
            .env("E2FSPROGS_FAKE_TIME", "1700000000")
            .args(["-q", "-F", "-U", "6c6f7265-6d20-6970-7375-6d20646f6c6f"])
            .args(["-E", "hash_seed=72206974-2061-6d65-742c-20636f6e7365"])
            .args(options.split_whitespace())
            .arg(&path))
        .unwrap_or_else(|failure| panic!("{failure}"));
        Self { work, path }
    }

    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    pub fn set_bytes(&self, bytes: &[u8]) {
        fs::write(&self.path, bytes).unwrap();
    }

    /// Replaces bytes from `offset` on.
    pub fn write_at(&self, bytes: &[u8], offset: usize) {
        let file = fs::File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset as u64).unwrap();
    }

    /// Mounts it, lets `fill` work in the directory, and unmounts.
    #[track_caller]
    pub fn mounted(&self, fill: impl FnOnce(&Path)) {
        let device = LoopDevice::attach(&self.path);
        let place = self.work.directory("mounted");
        let mount = Mount::new("ext4", device.path(), &place, "");
        fill(&place);
        mount.unmount();
        fs::remove_dir(place).unwrap();
    }

    /// Runs debugfs, one command a line.
    #[track_caller]
    pub fn debugfs(&self, commands: &str) -> String {
        let script = self.work.path().join("script");
        let mut file = fs::File::create(&script).unwrap();
        file.write_all(commands.as_bytes()).unwrap();
        let mut command = tool("debugfs");
        command.args(["-w", "-f"]).arg(script).arg(&self.path);
        let output = run(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Has e2fsck repair it.
    #[track_caller]
    pub fn repair(&self) {
        let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&self.path)).unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    }

    /// The verdict of e2fsck: its exit status and its output.
    #[track_caller]
    pub fn e2fsck(&self) -> (i32, String) {
        let mut command = tool("e2fsck");
        command.arg("-fnv").arg(&self.path);
        let output = run_any_status(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
        let words = [output.stdout, output.stderr].concat();
        let status = output.status.code().expect("an exit status");
        (status, String::from_utf8_lossy(&words).into_owned())
    }

    /// Our own verdict.
    pub fn check(&self) -> Result<Report> {
        self.check_with(&CheckOptions::default())
    }

    pub fn check_with(&self, options: &CheckOptions) -> Result<Report> {
        check_device(&MemoryDevice::from_bytes(&self.bytes()), options)
    }
}

/// Our verdict on an image in memory.
pub fn check_device(device: &MemoryDevice, options: &CheckOptions) -> Result<Report> {
    let cancel = CancelToken::new();
    check(device, options, Control::new(&cancel, &Silent))
}
