//! Loop devices and their backing files.
//!
//! The path in sysfs is valid in the mount namespace where the device was attached; here it may
//! name another file, or none. The driver knows the file by device and inode and is asked
//! (`LOOP_GET_STATUS64`, loop(4)) if the caller may. Otherwise the path decides; if the path does
//! not resolve, the size does: then the file *may* be the backing file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_space::ByteRange;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::identity::Identity;

const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const SECTOR_BYTES: u64 = 512;

/// `struct loop_info64` (linux/loop.h).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LoopInfo64 {
    lo_device: u64,
    lo_inode: u64,
    lo_rdevice: u64,
    lo_offset: u64,
    lo_sizelimit: u64,
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [u8; 64],
    lo_crypt_name: [u8; 64],
    lo_encrypt_key: [u8; 32],
    lo_init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232);

/// An attached loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// Its node.
    pub path: PathBuf,
    /// Its device number.
    pub number: u64,
    /// Certainty about the file below.
    pub certainty: Certainty,
}

/// The certainty of the backing file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// The path does not resolve, the driver may not be asked, and the size is that of the file.
    Possible,
    /// It is the file.
    Certain,
}

impl LoopDevice {
    /// The bytes of the backing file that the device shows; `None` if it is detached by now.
    pub fn place(&self) -> Option<ByteRange> {
        let name = self.path.file_name()?;
        let geometry = Geometry::of(&Path::new("/sys/block").join(name))?;
        ByteRange::at(geometry.offset, geometry.size)
    }
}

/// The loop device with the backing file or disk `path`; a certain one before a possible one.
pub fn over(path: &Path) -> Option<LoopDevice> {
    let all = all_over(path).into_iter();
    all.max_by_key(|device| device.certainty)
}

/// The loop devices with the backing file or disk `path`.
pub fn all_over(path: &Path) -> Vec<LoopDevice> {
    let (Ok(wanted), Ok(entries)) = (Identity::of(path), fs::read_dir("/sys/block")) else {
        return Vec::new();
    };
    let found = entries.flatten().filter_map(|entry| {
        let sysfs = entry.path();
        let shown = fs::read_to_string(sysfs.join("loop/backing_file")).ok()?;
        let number = device_number(&sysfs)?;
        let node = Path::new("/dev").join(entry.file_name());
        let certainty = match backing(&node, number) {
            Ok(below) => (below.identity == wanted).then_some(Certainty::Certain),
            Err(_) => match Identity::of(Path::new(shown.trim_end_matches('\n'))) {
                Ok(below) => (below == wanted).then_some(Certainty::Certain),
                Err(_) => Geometry::of(&sysfs)?
                    .fits(fs::metadata(path).ok()?.len())
                    .then_some(Certainty::Possible),
            },
        }?;
        Some(LoopDevice {
            path: node,
            number,
            certainty,
        })
    });
    found.collect()
}

/// The number in the file `dev` of a directory in sysfs.
pub(crate) fn device_number(sysfs: &Path) -> Option<u64> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(
        major.parse().ok()?,
        minor.parse().ok()?,
    ))
}

/// Backing file of a loop device, from the driver.
pub(crate) struct Backing {
    /// The file or disk.
    pub(crate) identity: Identity,
    /// First byte of it that belongs to the device.
    pub(crate) offset_bytes: u64,
    /// The device has other bytes than the file.
    pub(crate) is_encrypted: bool,
}

/// The backing file of the device at `node` with `number`.
///
/// # Errors
/// Those of opening the device, which needs permission to read it; `NotFound` for another device.
pub(crate) fn backing(node: &Path, number: u64) -> io::Result<Backing> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let device = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(node)?;
    let metadata = device.metadata()?;
    if !metadata.file_type().is_block_device() || metadata.rdev() != number {
        return Err(io::ErrorKind::NotFound.into());
    }
    let status = status(&device)?;
    Ok(Backing {
        identity: match status.lo_rdevice {
            0 => Identity::File {
                device: status.lo_device,
                inode: status.lo_inode,
            },
            disk => Identity::Disk(disk),
        },
        offset_bytes: status.lo_offset,
        is_encrypted: status.lo_encrypt_type != 0,
    })
}

fn status(device: &File) -> io::Result<LoopInfo64> {
    let mut status = LoopInfo64::new_zeroed();
    // SAFETY: the kernel fills the structure, of which any bytes are valid; it lives for the call,
    // as does the descriptor.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(status),
    }
}

/// Geometry of a device in sysfs, bytes.
struct Geometry {
    size: u64,
    offset: u64,
    size_limit: u64,
}

impl Geometry {
    fn of(sysfs: &Path) -> Option<Self> {
        let number = |name: &str| -> Option<u64> {
            let text = fs::read_to_string(sysfs.join(name)).ok()?;
            text.trim().parse().ok()
        };
        Some(Self {
            size: number("size")?.checked_mul(SECTOR_BYTES)?,
            offset: number("loop/offset")?,
            size_limit: number("loop/sizelimit")?,
        })
    }

    /// A file of `file_bytes` makes a device of this size.
    fn fits(&self, file_bytes: u64) -> bool {
        let rest = file_bytes.saturating_sub(self.offset);
        let seen = match self.size_limit {
            0 => rest,
            limit => rest.min(limit),
        };
        seen / SECTOR_BYTES * SECTOR_BYTES == self.size
    }
}

#[cfg(test)]
mod tests {
    use extant_testkit::scratch::LoopDevice as Attached;
    use extant_testkit::{require, requires};

    use super::*;

    #[test]
    fn device_over_a_file_is_found_under_every_name_of_it() {
        require!(requires::root(), requires::tool("losetup"));
        let directory = tempfile::tempdir().unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| directory.path().join(name));
        for path in [&file, &other] {
            File::create(path).unwrap().set_len(1 << 20).unwrap();
        }
        fs::hard_link(&file, &link).unwrap();
        assert_eq!(over(&file), None);
        let attached = Attached::attach(&file);
        // The path that sysfs shows leads nowhere any more, as in another mount namespace.
        fs::remove_file(&file).unwrap();
        let found = over(&link).unwrap();
        assert_eq!(found.path, attached.path());
        assert_eq!(found.certainty, Certainty::Certain);
        assert_eq!(over(&other), None);
    }

    #[test]
    fn device_over_a_disk_is_found() {
        require!(requires::root(), requires::tool("losetup"));
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let lower = Attached::attach(file.path());
        let upper = Attached::attach(lower.path());
        assert_eq!(over(lower.path()).unwrap().path, upper.path());
    }

    #[test]
    fn size_decides_where_nothing_else_does() {
        let device = |size, offset, size_limit| Geometry {
            size,
            offset,
            size_limit,
        };
        assert!(device(1 << 20, 0, 0).fits(1 << 20));
        assert!(device(1 << 20, 0, 0).fits((1 << 20) + 511));
        assert!(device(1 << 20, 512, 0).fits((1 << 20) + 512));
        assert!(device(4096, 0, 4096).fits(1 << 20));
        assert!(!device(1 << 20, 0, 0).fits(1 << 21));
        assert!(!device(1 << 20, 1 << 21, 0).fits(1 << 20));
    }
}
