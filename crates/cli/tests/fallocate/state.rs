//! The properties of a file after a step in which two programs must agree.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_space::{ByteRange, ExtentState};
use extant_testkit::oracle;
use extant_testkit::scratch::Filesystem;

/// Everything but the places on the disk.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pub bytes: Vec<u8>,
    pub allocated_bytes: u64,
    /// Neighbours in the same state are one; holes are left out. Empty on tmpfs.
    pub extents: Vec<(ByteRange, ExtentState)>,
}

impl State {
    /// Reads it; the file is synced by that.
    #[track_caller]
    pub fn of(file: &Path, filesystem: Filesystem) -> Self {
        let mut extents: Vec<(ByteRange, ExtentState)> = Vec::new();
        if filesystem != Filesystem::Tmpfs {
            for extent in oracle::filefrag(file).extents {
                match extents.last_mut() {
                    Some((range, state))
                        if range.end() == extent.logical.start() && *state == extent.state =>
                    {
                        *range = ByteRange::new(range.start(), extent.logical.end());
                    }
                    _ => extents.push((extent.logical, extent.state)),
                }
            }
        }
        let read = || Ok((fs::read(file)?, fs::metadata(file)?.blocks() * 512));
        let (bytes, allocated_bytes) =
            read().unwrap_or_else(|error: std::io::Error| panic!("{}: {error}", file.display()));
        Self {
            bytes,
            allocated_bytes,
            extents,
        }
    }

    /// Differences from `other`; `None` if there are none except `slack_bytes` of space.
    pub fn difference(&self, other: &Self, slack_bytes: u64) -> Option<String> {
        if self.bytes != other.bytes {
            let same = self.bytes.iter().zip(&other.bytes);
            let at = same.take_while(|(one, other)| one == other).count();
            let (size, other_size) = (self.bytes.len(), other.bytes.len());
            return Some(format!("bytes from {at} on, sizes {size} and {other_size}"));
        }
        if self.extents != other.extents {
            return Some(format!("extents\n{:?}\n{:?}", self.extents, other.extents));
        }
        (self.allocated_bytes.abs_diff(other.allocated_bytes) > slack_bytes).then(|| {
            format!(
                "allocated bytes {} and {}",
                self.allocated_bytes, other.allocated_bytes
            )
        })
    }
}
