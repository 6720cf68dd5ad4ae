//! A part of a block device whose bytes are stored by members at places that never change.

use std::io;
use std::ops::ControlFlow;

use extant_space::ByteRange;

/// How the members of a segment share its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Each of them stores all bytes. With one member: all bytes are there.
    Copies,
    /// They store chunks in turn.
    Stripes {
        /// Length of a chunk.
        chunk_bytes: u64,
    },
}

/// A member, by its number, and its first byte that belongs to the segment.
pub(super) type Start = (usize, u64);

/// A part of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its bytes of the device.
    pub(super) range: ByteRange,
    pub(super) layout: Layout,
    pub(super) starts: Vec<Start>,
}

/// Contiguous bytes of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) member: usize,
    /// The bytes of the member.
    pub(super) range: ByteRange,
    /// First byte of the device that is stored there.
    pub(super) device_start: u64,
}

impl Segment {
    /// `range`, at `start` of the only member.
    pub(super) fn plain(range: ByteRange, start: u64) -> Self {
        Self {
            range,
            layout: Layout::Copies,
            starts: vec![(0, start)],
        }
    }

    /// Visits the pieces that store the bytes of `range` that the segment has, in the order of the
    /// device, copies one after the other. What no member can address is left out.
    pub(super) fn for_each_piece(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Piece) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<ControlFlow<()>> {
        let Some(range) = self.range.intersection(range) else {
            return Ok(ControlFlow::Continue(()));
        };
        let mut piece = |(member, start): Start, in_member: u64, device_start: u64, length: u64| {
            let at = start.checked_add(in_member);
            let found = at.and_then(|at| ByteRange::at(at, length));
            found.map_or(Ok(ControlFlow::Continue(())), |range| {
                visit(Piece {
                    member,
                    range,
                    device_start,
                })
            })
        };
        let begin = range.start() - self.range.start();
        match self.layout {
            Layout::Copies => {
                for start in &self.starts {
                    if piece(*start, begin, range.start(), range.len())?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Layout::Stripes { chunk_bytes } => {
                let members = self.starts.len() as u64;
                let (mut at, end) = (begin, begin + range.len());
                while at < end {
                    let (chunk, inside) = (at / chunk_bytes, at % chunk_bytes);
                    let length = (chunk_bytes - inside).min(end - at);
                    let start = self.starts[(chunk % members) as usize];
                    let in_member = chunk / members * chunk_bytes + inside;
                    if piece(start, in_member, self.range.start() + at, length)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    at += length;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(segment: &Segment, range: ByteRange) -> Vec<(usize, u64, u64, u64)> {
        let mut found = Vec::new();
        let flow = segment.for_each_piece(range, &mut |piece| {
            found.push((
                piece.member,
                piece.range.start(),
                piece.range.len(),
                piece.device_start,
            ));
            Ok(ControlFlow::Continue(()))
        });
        assert!(flow.unwrap().is_continue());
        found
    }

    #[test]
    fn chunks_go_to_the_members_in_turn() {
        let striped = Segment {
            range: ByteRange::new(1000, 1800),
            layout: Layout::Stripes { chunk_bytes: 100 },
            starts: vec![(0, 10), (1, 5000), (2, 0)],
        };
        let found = pieces(&striped, ByteRange::new(950, 1450));
        let wanted = [
            (0, 10, 100, 1000),
            (1, 5000, 100, 1100),
            (2, 0, 100, 1200),
            (0, 110, 100, 1300),
            (1, 5100, 50, 1400),
        ];
        assert_eq!(found, wanted);
        assert_eq!(
            pieces(&striped, ByteRange::new(1730, 9999)),
            [(1, 5230, 70, 1730)]
        );
    }

    #[test]
    fn copies_are_all_visited_and_other_bytes_are_not() {
        let mirrored = Segment {
            range: ByteRange::new(0, 800),
            layout: Layout::Copies,
            starts: vec![(0, 64), (1, 128)],
        };
        let found = pieces(&mirrored, ByteRange::new(700, 900));
        assert_eq!(found, [(0, 764, 100, 700), (1, 828, 100, 700)]);
        assert_eq!(pieces(&mirrored, ByteRange::new(800, 900)), []);
        let far = Segment::plain(ByteRange::new(0, 800), u64::MAX - 10);
        assert_eq!(pieces(&far, ByteRange::new(0, 800)), []);
    }
}
