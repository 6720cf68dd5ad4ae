//! The table of mounts, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, StatxFlags};

/// One line of `/proc/self/mountinfo`.
pub(crate) struct Mount {
    pub(crate) fs_type: String,
    source: PathBuf,
    pub(crate) point: PathBuf,
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// By mount id: device numbers of btrfs and overlayfs do not match those in the table.
    pub(crate) fn of(file: &impl std::os::fd::AsFd) -> Option<Self> {
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
    pub(crate) fn device(&self) -> Option<u64> {
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

/// Undoes the octal escapes of the tables in /proc (`\040` is a space).
pub(crate) fn path_of(field: &[u8]) -> PathBuf {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

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
    fn escapes_are_undone_and_other_backslashes_stay() {
        assert_eq!(path_of(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(path_of(b"\\04"), Path::new("\\04"));
        assert_eq!(path_of(b"\\999"), Path::new("\\999"));
    }
}
