//! `e4defrag -c`: how fragmented a file on ext4 is.

use std::path::Path;

use crate::command::{self, tool};

/// e4defrag's result for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defrag {
    /// Extents of the file.
    pub extents: u64,
    /// Extents it could do with.
    pub extents_best: u64,
    /// Mean size of an extent.
    pub extent_kib: u64,
    /// Fragmentation score: up to 30 is fine, from 56 on is bad.
    pub score: u64,
}

/// Asks for `file`, a regular file with data on ext4.
///
/// # Panics
/// If e4defrag fails or does not report the file.
#[track_caller]
pub fn e4defrag(file: &Path) -> Defrag {
    let mut command = tool("e4defrag");
    command.arg("-c").arg(file);
    let text = command::text(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
    parse(&text).unwrap_or_else(|| panic!("`{}` printed\n{text}", command::line(&command)))
}

fn parse(text: &str) -> Option<Defrag> {
    let value = |label: &str| {
        text.lines()
            .find_map(|line| line.trim_start().strip_prefix(label))
            .map(str::trim)
    };
    let (extents, best) = value("Total/best extents")?.split_once('/')?;
    Some(Defrag {
        extents: extents.parse().ok()?,
        extents_best: best.parse().ok()?,
        extent_kib: value("Average size per extent")?
            .strip_suffix(" KB")?
            .parse()
            .ok()?,
        score: value("Fragmentation score")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_the_totals() {
        let text = "<File>  now/best  size/ext\na  2/1  512 KB\n\n Total/best extents\t\t2/1\n \
                    Average size per extent\t\t512 KB\n Fragmentation score\t\t3\n Done.\n";
        let expected = Defrag {
            extents: 2,
            extents_best: 1,
            extent_kib: 512,
            score: 3,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("Can not get file system type"), None);
    }
}
