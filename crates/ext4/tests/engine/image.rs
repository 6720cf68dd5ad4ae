//! File systems of mke2fs in memory.

use std::fs;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{Filesystem, NewKind, NewNode, Node, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::command::{run, tool};
use extant_testkit::mke2fs;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;

/// Options of mke2fs for file systems that differ in ways the engine must handle.
pub const FORMATS: [&str; 11] = [
    "-t ext4",
    "-t ext4 -b 1024 -O casefold,encrypt,verity",
    "-t ext4 -b 2048 -O ^metadata_csum,uninit_bg",
    "-t ext4 -O ^orphan_file",
    "-t ext4 -b 1024 -O ^64bit,^flex_bg,^metadata_csum",
    "-t ext4 -O ^dir_index,^huge_file,^dir_nlink -I 128",
    "-t ext4 -O sparse_super2,large_dir -b 1024",
    "-t ext3",
    "-t ext3 -b 1024 -I 128",
    "-t ext4 -b 2048 -O ^extents,^64bit",
    "-t ext4 -O ^has_journal -b 1024",
];

/// Whether files have extents, and not block maps.
pub fn has_extents(format: &str) -> bool {
    !format.contains("ext3") && !format.contains("^extents")
}

/// A file system in memory.
pub struct Image {
    pub device: Arc<MemoryDevice>,
}

impl Image {
    /// Makes a file system of `mebibytes` MiB by mke2fs with `options`.
    #[track_caller]
    pub fn new(options: &str, mebibytes: u64) -> Self {
        Self::from_bytes(&mke2fs(options, mebibytes << 20))
    }

    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            device: Arc::new(MemoryDevice::from_bytes(bytes)),
        }
    }

    pub fn open(&self) -> Filesystem {
        self.open_with(Options::default())
    }

    pub fn open_with(&self, options: Options) -> Filesystem {
        Filesystem::open(self.device.clone(), options).unwrap()
    }

    /// Our check and e2fsck find nothing.
    #[track_caller]
    pub fn assert_clean(&self) {
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        let report = check(&*self.device, &CheckOptions::default(), control).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::write(&path, self.bytes()).unwrap();
        assert_e2fsck_clean(&path);
    }

    /// Has debugfs set fields of the inodes at paths.
    #[track_caller]
    pub fn set_fields(self, fields: &[(&str, &str, u64)]) -> Self {
        let commands: Vec<_> = fields
            .iter()
            .map(|(path, field, value)| format!("set_inode_field {path} {field} {value}"))
            .collect();
        self.debugfs(&commands.join("\n"))
    }

    /// Runs debugfs, one command a line.
    #[track_caller]
    pub fn debugfs(self, commands: &str) -> Self {
        let work = Workdir::new();
        let (path, script) = (work.path().join("image"), work.path().join("script"));
        fs::write(&path, self.bytes()).unwrap();
        fs::write(&script, commands).unwrap();
        let mut debugfs = tool("debugfs");
        run(debugfs.args(["-w", "-f"]).arg(&script).arg(&path)).unwrap();
        Self::from_bytes(&fs::read(&path).unwrap())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.device.geometry().size as usize];
        self.device.read_at(&mut bytes, 0).unwrap();
        bytes
    }
}

/// Something new of a kind, as root makes it.
pub fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: match kind {
            NewKind::Directory => 0o755,
            _ => 0o644,
        },
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// A regular file.
pub fn create(directory: &Node, name: &str) -> Node {
    directory
        .create(name.as_bytes(), &new(NewKind::Regular))
        .unwrap()
}

pub fn mkdir(directory: &Node, name: &str) -> Node {
    directory
        .create(name.as_bytes(), &new(NewKind::Directory))
        .unwrap()
}
