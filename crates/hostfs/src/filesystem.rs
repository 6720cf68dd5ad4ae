//! What lies under a file: the file system, how it is mounted, and the disk.
//!
//! Only facts that can be read are read here (statfs, mountinfo, statx, sysfs).
//! What a file system can *do* is tried, not guessed from its name or version;
//! the name serves for copy-on-write and network file systems, which accept
//! everything and promise less.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_space::Result;
use rustix::fs::{AtFlags, IFlags, StatxFlags};
use serde::{Serialize, Serializer};

use crate::file::HostFile;

/// A file system by what written space means on it.
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
    /// What written space means on it.
    pub kind: FileSystemKind,
    /// Where it is mounted; empty when that cannot be seen.
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

/// How direct I/O must be aligned (statx `STATX_DIOALIGN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DirectIo {
    /// Alignment of memory, bytes.
    pub memory_bytes: u32,
    /// Alignment of offset and length, bytes.
    pub offset_bytes: u32,
}

/// Limits of the disk under a file system, from its queue in sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskLimits {
    /// Name of the disk, `nvme0n1`.
    pub name: String,
    /// Most bytes of one write-zeroes request; 0: the disk has none.
    pub write_zeroes_max_bytes: u64,
    /// Most bytes of one write-zeroes request that unmaps (what `FALLOC_FL_WRITE_ZEROES` needs);
    /// `None` before Linux 6.17.
    pub write_zeroes_unmap_max_bytes: Option<u64>,
    /// Most bytes of one discard; 0: the disk has none.
    pub discard_max_bytes: u64,
    /// Logical block size, bytes.
    pub logical_block_bytes: u64,
    /// The disk moves a head.
    pub is_rotational: bool,
}

impl FileSystem {
    /// The file system of an open file or directory.
    pub(crate) fn of(file: &impl std::os::fd::AsFd) -> Result<Self> {
        let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
        let statfs = rustix::fs::fstatfs(file).map_err(std::io::Error::from)?;
        let space = rustix::fs::fstatvfs(file).map_err(std::io::Error::from)?;
        let mount = Mount::of(file);
        let magic = statfs.f_type as u64 & 0xffff_ffff;
        let name = match &mount {
            Some(mount) => mount.fs_type.clone(),
            None => format!("{magic:#x}"),
        };
        let free = if rustix::process::geteuid().is_root() {
            space.f_bfree
        } else {
            space.f_bavail
        };
        let device = match stat.st_dev {
            // btrfs has a number of its own for each subvolume; the mount names a device.
            own if rustix::fs::major(own) == 0 => mount.as_ref().and_then(Mount::device),
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

    /// Why space written in `file` would not stay in place; `None` when it does.
    pub(crate) fn moves_written_space(&self, attributes: IFlags) -> Option<String> {
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

fn kind_of(magic: u64, name: &str) -> FileSystemKind {
    // 9P shows the magic number of what the server has, and FUSE has one for all.
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

/// The direct-I/O alignment of `file`; `None` where the file system says it has none, and a
/// page where it does not say (before Linux 6.1, or not asked of this file system).
pub(crate) fn direct_io(file: &HostFile) -> Option<DirectIo> {
    let reported = rustix::fs::statx(
        file.as_file(),
        "",
        AtFlags::EMPTY_PATH,
        StatxFlags::DIOALIGN,
    )
    .ok()
    .filter(|answer| answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let direct = match reported {
        Some(answer) if answer.stx_dio_offset_align == 0 => return None,
        Some(answer) => DirectIo {
            memory_bytes: answer.stx_dio_mem_align,
            offset_bytes: answer.stx_dio_offset_align,
        },
        None => DirectIo {
            memory_bytes: 4096,
            offset_bytes: 4096,
        },
    };
    // Accepting the flag is the second half of the answer.
    file.set_direct(true).ok()?;
    file.set_direct(false).ok()?;
    Some(direct)
}

impl DiskLimits {
    /// The disk with device number `device`, or the disk of that partition. `None` for file
    /// systems without one (tmpfs, overlayfs, btrfs, FUSE, NFS).
    pub(crate) fn of_device(device: u64) -> Option<Self> {
        let disk = disk_directory(device)?;
        let read = |name: &str| -> Option<u64> {
            fs::read_to_string(disk.join("queue").join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        Some(Self {
            name: disk.file_name()?.to_string_lossy().into_owned(),
            write_zeroes_max_bytes: read("write_zeroes_max_bytes")?,
            write_zeroes_unmap_max_bytes: read("write_zeroes_unmap_max_bytes"),
            discard_max_bytes: read("discard_max_bytes")?,
            logical_block_bytes: read("logical_block_size")?,
            is_rotational: read("rotational")? == 1,
        })
    }
}

/// The sysfs directory of a whole disk.
pub(crate) fn disk_directory(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if node.join("queue").is_dir() {
        return Some(node);
    }
    let disk = node.parent()?;
    disk.join("queue").is_dir().then(|| disk.to_path_buf())
}

/// One line of `/proc/self/mountinfo`.
struct Mount {
    fs_type: String,
    source: PathBuf,
    point: PathBuf,
    options: Vec<String>,
}

impl Mount {
    /// By mount id: device numbers of btrfs and overlayfs do not match those in the table.
    fn of(file: &impl std::os::fd::AsFd) -> Option<Self> {
        let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        if answer.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return None;
        }
        let id = answer.stx_mnt_id.to_string();
        let table = fs::read("/proc/self/mountinfo").ok()?;
        table
            .split(|&byte| byte == b'\n')
            .find_map(|line| Self::parse(line, &id))
    }

    /// The block device that is mounted.
    fn device(&self) -> Option<u64> {
        let source = fs::metadata(&self.source).ok()?;
        source.file_type().is_block_device().then(|| source.rdev())
    }

    /// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/x rw,errors=continue`
    fn parse(line: &[u8], wanted_id: &str) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        if fields.next()? != wanted_id.as_bytes() {
            return None;
        }
        let point = path_of(fields.nth(3)?);
        let own = fields.next()?;
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
        let source = path_of(rest.next()?);
        let of_fs = rest.next().unwrap_or_default();
        let mut options: Vec<String> = Vec::new();
        for option in own.split(|&b| b == b',').chain(of_fs.split(|&b| b == b',')) {
            let option = String::from_utf8_lossy(option).into_owned();
            if !option.is_empty() && !options.contains(&option) {
                options.push(option);
            }
        }
        Some(Self {
            fs_type,
            source,
            point,
            options,
        })
    }
}

/// Undoes mountinfo's octal escapes (`\040` is a space).
fn path_of(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|_| field[at] == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// A path in JSON: what is not UTF-8 in it shows as U+FFFD.
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
    fn mountinfo_line_gives_type_point_and_both_kinds_of_options() {
        let line = b"36 35 98:0 /sub /mnt/a\\040b rw,noatime master:1 - ext4 /dev/x rw,discard";
        let mount = Mount::parse(line, "36").unwrap();
        assert_eq!(mount.fs_type, "ext4");
        assert_eq!(mount.source, Path::new("/dev/x"));
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.options, ["rw", "noatime", "discard"]);
        assert!(Mount::parse(line, "35").is_none());
        assert!(Mount::parse(b"36 35 98:0", "36").is_none());
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
