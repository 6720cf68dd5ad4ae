//! The physical runs of a file, and those of the same data in the files below.

use std::ops::ControlFlow;

use anyhow::Result;
use extant_space::{ByteRange, SpaceFile};

/// Pieces of the first `bytes` of the first of `files`, then of the same data in each next file.
pub(in crate::benches) fn pieces(files: &[&dyn SpaceFile], bytes: u64) -> Result<Vec<usize>> {
    let mut ranges = vec![ByteRange::new(0, bytes)];
    let mut pieces = Vec::new();
    for file in files {
        ranges = places(*file, &ranges)?;
        pieces.push(ranges.len());
    }
    Ok(pieces)
}

/// The ranges of the device below that hold `ranges` of `file`, in file order. Adjacent extents are
/// one piece in any state; holes have no address.
pub(super) fn places(file: &dyn SpaceFile, ranges: &[ByteRange]) -> Result<Vec<ByteRange>> {
    let mut pieces: Vec<ByteRange> = Vec::new();
    for range in ranges {
        // Pieces of different ranges are separate even if they are adjacent.
        let first = pieces.len();
        file.for_each_extent(*range, &mut |extent| {
            let Some((extent, start)) = extent
                .clip(*range)
                .and_then(|extent| Some((extent, extent.physical?)))
            else {
                return ControlFlow::Continue(());
            };
            let piece = ByteRange::new(start, start + extent.logical.len());
            match pieces[first..].last_mut() {
                Some(last) if last.end() == start => {
                    *last = ByteRange::new(last.start(), piece.end());
                }
                _ => pieces.push(piece),
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use extant_space::{
        Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, SyncMode,
    };

    use super::*;

    /// A file that is only a map: start in the file, start on the device, length.
    struct Map(&'static [(u64, u64, u64)]);

    impl SpaceFile for Map {
        fn size(&self) -> extant_space::Result<u64> {
            Ok(1000)
        }

        fn read_at(&self, _: &mut [u8], _: u64) -> extant_space::Result<usize> {
            Err(Error::new(ErrorKind::Unsupported))
        }

        fn write_at(&self, _: &[u8], _: u64) -> extant_space::Result<()> {
            Err(Error::new(ErrorKind::Unsupported))
        }

        fn resize(&self, _: u64) -> extant_space::Result<()> {
            Err(Error::new(ErrorKind::Unsupported))
        }

        fn fallocate(&self, _: FallocateMode, _: ByteRange) -> extant_space::Result<()> {
            Err(Error::new(ErrorKind::Unsupported))
        }

        fn for_each_extent(
            &self,
            range: ByteRange,
            visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
        ) -> extant_space::Result<()> {
            for (logical, physical, length) in self.0 {
                let extent = Extent {
                    logical: ByteRange::new(*logical, logical + length),
                    physical: Some(*physical),
                    state: ExtentState::Written,
                    flags: ExtentFlags::empty(),
                };
                if extent.logical.intersection(range).is_some() && visit(extent).is_break() {
                    break;
                }
            }
            Ok(())
        }

        fn sync(&self, _: SyncMode) -> extant_space::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn extents_that_go_on_are_one_piece_and_pieces_are_followed_down() {
        let top = Map(&[(0, 100, 10), (10, 110, 10), (20, 50, 10)]);
        let below = Map(&[(50, 7, 55), (105, 300, 15)]);
        let whole = [ByteRange::new(0, 30)];
        let ranges = |pairs: &[(u64, u64)]| -> Vec<ByteRange> {
            let pairs = pairs.iter();
            pairs
                .map(|(start, end)| ByteRange::new(*start, *end))
                .collect()
        };
        let places_of_top = places(&top, &whole).unwrap();
        assert_eq!(places_of_top, ranges(&[(100, 120), (50, 60)]));
        let lowest = places(&below, &places_of_top).unwrap();
        assert_eq!(lowest, ranges(&[(57, 62), (300, 315), (7, 17)]));
        assert_eq!(pieces(&[&top, &below], 30).unwrap(), [2, 3]);
    }
}
