//! Arrays of md whose places never change: linear, raid0 with members of one size, raid1.
//!
//! Format: Documentation/admin-guide/md.rst, the attributes in `/sys/block/mdX/md`.

use std::fs;
use std::path::Path;

use extant_space::ByteRange;

use super::SECTOR_BYTES;
use super::mapper::Table;
use super::segment::{Layout, Segment};
use crate::disk::number;
use crate::loop_device::device_number;

/// The level of the array whose attributes are in `directory`.
pub(super) fn level(directory: &Path) -> String {
    word(directory, "level").unwrap_or_else(|| "unknown".to_owned())
}

/// The segments of the array of `size_bytes` whose attributes are in `directory`.
///
/// # Errors
/// The reason why it has no places that stay.
pub(super) fn segments(directory: &Path, size_bytes: u64) -> Result<Table, String> {
    let level = level(directory);
    let is_raid1 = level == "raid1";
    if !is_raid1 && level != "raid0" && level != "linear" {
        return Err(format!(
            "is an array (md {level}), of which linear, raid0 and raid1 are known"
        ));
    }
    let reshape = word(directory, "reshape_position");
    if reshape.is_some_and(|position| position != "none") {
        return Err(format!("is an array (md {level}) that is being reshaped"));
    }
    let count = number(&directory.join("raid_disks")).unwrap_or(0);
    let found = (0..count).map(|slot| Member::of(&directory.join(format!("rd{slot}"))));
    // A mirror may lack members.
    let found: Vec<Member> = if is_raid1 {
        found.flatten().collect()
    } else {
        found.collect::<Option<_>>().unwrap_or_default()
    };
    if found.is_empty() {
        return Err(format!(
            "is an array (md {level}) that does not show its members"
        ));
    }
    let whole = ByteRange::new(0, size_bytes);
    let starts = found.iter().map(|member| member.start_bytes).enumerate();
    let one = |layout| {
        vec![Segment {
            range: whole,
            layout,
            starts: starts.collect(),
        }]
    };
    let segments = if is_raid1 {
        one(Layout::Copies)
    } else if level == "raid0" {
        if found.iter().any(|member| member.bytes != found[0].bytes) {
            return Err("is an array (md raid0) with members of different sizes".to_owned());
        }
        match number(&directory.join("chunk_size")) {
            None | Some(0) => return Err("is an array (md raid0) without a chunk size".to_owned()),
            Some(chunk_bytes) => one(Layout::Stripes { chunk_bytes }),
        }
    } else {
        one_after_the_other(&found)
    };
    Ok((segments, found.iter().map(|member| member.device).collect()))
}

fn one_after_the_other(members: &[Member]) -> Vec<Segment> {
    let mut at = 0;
    let segment = |(member, found): (usize, &Member)| {
        let range = ByteRange::new(at, at + found.bytes);
        at = range.end();
        Segment {
            range,
            layout: Layout::Copies,
            starts: vec![(member, found.start_bytes)],
        }
    };
    members.iter().enumerate().map(segment).collect()
}

struct Member {
    device: u64,
    /// First byte of data on it.
    start_bytes: u64,
    /// Data on it.
    bytes: u64,
}

impl Member {
    /// `None` for a slot that is empty, or whose member has failed.
    fn of(directory: &Path) -> Option<Self> {
        if word(directory, "state").is_some_and(|state| state.contains("faulty")) {
            return None;
        }
        let read = |name: &str| number(&directory.join(name));
        Some(Self {
            device: device_number(&directory.join("block"))?,
            start_bytes: read("offset")?.checked_mul(SECTOR_BYTES)?,
            bytes: read("size")?.checked_mul(1024)?,
        })
    }
}

fn word(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    /// Attributes as the kernel has them: the level, and the minor number and KiB of each member.
    fn array(level: &str, members: &[Option<(u32, u64)>]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        write("level", level.to_owned());
        write("raid_disks", members.len().to_string());
        write("chunk_size", "524288".to_owned());
        write("reshape_position", "none".to_owned());
        for (slot, member) in members.iter().enumerate() {
            let Some((minor, kib)) = member else { continue };
            write(&format!("rd{slot}/block/dev"), format!("7:{minor}"));
            write(&format!("rd{slot}/offset"), "2048".to_owned());
            write(&format!("rd{slot}/size"), kib.to_string());
            write(&format!("rd{slot}/state"), "in_sync".to_owned());
        }
        directory
    }

    #[test]
    fn raid0_of_equal_members_has_chunks_behind_the_superblocks() {
        let directory = array("raid0", &[Some((0, 1024)), Some((1, 1024))]);
        let (segments, members) = segments(directory.path(), 2 << 20).unwrap();
        assert_eq!(members, [makedev(7, 0), makedev(7, 1)]);
        let chunk_bytes = 512 << 10;
        assert_eq!(segments[0].layout, Layout::Stripes { chunk_bytes });
        assert_eq!(segments[0].starts, [(0, 1 << 20), (1, 1 << 20)]);
        assert_eq!(segments[0].range, ByteRange::new(0, 2 << 20));
    }

    #[test]
    fn raid1_has_the_members_that_are_there() {
        let directory = array("raid1", &[Some((0, 512)), None, Some((5, 512))]);
        let (segments, members) = segments(directory.path(), 512 << 10).unwrap();
        assert_eq!(members, [makedev(7, 0), makedev(7, 5)]);
        assert_eq!(segments[0].layout, Layout::Copies);
        assert_eq!(segments[0].starts.len(), 2);
        fs::write(directory.path().join("rd0/state"), "faulty\n").unwrap();
        let (_, members) = super::segments(directory.path(), 512 << 10).unwrap();
        assert_eq!(members, [makedev(7, 5)]);
    }

    #[test]
    fn linear_array_has_its_members_one_after_the_other() {
        let directory = array("linear", &[Some((0, 512)), Some((1, 2048))]);
        let (segments, _) = segments(directory.path(), 2560 << 10).unwrap();
        assert_eq!(segments[1].range, ByteRange::new(512 << 10, 2560 << 10));
        assert_eq!(segments[1].starts, [(1, 1 << 20)]);
    }

    #[test]
    fn other_arrays_are_refused_by_name() {
        let one = Some((0, 512));
        let refused = |directory: &tempfile::TempDir, word: &str| {
            let reason = segments(directory.path(), 1 << 20).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        };
        refused(&array("raid5", &[one, one, one]), "md raid5");
        refused(&array("raid0", &[one, Some((1, 1024))]), "different sizes");
        refused(&array("raid0", &[one, None]), "does not show its members");
        refused(&array("raid1", &[None, None]), "does not show its members");
        let reshaped = array("raid1", &[one, one]);
        fs::write(reshaped.path().join("reshape_position"), "1234\n").unwrap();
        refused(&reshaped, "reshaped");
    }
}
