//! An image in a file, and the programs that make, fill and check it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_ondisk::ext4::{Layout, PhysicalBlock, Superblock};
use extant_testkit::command::{self, tool};
use extant_testkit::requires::{self, Requirement};
use extant_testkit::workdir::Workdir;

/// Requirements of every test here.
pub fn e2fsprogs() -> Requirement {
    let tools = ["mkfs.ext4", "debugfs", "e2fsck", "dumpe2fs", "tune2fs"];
    let are_met = tools.iter().all(|name| requires::tool(name).is_met());
    Requirement::new(tools.join(", "), are_met)
}

/// An image. Removed when dropped.
pub struct Image {
    work: Workdir,
    file: File,
}

impl Image {
    /// A sparse image of `mebibytes` with a file system by mkfs.ext4.
    #[track_caller]
    pub fn mkfs(mebibytes: u64, arguments: &[&str]) -> Self {
        let image = Self::empty(mebibytes);
        let mut command = tool("mkfs.ext4");
        command.args(["-q", "-F", "-L", "extant"]).args(arguments);
        command::run(command.arg(image.path())).unwrap_or_else(|failure| panic!("{failure}"));
        image
    }

    /// A sparse image of zeros.
    pub fn empty(mebibytes: u64) -> Self {
        let work = Workdir::new();
        let path = work.path().join("image");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = options.open(path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        Self { work, file }
    }

    pub fn path(&self) -> PathBuf {
        self.work.path().join("image")
    }

    /// A place for another file of the test.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        self.file.read_exact_at(&mut buffer, offset).unwrap();
        buffer
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    pub fn block(&self, layout: &Layout, block: PhysicalBlock) -> Vec<u8> {
        let range = layout.bytes_of(block);
        self.read(range.start(), range.len() as usize)
    }

    #[track_caller]
    pub fn superblock(&self) -> Superblock {
        let bytes = self.read(Superblock::OFFSET, Superblock::BYTES);
        Superblock::parse(&bytes).unwrap()
    }

    /// Runs one command of debugfs for what it prints.
    #[track_caller]
    pub fn ask(&self, request: &str) -> String {
        let mut command = tool("debugfs");
        command.args(["-R", request]).arg(self.path());
        command::text(&mut command).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs many commands of debugfs that change the image.
    #[track_caller]
    pub fn change(&self, commands: &[String]) {
        let script = self.beside("script");
        fs::write(&script, commands.join("\n") + "\n").unwrap();
        let mut command = tool("debugfs");
        command.arg("-w").arg("-f").arg(script).arg(self.path());
        let output = command::run(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<_> = errors
            .lines()
            .filter(|line| !line.starts_with("debugfs "))
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Lets e2fsck repair, replay the journal and index directories.
    #[track_caller]
    pub fn repair(&self, arguments: &[&str]) {
        let mut command = tool("e2fsck");
        command.args(["-f", "-y"]).args(arguments).arg(self.path());
        let output = command::run_any_status(&mut command).unwrap();
        let is_done = matches!(output.status.code(), Some(0 | 1));
        assert!(is_done, "{}", command::describe(&output));
    }

    /// Contents of a file as read by debugfs.
    #[track_caller]
    pub fn dump(&self, inode: u32) -> Vec<u8> {
        let copy = self.beside("dump");
        self.ask(&format!("dump <{inode}> {}", shown(&copy)));
        fs::read(copy).unwrap()
    }
}

pub fn shown(path: &Path) -> &str {
    path.to_str().expect("a path in ASCII")
}
