//! The file system of a file, its mount, and the disk.
//!
//! Only facts that can be read are read here (statfs, mountinfo, statx, sysfs). Support for an
//! operation is tried, not derived from the name or version of the file system; the name serves for
//! copy-on-write and network file systems, which accept everything and guarantee less.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::extents::MapSource;
use extant_sys::mounts::Mount;
use rustix::fs::IFlags;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Serialize, Serializer};

use crate::file::HostFile;
use crate::scratch::Scratch;

/// The magic number of ext2, ext3 and ext4.
const EXT: u64 = 0xef53;

/// File systems whose files only this kernel reaches, by their names in `mount(8)`: a lease
/// excludes all clients.
const LOCAL: &[&str] = &[
    "affs",
    "bcachefs",
    "bfs",
    "btrfs",
    "devtmpfs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfs",
    "hfsplus",
    "hugetlbfs",
    "jfs",
    "minix",
    "msdos",
    "nilfs2",
    "ntfs",
    "ntfs3",
    "ramfs",
    "reiserfs",
    "rootfs",
    "tmpfs",
    "udf",
    "ufs",
    "vfat",
    "xfs",
    "zfs",
];

/// Classes of file systems by the meaning of written space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystemKind {
    /// Overwrites in place: ext2/3/4, XFS and whatever is not known to differ.
    InPlace,
    /// In memory: no disk, no unwritten extents.
    Memory,
    /// Writes new blocks unless the file says otherwise (`chattr +C`).
    CopyOnWrite,
    /// Writes new blocks always.
    AlwaysElsewhere,
    /// Another machine decides.
    Network,
}

/// The file system that holds a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSystem {
    /// Name of the type, as in `mount(8)`.
    pub name: String,
    /// Kind, which decides how written space behaves.
    pub kind: FileSystemKind,
    /// Its mount point; empty when that cannot be seen.
    #[serde(serialize_with = "serialize_path")]
    pub mount_point: PathBuf,
    /// Mount and file system options, in mount(8)'s order.
    pub options: Vec<String>,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes free for this user.
    pub available_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Number of the block device below, where there is one.
    #[serde(skip)]
    pub(crate) device: Option<u64>,
}

/// The processes that a lease excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseReach {
    /// All processes that can reach the file.
    AllClients,
    /// Only processes of this kernel, on the file system of this name.
    ThisKernel(String),
}

impl HostFile {
    /// Whether written space is overwritten in place: no layer below copies on write.
    pub fn overwrites_in_place(&self) -> Result<bool> {
        match FileSystem::under(self)?.check_written_stays(self) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::CopyOnWrite => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl FileSystem {
    /// Bytes free for this user on the file system of an open file or directory.
    ///
    /// # Errors
    /// Those of `fstat` and `fstatfs`.
    pub fn available_bytes(file: &impl AsFd) -> Result<u64> {
        Ok(Self::of(file)?.available_bytes)
    }

    /// The file system of an open directory, and of the files to be made in it.
    pub(crate) fn of_directory(directory: &impl AsFd, path: &Path) -> Result<Self> {
        let mut filesystem = Self::of(directory).map_err(|error| error.at(path))?;
        if filesystem.name == "overlay" {
            filesystem.probe_below_overlay(Scratch::new(directory, path));
        }
        Ok(filesystem)
    }

    /// The file system of an open file.
    pub(crate) fn under(file: &HostFile) -> Result<Self> {
        let path = file.path();
        let mut filesystem = Self::of(file.as_file()).map_err(|error| error.at(path))?;
        if filesystem.name == "overlay" {
            let parent = parent_of(path);
            let directory =
                std::fs::File::open(parent).map_err(|source| Error::from(source).at(parent))?;
            filesystem.probe_below_overlay(Scratch::new(&directory, parent));
        }
        Ok(filesystem)
    }

    /// overlayfs shows nothing of the file system that its files are really on. Whether that
    /// one copies on write is seen when it agrees not to.
    fn probe_below_overlay(&mut self, scratch: Scratch<'_>) {
        if scratch.file().is_ok_and(|file| file.accepts_nocow()) {
            self.kind = FileSystemKind::CopyOnWrite;
        }
    }

    /// Properties of the file system of an open file or directory.
    pub(crate) fn of(file: &impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
        let statfs = rustix::fs::fstatfs(file).map_err(std::io::Error::from)?;
        let space = rustix::fs::fstatvfs(file).map_err(std::io::Error::from)?;
        let mount = Mount::of(file);
        let magic = statfs.f_type as u64 & 0xffff_ffff;
        let name = match &mount {
            Some(mount) => mount.fs_type.clone(),
            None => format!("{magic:#x}"),
        };
        let options = mount.as_ref().map(|mount| mount.options.as_slice());
        let free = if magic == EXT && may_use_reserve(options.unwrap_or_default()) {
            space.f_bfree.saturating_sub(kept_by_ext4(space.f_blocks))
        } else {
            space.f_bavail
        };
        let device = match stat.st_dev {
            // btrfs has a number of its own for each subvolume; the mount names a device.
            own if rustix::fs::major(own) == 0 => mount.as_ref().and_then(Mount::block_device),
            own => Some(own),
        };
        let (mount_point, options) = mount
            .map(|mount| (mount.point, mount.options))
            .unwrap_or_default();
        Ok(Self {
            kind: kind_of(magic, &name),
            name,
            mount_point,
            options,
            block_bytes: space.f_bsize,
            available_bytes: free.saturating_mul(space.f_frsize),
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            device,
        })
    }

    /// The processes that a write lease on `file` excludes. An unknown file system counts as
    /// shared.
    ///
    /// FUSE, 9P and others grant a lease without asking their server. The kernel's clients of NFS 4
    /// and SMB grant one only with a delegation or oplock of the server, and break it when that is
    /// recalled; other network file systems refuse.
    pub(crate) fn lease_reach(&self, file: &HostFile) -> LeaseReach {
        let is_set = |name: &str| self.options.iter().any(|option| option == name);
        match self.name.as_str() {
            // The server keeps its image for itself.
            _ if file.map_source() == MapSource::ExtantMount => LeaseReach::AllClients,
            "nfs" | "nfs4" => LeaseReach::AllClients,
            "cifs" | "smb3" if !is_set("locallease") => LeaseReach::AllClients,
            name if LOCAL.contains(&name) => LeaseReach::AllClients,
            // No file system that is served has both FIEMAP and what an upper layer needs.
            "overlay" if file.map_source() == MapSource::Fiemap => LeaseReach::AllClients,
            "overlay" => match self.upper_layer() {
                Some(upper) if LOCAL.contains(&upper.as_str()) => LeaseReach::AllClients,
                Some(upper) => LeaseReach::ThisKernel(format!("overlay over {upper}")),
                None => LeaseReach::ThisKernel("overlay over a file system not seen here".into()),
            },
            name => LeaseReach::ThisKernel(name.to_owned()),
        }
    }

    /// Name of the file system that the files of this overlay are written to.
    fn upper_layer(&self) -> Option<String> {
        let mut options = self.options.iter();
        let path = options.find_map(|option| option.strip_prefix("upperdir="))?;
        let directory = std::fs::File::open(path).ok()?;
        Some(Mount::of(&directory)?.fs_type)
    }

    /// Fails with [`ErrorKind::CopyOnWrite`] where space written in `file` would move.
    pub(crate) fn check_written_stays(&self, file: &HostFile) -> Result<()> {
        match self.moves_written_space(file.attributes()) {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::CopyOnWrite)
                .at(file.path())
                .detail(format!(
                    "space made written here would not stay in place: {why}"
                ))),
        }
    }

    /// The reason why space written in `file` would not be overwritten in place; `None` when it
    /// does.
    fn moves_written_space(&self, attributes: IFlags) -> Option<String> {
        match self.kind {
            FileSystemKind::InPlace | FileSystemKind::Memory | FileSystemKind::Network => None,
            FileSystemKind::CopyOnWrite if attributes.contains(IFlags::NOCOW) => None,
            FileSystemKind::CopyOnWrite => Some(format!(
                "{} is copy-on-write and the file is not NOCOW: every overwrite allocates",
                self.name
            )),
            FileSystemKind::AlwaysElsewhere => Some(format!(
                "{} writes every block to a new place: every overwrite allocates",
                self.name
            )),
        }
    }
}

/// Blocks that ext4 reserves for its own metadata (the default of
/// `/sys/fs/ext4/*/reserved_clusters`). They are part of `f_bfree`.
fn kept_by_ext4(blocks: u64) -> u64 {
    (blocks / 50).min(4096)
}

/// ext4 reserves blocks for one user, by default root, and for processes with `CAP_SYS_RESOURCE`.
/// Root in a container has no capability, and on other file systems the reserve is available to no
/// user.
fn may_use_reserve(options: &[String]) -> bool {
    let resource = CapabilitySet::SYS_RESOURCE;
    let has_capability = capabilities(None).is_ok_and(|sets| sets.effective.contains(resource));
    let is_owner = reserve_owner(options) == Some(geteuid().as_raw());
    (has_capability || is_owner) && is_in_first_user_namespace()
}

/// In others the numbers of users are not those that the file system knows, and capabilities are
/// not for it.
fn is_in_first_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn reserve_owner(options: &[String]) -> Option<u32> {
    let mut named = options
        .iter()
        .filter_map(|option| option.strip_prefix("resuid="));
    named.next_back().map_or(Some(0), |uid| uid.parse().ok())
}

fn kind_of(magic: u64, name: &str) -> FileSystemKind {
    // 9P shows the magic number of the server's file system, and FUSE has one for all.
    if matches!(
        name,
        "9p" | "fuse.sshfs" | "fuse.glusterfs" | "fuse.ceph" | "fuse.s3fs"
    ) {
        return FileSystemKind::Network;
    }
    // linux/magic.h; those missing there are marked.
    match magic {
        0x9123_683e => FileSystemKind::CopyOnWrite, // btrfs
        // ZFS (not in the kernel), bcachefs, NILFS2, F2FS
        0x2fc1_2fc1 | 0xca45_1a4e | 0x3434 | 0xf2f5_2010 => FileSystemKind::AlwaysElsewhere,
        0x0102_1994 | 0x8584_58f6 => FileSystemKind::Memory, // tmpfs, ramfs
        // NFS, CIFS, SMB2, Ceph, AFS, Lustre
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x00c3_6400 | 0x5346_414f | 0x0bd0_0bd0 => {
            FileSystemKind::Network
        }
        _ => FileSystemKind::InPlace,
    }
}

/// A path in JSON: bytes that are not UTF-8 are shown as U+FFFD.
pub(crate) fn serialize_path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// The directory that holds `path`, which is `.` for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_of_root_unless_another_user_is_named() {
        let owner = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(ToString::to_string).collect();
            reserve_owner(&options)
        };
        assert_eq!(owner(&["rw", "relatime"]), Some(0));
        assert_eq!(owner(&["rw", "resuid=65534", "resgid=0"]), Some(65534));
        assert_eq!(owner(&["resuid=nobody"]), None);
    }

    #[test]
    fn copy_on_write_is_lifted_by_nocow_on_btrfs_and_by_nothing_on_zfs() {
        let mut fs = FileSystem {
            name: "btrfs".into(),
            kind: kind_of(0x9123_683e, "btrfs"),
            mount_point: PathBuf::new(),
            options: Vec::new(),
            block_bytes: 4096,
            available_bytes: 0,
            total_bytes: 0,
            device: None,
        };
        assert!(fs.moves_written_space(IFlags::empty()).is_some());
        assert!(fs.moves_written_space(IFlags::NOCOW).is_none());
        fs.kind = kind_of(0x2fc1_2fc1, "zfs");
        assert!(fs.moves_written_space(IFlags::NOCOW).is_some());
    }
}
