//! One cell of a file map at the resolution of a picture.
//!
//! A cell holds its bytes by state, the number of fragments that begin in it, and its ranges on the
//! device. With more than [`PLACES_MAX`] ranges the nearest two are merged.

use extant_space::{ByteRange, Extent};

use super::fill::Fill;

/// Ranges on the device that a cell distinguishes.
pub(super) const PLACES_MAX: usize = 4;

/// A part of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    /// Bytes by [`Fill`].
    bytes: [u64; Fill::ALL.len()],
    /// Fragments that begin here, the first of the file not counted.
    pub(super) boundaries: u32,
    places: [ByteRange; PLACES_MAX],
}

impl Cell {
    /// The fill of most bytes, and whether others have an eighth or more.
    pub(super) fn dominant(&self) -> (Fill, Mixture) {
        let fill = Fill::ALL
            .into_iter()
            .max_by_key(|&fill| (self.bytes(fill), std::cmp::Reverse(fill as usize)))
            .unwrap_or(Fill::Hole);
        let total = self.total_bytes();
        let others = total - self.bytes(fill);
        if others > 0 && others >= total / 8 {
            (fill, Mixture::Mixed)
        } else {
            (fill, Mixture::Plain)
        }
    }

    pub(super) fn bytes(&self, fill: Fill) -> u64 {
        self.bytes[fill as usize]
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Ranges of the cell on the device.
    pub(super) fn places(&self) -> impl Iterator<Item = ByteRange> {
        self.places.into_iter().filter(|place| !place.is_empty())
    }

    /// Takes in a part of an extent.
    pub(super) fn add(&mut self, part: &Extent) {
        let length = part.logical.len();
        self.bytes[Fill::of(part) as usize] += length;
        if let Some(place) = part.physical.and_then(|p| ByteRange::at(p, length)) {
            self.add_place(place);
        }
    }

    /// Takes in the bytes, boundaries and places of `other`.
    pub(super) fn absorb(&mut self, other: &Self) {
        for (bytes, more) in self.bytes.iter_mut().zip(other.bytes) {
            *bytes += more;
        }
        self.boundaries = self.boundaries.saturating_add(other.boundaries);
        for place in other.places() {
            self.add_place(place);
        }
    }

    fn add_place(&mut self, place: ByteRange) {
        let used = self.places().count();
        let known = &mut self.places[..used];
        if let Some(before) = known.iter_mut().find(|p| p.end() == place.start()) {
            *before = ByteRange::new(before.start(), place.end());
            return;
        }
        if let Some(free) = self.places.get_mut(used) {
            *free = place;
            return;
        }
        let mut all = [place; PLACES_MAX + 1];
        all[..PLACES_MAX].copy_from_slice(&self.places);
        all.sort_unstable_by_key(|place| place.start());
        let gap = |&at: &usize| all[at + 1].start().saturating_sub(all[at].end());
        let nearest = (0..PLACES_MAX).min_by_key(gap).unwrap_or(0);
        let end = all[nearest].end().max(all[nearest + 1].end());
        all[nearest + 1] = ByteRange::new(all[nearest].start(), end);
        all.copy_within(nearest + 1.., nearest);
        self.places.copy_from_slice(&all[..PLACES_MAX]);
    }
}

/// Whether a cell holds one fill or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixture {
    Plain,
    Mixed,
}
