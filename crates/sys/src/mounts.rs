//! The kernel's tables of mounts: `/proc/self/mountinfo` lists the mounts of this process's
//! namespace, those of other processes the mounts of other mount namespaces.
//!
//! Format: proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

/// The table.
pub const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    id: u64,
    /// Device number of its files (`st_dev`), on most file systems.
    pub device: u64,
    /// Its mount point.
    pub point: PathBuf,
    /// Options of the mount and of the file system, in mount(8)'s order.
    pub options: Vec<String>,
    /// Name of the file system.
    pub fs_type: String,
    /// Source of the mount: a device, or any string.
    pub source: PathBuf,
}

impl Mount {
    /// All of them; of two at the same place the later one is seen.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn all() -> io::Result<Vec<Self>> {
        let table = fs::read(TABLE)?;
        Ok(Self::parse_all(&table).collect())
    }

    /// The mounts of other mount namespaces that this user may read, each with a process in it.
    pub fn of_other_namespaces() -> impl Iterator<Item = (u32, Self)> {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let mut seen: Vec<PathBuf> = namespace("self").into_iter().collect();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter_map(move |id| {
            let found = namespace(&id.to_string())?;
            if seen.contains(&found) {
                return None;
            }
            let table = fs::read(format!("/proc/{id}/mountinfo")).ok()?;
            seen.push(found);
            let mounts: Vec<Self> = Self::parse_all(&table).collect();
            Some(mounts.into_iter().map(move |mount| (id, mount)))
        })
        .flatten()
    }

    /// Finds the mount that is visible at `directory`, an absolute path, if it is a mount point.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn at(directory: &Path) -> io::Result<Option<Self>> {
        Ok(Self::seen_at(&fs::read(TABLE)?, directory))
    }

    fn seen_at(table: &[u8], directory: &Path) -> Option<Self> {
        let all = Self::parse_all(table);
        all.filter(|mount| mount.point == directory).last()
    }

    fn parse_all(table: &[u8]) -> impl Iterator<Item = Self> {
        let lines = table.split(|&byte| byte == b'\n');
        lines.filter_map(Self::parse)
    }

    /// The one that an open file is on. By mount id: device numbers of btrfs and overlayfs do not
    /// match those in the table.
    pub fn of(file: &impl AsFd) -> Option<Self> {
        let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        if answer.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return None;
        }
        let mut all = Self::all().ok()?.into_iter();
        all.find(|mount| mount.id == answer.stx_mnt_id)
    }

    /// The block device that is mounted.
    pub fn block_device(&self) -> Option<u64> {
        let source = fs::metadata(&self.source).ok()?;
        source.file_type().is_block_device().then(|| source.rdev())
    }

    /// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/x rw,errors=continue`
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let (major, minor) = str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
        let point = path_of(fields.nth(1)?);
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
            id,
            device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
            point,
            options,
            fs_type,
            source,
        })
    }
}

/// Undoes the octal escapes of the tables in /proc (`\040` is a space).
pub fn path_of(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|_| field[at] == b'\\')
            .and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
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

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
25 1 253:0 / / rw - ext4 /dev/vda rw
66 25 0:50 / /mnt/a\\040b rw,nosuid - fuse.extant x rw,user_id=0
67 25 0:51 / /mnt/c rw - tmpfs tmpfs rw
68 67 0:52 / /mnt/c rw - fuse.extant x rw
torn line
";

    #[test]
    fn line_gives_type_point_and_both_kinds_of_options() {
        let line =
            b"36 35 98:1 /sub /mnt/a\\040b rw,noatime master:1 - ext4 /dev/x\\011y rw,discard";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.id, mount.fs_type.as_str()), (36, "ext4"));
        assert_eq!(mount.device, rustix::fs::makedev(98, 1));
        assert_eq!(mount.source, Path::new("/dev/x\ty"));
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.options, ["rw", "noatime", "discard"]);
        assert!(Mount::parse(b"36 35 98:0").is_none());
        assert!(Mount::parse(b"").is_none());
    }

    #[test]
    fn escapes_are_undone_and_other_backslashes_stay() {
        assert_eq!(path_of(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(path_of(b"\\04"), Path::new("\\04"));
        assert_eq!(path_of(br"a\134b\011\x\04"), Path::new("a\\b\t\\x\\04"));
        assert_eq!(path_of(b"\\999"), Path::new("\\999"));
    }

    #[test]
    fn mount_point_shows_the_latest_mount() {
        let find = |place: &str| {
            let mount = Mount::seen_at(SAMPLE, Path::new(place));
            mount.map(|mount| rustix::fs::minor(mount.device))
        };
        assert_eq!(find("/mnt/c"), Some(52));
        assert_eq!(find("/mnt/a b"), Some(50));
        assert_eq!(find("/mnt"), None);
        assert_eq!(find("/"), Some(0));
    }

    #[test]
    fn type_is_that_of_the_file_system_whatever_its_point_is_called() {
        let unified = |table| {
            let mut all = Mount::parse_all(table);
            let found = all.find(|mount| mount.fs_type == "cgroup2");
            found.map(|mount| mount.point)
        };
        let table = b"24 1 0:21 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            25 1 0:22 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified(table), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(unified(b"24 1 0:21 / /cgroup2 rw - tmpfs tmpfs rw\n"), None);
    }

    #[test]
    fn root_is_mounted_somewhere() {
        assert!(Mount::at(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn mount_of_a_file_is_one_of_all() {
        let file = fs::File::open("/proc/self/stat").unwrap();
        let mount = Mount::of(&file).unwrap();
        assert_eq!(mount.fs_type, "proc");
        assert!(Mount::all().unwrap().contains(&mount));
    }
}
