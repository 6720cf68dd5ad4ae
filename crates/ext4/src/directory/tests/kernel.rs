//! Directories that the kernel wrote, read and changed here; and our directories checked by e2fsck
//! and the kernel.
//!
//! All names are links to one file, so that inodes and links can be made right by debugfs.
//! Directories are made longer by debugfs, too, as there is no allocator here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::directory::Sign;
use extant_ondisk::ext4::inode::FileType;
use extant_space::ErrorKind;
use extant_testkit::command::{self, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{Filesystem, Mount, Scratch};
use extant_testkit::{require, requires};

use super::super::Directory;
use super::image::Image;
use super::verify::verified;
use super::{Memory, listed, name, sorted_names};

type NameSet = BTreeSet<Vec<u8>>;

/// A file system with a directory `d` and a file `f`.
struct Disk {
    scratch: Scratch,
    mount: Option<Mount>,
    file: InodeNumber,
    dir: InodeNumber,
}

impl Disk {
    fn new(filesystem: Filesystem, mkfs_options: &[&str], hash: &str, sign: Sign) -> Self {
        let mut scratch = Scratch::builder(filesystem, 256 << 20)
            .mkfs_options(mkfs_options)
            .build();
        scratch.unmount();
        let device = scratch.device().unwrap();
        // mkfs takes the sign of the machine's `char`.
        let flags = match sign {
            Sign::Signed => 1,
            Sign::Unsigned => 2,
        };
        let hash = format!("ssv def_hash_version {hash}");
        debugfs(device, &[hash, format!("ssv flags {flags}")]);
        let mut disk = Self {
            scratch,
            mount: None,
            file: InodeNumber(0),
            dir: InodeNumber(0),
        };
        let root = disk.mounted();
        fs::create_dir(root.join("d")).unwrap();
        File::create(root.join("f")).unwrap();
        let number = |name| InodeNumber(fs::metadata(root.join(name)).unwrap().ino() as u32);
        (disk.file, disk.dir) = (number("f"), number("d"));
        disk
    }

    fn device(&self) -> &Path {
        self.scratch.device().unwrap()
    }

    /// Its mount point, from now on.
    fn mounted(&mut self) -> PathBuf {
        if self.mount.is_none() {
            let place = self.scratch.directory_beside("mount");
            self.mount = Some(Mount::new("ext4", self.device(), &place, ""));
        }
        self.mount.as_ref().unwrap().path().to_path_buf()
    }

    /// Unmounts it and asks e2fsck.
    fn checked(&mut self) -> &Path {
        if let Some(mount) = self.mount.take() {
            let place = mount.path().to_path_buf();
            mount.unmount();
            fs::remove_dir(place).unwrap();
        }
        assert_e2fsck_clean(self.device());
        self.device()
    }

    /// The names in `d` in the order of the kernel.
    fn kernel_list(&mut self) -> Vec<Vec<u8>> {
        let dir = self.mounted().join("d");
        let entries = fs::read_dir(dir).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_vec())
            .collect()
    }

    fn link(&mut self, name: &[u8]) {
        let root = self.mounted();
        fs::hard_link(root.join("f"), root.join("d").join(OsStr::from_bytes(name))).unwrap();
    }

    fn unlink(&mut self, name: &[u8]) {
        fs::remove_file(self.mounted().join("d").join(OsStr::from_bytes(name))).unwrap();
    }

    /// Makes `d` longer by blocks that nothing is in yet.
    fn lengthen(&mut self, blocks: u32) {
        let commands = vec!["expand_dir d".to_owned(); blocks as usize];
        debugfs(self.checked(), &commands);
    }

    /// Puts `directory` in the place of `d`; e2fsck and the kernel must find the expected names in
    /// it.
    fn put_back(&mut self, image: &mut Image, directory: &Directory<Memory>) -> NameSet {
        let names: NameSet = verified(directory).names.into_keys().collect();
        image.replace(&directory.blocks);
        let links = names.len() + 1;
        debugfs(self.device(), &[format!("sif f links_count {links}")]);
        self.checked();
        let found: NameSet = self.kernel_list().into_iter().collect();
        assert!(
            found == names,
            "the kernel lists {} of {}",
            found.len(),
            names.len()
        );
        let dir = self.mounted().join("d");
        for name in &names {
            let answer = fs::symlink_metadata(dir.join(OsStr::from_bytes(name)));
            assert_eq!(
                answer.unwrap().ino(),
                u64::from(self.file.0),
                "{}",
                name.escape_ascii()
            );
        }
        names
    }
}

fn debugfs(device: &Path, commands: &[String]) {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, commands.join("\n")).unwrap();
    let mut debugfs = tool("debugfs");
    let output = command::run(debugfs.arg("-w").arg("-f").arg(script).arg(device));
    let output = output.unwrap_or_else(|failure| panic!("{failure}"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // Its first line is its version.
    assert!(errors.lines().count() <= 1, "{errors}");
}

/// Inserts names until there is no space for another block.
fn fill(
    directory: &mut Directory<Memory>,
    file: InodeNumber,
    names: impl Iterator<Item = Vec<u8>>,
) {
    for name in names {
        match directory.insert(&name, file, FileType::Regular) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return;
            }
        }
    }
    panic!("not enough names for all blocks");
}

/// Of many lengths, and every third past ASCII.
fn mixed_name(number: u32) -> Vec<u8> {
    let mut name = name(number, 8 + (number % 23) as usize);
    name[5] |= if number.is_multiple_of(3) { 0x80 } else { 0 };
    name
}

#[test]
fn trees_of_the_kernel_are_changed_and_accepted_by_it() {
    use Filesystem::{Ext4, Ext4SmallBlocks};
    require!(
        requires::root(),
        Ext4.requirement(),
        requires::tool("debugfs")
    );
    for (filesystem, hash, sign, count, more) in [
        (Ext4SmallBlocks, "half_md4", Sign::Signed, 5_000, 120),
        (Ext4SmallBlocks, "tea", Sign::Unsigned, 1_500, 120),
        (Ext4SmallBlocks, "legacy", Sign::Signed, 800, 30),
        (Ext4SmallBlocks, "legacy", Sign::Unsigned, 800, 30),
        (Ext4, "half_md4", Sign::Unsigned, 2_000, 12),
    ] {
        let mut disk = Disk::new(filesystem, &[], hash, sign);
        for number in 0..count {
            disk.link(&mixed_name(number));
        }
        let kernel_order = disk.kernel_list();
        disk.checked();
        let blocks = Image::open(disk.device(), disk.dir).blocks();
        disk.lengthen(more);
        let mut image = Image::open(disk.device(), disk.dir);
        let mut directory = image.directory(blocks);

        // Written by the kernel.
        let mut order = Vec::new();
        let visit = &mut |listed: super::super::Listed<'_>| {
            order.push(listed.name.to_vec());
            std::ops::ControlFlow::Continue(())
        };
        directory.for_each(super::After::default(), visit).unwrap();
        if hash != "legacy" {
            // There the order of names with one hash is ours.
            assert!(order[2..] == kernel_order, "another order");
        }
        let state = verified(&directory);
        assert_eq!(state.names.len() as u32, count, "{hash}");
        assert_eq!(order.len() as u32, count + 2);
        for number in 0..count {
            let entry = directory.lookup(&mixed_name(number)).unwrap().unwrap();
            assert_eq!(entry.inode, disk.file);
        }

        // Changed by us.
        for number in (0..count).step_by(3) {
            directory.remove(&mixed_name(number)).unwrap();
        }
        directory.blocks.space = more;
        fill(&mut directory, disk.file, (count..).map(mixed_name));
        let mut names = disk.put_back(&mut image, &directory);

        // Changed by the kernel again.
        for name in names.iter().step_by(5).cloned().collect::<Vec<_>>() {
            disk.unlink(&name);
            names.remove(&name);
        }
        for number in 0..1000 {
            let name = mixed_name(1_000_000 + number);
            disk.link(&name);
            names.insert(name);
        }
        disk.checked();
        let image = Image::open(disk.device(), disk.dir);
        let directory = image.directory(image.blocks());
        assert!(listed(&directory).into_keys().eq(names), "{hash}");
        verified(&directory);
    }
}

/// A directory that is ours from its first block on.
fn ours(
    mkfs_options: &[&str],
    blocks: u32,
    names: impl Fn(&Directory<Memory>) -> Vec<Vec<u8>>,
) -> Option<u8> {
    let mut disk = Disk::new(
        Filesystem::Ext4SmallBlocks,
        mkfs_options,
        "half_md4",
        Sign::Signed,
    );
    disk.lengthen(blocks - 1);
    let mut image = Image::open(disk.device(), disk.dir);
    assert_eq!(image.blocks(), blocks);
    let context = image.context();
    let mut directory = Directory::new(context, Memory::new(&context)).unwrap();
    directory.init(disk.dir, InodeNumber::ROOT).unwrap();
    directory.blocks.space = blocks - 1;
    let names = names(&directory);
    fill(&mut directory, disk.file, names.into_iter());
    let levels = verified(&directory).levels;
    disk.put_back(&mut image, &directory);
    let new = name(u32::MAX, 250);
    disk.link(&new);
    disk.checked();
    let image = Image::open(disk.device(), disk.dir);
    assert!(
        image
            .directory(image.blocks())
            .lookup(&new)
            .unwrap()
            .is_some()
    );
    levels
}

#[test]
fn directories_of_ours_are_taken_by_e2fsck_and_the_kernel() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("debugfs")
    );
    let mixed = |_: &Directory<Memory>| (0..9000).map(mixed_name).collect();
    assert_eq!(ours(&["-O", "^dir_index"], 40, mixed), None);
    assert_eq!(ours(&["-O", "^metadata_csum"], 40, mixed), Some(0));
    assert_eq!(ours(&["-O", "^metadata_csum,^dir_index"], 40, mixed), None);
    assert_eq!(ours(&[], 200, mixed), Some(1));
    let long = |directory: &Directory<Memory>| sorted_names(&directory.context, 17_000);
    assert_eq!(ours(&["-O", "large_dir"], 8_000, long), Some(2));
}
