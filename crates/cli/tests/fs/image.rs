//! Images for tests, and their oracles.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_testkit::command;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;

use crate::support::{Answer, extant, noise, run};

/// File systems that differ where tools and engine have to know.
pub const FORMATS: [&str; 4] = [
    "-t ext4 -b 4096",
    "-t ext4 -b 1024 -O ^flex_bg,^64bit",
    "-t ext4 -b 2048 -O ^metadata_csum",
    "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed",
];

/// An image of its own.
pub struct Image {
    pub work: Workdir,
    pub path: PathBuf,
}

impl Image {
    pub fn new(mebibytes: u64) -> Self {
        Self::of(FORMATS[0], mebibytes)
    }

    /// Makes a file system by mke2fs with `options`.
    #[track_caller]
    pub fn of(options: &str, mebibytes: u64) -> Self {
        let work = Workdir::new();
        let directory = work.path().to_path_buf();
        Self::made(work, &directory, options, mebibytes)
    }

    /// As [`of`](Self::of), with the image in `directory`.
    #[track_caller]
    pub fn in_directory(directory: &Path, options: &str, mebibytes: u64) -> Self {
        Self::made(Workdir::new(), directory, options, mebibytes)
    }

    #[track_caller]
    fn made(work: Workdir, directory: &Path, options: &str, mebibytes: u64) -> Self {
        let path = directory.join("disk.img");
        let file = fs::File::create(&path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        must(
            command::tool("mke2fs")
                .args(["-q", "-F"])
                .args(options.split_whitespace())
                .arg(&path),
        );
        Self { work, path }
    }

    /// `extant fs WORDS`, where `IMAGE` stands for the image.
    #[track_caller]
    pub fn fs(&self, words: &[impl AsRef<OsStr>]) -> Answer {
        run(&mut self.command("fs", words))
    }

    /// `extant COMMAND WORDS`, where `IMAGE` stands for the image.
    pub fn command(&self, name: &str, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = extant();
        command.arg(name).current_dir(self.work.path());
        for word in words {
            let word = word.as_ref();
            if word == "IMAGE" {
                command.arg(&self.path)
            } else {
                command.arg(word)
            };
        }
        command
    }

    /// Our check and e2fsck find nothing.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_e2fsck_clean(&self.path);
        self.fs(&["check", "IMAGE"]).success();
    }

    /// Mounted by the kernel, as long as the result lives.
    #[track_caller]
    pub fn mount(&self) -> Mounted {
        let place = self.work.path().join("mounted");
        fs::create_dir_all(&place).unwrap();
        let device = LoopDevice::attach(&self.path);
        let mount = Mount::new("ext4", device.path(), &place, "");
        Mounted {
            place,
            _mount: mount,
            _device: device,
        }
    }

    /// Runs debugfs for changes, one command a line.
    #[track_caller]
    pub fn change_by_debugfs(&self, commands: &str) {
        let script = self.work.path().join("script");
        fs::write(&script, commands).unwrap();
        let mut debugfs = command::tool("debugfs");
        must(debugfs.args(["-w", "-f"]).arg(&script).arg(&self.path));
    }

    /// Leaves two transactions in the journal, in its blocks 1 to 3 and 4 to 6: a descriptor, a
    /// copy of an unused block, and a commit block.
    #[track_caller]
    pub fn leave_transactions(&self) {
        fs::write(self.work.path().join("block"), [0; 4096]).unwrap();
        let data = self.work.path().join("block");
        let data = data.to_str().unwrap();
        self.change_by_debugfs(&format!(
            "jo -c\njw -b 7000 {data}\njc\njo -c\njw -b 7001 {data}\njc\n"
        ));
    }

    /// Changes a byte in a block of the journal, of 4 KiB.
    #[track_caller]
    pub fn damage_journal(&self, block: u32, byte: u64) {
        use std::os::unix::fs::FileExt;
        let found = self.debugfs(&format!("bmap <8> {block}"));
        let found: u64 = found.trim().parse().unwrap();
        let at = found * 4096 + byte;
        let file = fs::File::options().read(true).write(true).open(&self.path);
        let file = file.unwrap();
        let mut old = [0];
        file.read_exact_at(&mut old, at).unwrap();
        file.write_all_at(&[old[0] ^ 0x10], at).unwrap();
    }

    /// Output of debugfs.
    #[track_caller]
    pub fn debugfs(&self, request: &str) -> String {
        must(
            command::tool("debugfs")
                .args(["-R", request])
                .arg(&self.path),
        )
    }
}

/// A file system in the hands of the kernel.
pub struct Mounted {
    pub place: PathBuf,
    // Dropped in this order.
    _mount: Mount,
    _device: LoopDevice,
}

#[track_caller]
pub fn must(command: &mut Command) -> String {
    command::text(command).unwrap_or_else(|failure| panic!("{failure}"))
}

/// A tree with everything that a copy must preserve, in a new directory below `work`.
pub fn tree(work: &Path) -> PathBuf {
    let root = work.join("tree");
    for directory in ["a/deep/er", "empty", "b"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("a/small"), "small\n").unwrap();
    fs::write(root.join("a/nothing"), "").unwrap();
    fs::write(root.join("a/deep/er/odd"), noise(1, 1_234_567)).unwrap();
    fs::hard_link(root.join("a/small"), root.join("b/same")).unwrap();
    symlink("../a/small", root.join("b/link")).unwrap();
    symlink("x".repeat(200), root.join("b/longlink")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    use std::os::unix::fs::FileExt;
    sparse.write_all_at(&noise(2, 70_000), 20_000_000).unwrap();
    use std::os::unix::ffi::OsStrExt;
    fs::write(root.join(OsStr::from_bytes(b"caf\xe9 \n*")), "bytes").unwrap();
    must(command::tool("mkfifo").arg(root.join("b/fifo")));
    for (path, mode) in [
        ("a/small", "4751"),
        ("empty", "1777"),
        ("b", "2750"),
        ("a/nothing", "0000"),
    ] {
        must(command::tool("chmod").arg(mode).arg(root.join(path)));
    }
    for (path, time) in [
        ("a/small", "2001-02-03 04:05:06.789"),
        ("empty", "1999-01-01"),
        ("a", "2030-01-01"),
    ] {
        must(
            command::tool("touch")
                .args(["-d", time])
                .arg(root.join(path)),
        );
    }
    root
}

/// A line for everything in a tree but `lost+found`: its type, owner, times and bytes.
pub fn describe(root: &Path, owners: Owners) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    let mut first_names = std::collections::BTreeMap::new();
    while let Some(path) = pending.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_path_buf();
        if name == Path::new("lost+found") {
            continue;
        }
        let first = first_names
            .entry(found.ino())
            .or_insert_with(|| name.clone());
        let contents = if found.is_symlink() {
            format!("{:?}", fs::read_link(&path).unwrap())
        } else if found.is_file() {
            extant_testkit::oracle::sha256(&path)
        } else {
            String::new()
        };
        let size = if found.is_dir() { 0 } else { found.size() };
        let owner = match owners {
            Owners::Compared => format!("{}:{}", found.uid(), found.gid()),
            Owners::Left => String::new(),
        };
        let device = if found.is_file() { 0 } else { found.rdev() };
        lines.push(format!(
            "{name:?} is {first:?} {:o} {owner} {size} {device} {}.{:09} {contents}",
            found.mode(),
            found.mtime(),
            found.mtime_nsec(),
        ));
        if found.is_dir() {
            let below = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            let mut below: Vec<PathBuf> = below.collect();
            below.sort();
            pending.extend(below.into_iter().rev());
        }
    }
    lines.sort();
    lines
}

/// Whether owners are part of a description.
#[derive(Clone, Copy)]
pub enum Owners {
    Compared,
    Left,
}

/// Both trees are the same.
#[track_caller]
pub fn assert_same_trees(one: &Path, other: &Path, owners: Owners) {
    let (one, other) = (describe(one, owners), describe(other, owners));
    let missing: Vec<_> = one.iter().filter(|line| !other.contains(line)).collect();
    let more: Vec<_> = other.iter().filter(|line| !one.contains(line)).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "- {missing:#?}\n+ {more:#?}"
    );
}
