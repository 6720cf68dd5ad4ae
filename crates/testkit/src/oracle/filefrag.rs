//! `filefrag`: the extents of a file.
//!
//! Asked for units of one byte, filefrag prints the numbers of the kernel as they are. It
//! syncs the file first, so delayed allocation is settled. Holes are not listed by it.

use std::path::Path;

use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState};

use crate::command::{self, tool};

/// The map of a file, as filefrag saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMap {
    /// Size of the file.
    pub size_bytes: u64,
    /// Allocated ranges, in order; may extend past the end of the file.
    pub extents: Vec<Extent>,
    /// The number of extents that filefrag counts: neighbours in the file that are
    /// neighbours on the device count once.
    pub extent_count: u64,
}

impl FileMap {
    /// The extents and the holes between them up to the end of the file, neighbours of
    /// the same state and place merged.
    pub fn with_holes(&self) -> Vec<Extent> {
        let mut whole: Vec<Extent> = Vec::new();
        let mut at = 0;
        for &extent in &self.extents {
            if extent.logical.start() > at {
                whole.push(Extent::hole(ByteRange::new(at, extent.logical.start())));
            }
            at = extent.logical.end();
            match whole.last_mut() {
                Some(last) if last.continues_in(&extent) => {
                    last.logical = ByteRange::new(last.logical.start(), at);
                }
                _ => whole.push(extent),
            }
        }
        if at < self.size_bytes {
            whole.push(Extent::hole(ByteRange::new(at, self.size_bytes)));
        }
        whole
    }

    /// Bytes of the file in `state`, without blocks allocated past its end.
    pub fn bytes(&self, state: ExtentState) -> u64 {
        let file = ByteRange::new(0, self.size_bytes);
        self.with_holes()
            .iter()
            .filter(|extent| extent.state == state)
            .filter_map(|extent| extent.clip(file))
            .map(|extent| extent.logical.len())
            .sum()
    }

    /// Every byte of the file is written, in plain space of its own.
    pub fn is_extant(&self) -> bool {
        let file = ByteRange::new(0, self.size_bytes);
        self.with_holes()
            .iter()
            .filter_map(|extent| extent.clip(file))
            .all(|extent| extent.is_extant())
    }
}

/// The extents of `file`.
///
/// # Panics
/// When filefrag fails, as on tmpfs.
#[track_caller]
pub fn filefrag(file: &Path) -> FileMap {
    let mut command = tool("filefrag");
    command.args(["-s", "-v", "-b1"]).arg(file);
    let text = command::text(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
    parse(&text).unwrap_or_else(|| panic!("`{}` printed\n{text}", command::line(&command)))
}

/// The map that `filefrag -s -v -b1` printed elsewhere, as in a guest.
///
/// # Panics
/// When it is none.
#[track_caller]
pub fn filefrag_map(text: &str) -> FileMap {
    parse(text).unwrap_or_else(|| panic!("no map:\n{text}"))
}

/// The number of extents of `file` as filefrag counts them.
///
/// # Panics
/// As [`filefrag`].
#[track_caller]
pub fn filefrag_count(file: &Path) -> u64 {
    filefrag(file).extent_count
}

fn parse(text: &str) -> Option<FileMap> {
    let mut map = FileMap {
        size_bytes: 0,
        extents: Vec::new(),
        extent_count: 0,
    };
    let mut counted = false;
    for line in text.lines() {
        if let Some((_, size)) = line
            .strip_prefix("File size of ")
            .and_then(|rest| rest.rsplit_once(" is "))
        {
            map.size_bytes = size.split(' ').next()?.parse().ok()?;
        } else if let Some(count) = line
            .strip_suffix(" extents found")
            .or(line.strip_suffix(" extent found"))
        {
            map.extent_count = count.rsplit_once(": ")?.1.parse().ok()?;
            counted = true;
        } else if line.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            map.extents.push(parse_extent(line)?);
        }
    }
    counted.then_some(map)
}

/// `number: first..last: first..last: length: [expected:] flags`
fn parse_extent(line: &str) -> Option<Extent> {
    let mut columns = line.split(':').map(str::trim).skip(1);
    let (first, last) = parse_ends(columns.next()?)?;
    let (place, _) = parse_ends(columns.next()?)?;
    let length: u64 = columns.next()?.parse().ok()?;
    if last + 1 - first != length {
        return None;
    }

    let words = columns.last().unwrap_or_default();
    let has = |word| words.split(',').any(|each| each == word);
    let mut flags = ExtentFlags::empty();
    flags.set(ExtentFlags::SHARED, has("shared"));
    flags.set(ExtentFlags::DELAYED, has("delalloc"));
    let is_encoded = [
        "encoded",
        "encrypted",
        "inline",
        "not_aligned",
        "tail_packed",
    ]
    .into_iter()
    .any(has);
    flags.set(ExtentFlags::ENCODED, is_encoded);
    Some(Extent {
        logical: ByteRange::at(first, length)?,
        physical: (!has("unknown_loc") && !has("unknown")).then_some(place),
        state: if has("unwritten") {
            ExtentState::Unwritten
        } else {
            ExtentState::Written
        },
        flags,
    })
}

fn parse_ends(column: &str) -> Option<(u64, u64)> {
    let (first, last) = column.split_once("..")?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
Filesystem type is: ef53
File size of /a is b: c is 20000 (20000 blocks of 1 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..    8191:    1048576..   1056767:   8192:             shared
   1:    12288..   20479:    2097152..   2105343:   8192:    1056768: last,unwritten,eof
/a is b: c: 2 extents found
";

    #[test]
    fn parse_reads_states_flags_and_places() {
        let map = parse(TWO).unwrap();
        assert_eq!((map.size_bytes, map.extent_count), (20_000, 2));
        assert_eq!(map.extents[0].flags, ExtentFlags::SHARED);
        assert_eq!(map.extents[1].physical, Some(2 << 20));
        assert_eq!(map.extents[1].state, ExtentState::Unwritten);
        assert_eq!(map.bytes(ExtentState::Hole), 4096);
        assert_eq!(map.bytes(ExtentState::Unwritten), 20_000 - 12_288);
        assert!(!map.is_extant());
    }

    #[test]
    fn parse_refuses_an_extent_whose_length_is_not_its_ends() {
        assert!(parse(&TWO.replace("  8192:  ", "  8193:  ")).is_none());
        assert!(parse("filefrag: something else\n").is_none());
    }

    #[test]
    fn file_without_extents_is_one_hole() {
        let map = parse("File size of s is 4096 (4096 blocks of 1 bytes)\ns: 0 extents found\n");
        let map = map.unwrap();
        assert_eq!(map.with_holes(), [Extent::hole(ByteRange::new(0, 4096))]);
    }
}
