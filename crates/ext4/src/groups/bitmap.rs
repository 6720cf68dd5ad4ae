//! The bytes of a bitmap, as they are in its block.

use std::ops::Range;

/// A bitmap of one block; bit `n` is bit `n % 8` of byte `n / 8`, set when in use.
#[derive(Clone)]
pub(crate) struct BitmapBytes(Box<[u8]>);

impl BitmapBytes {
    /// Nothing in use below `bits`, everything from there to the end of the block.
    pub(crate) fn unused(block_bytes: usize, bits: u32) -> Self {
        let mut bitmap = Self(vec![0; block_bytes].into());
        bitmap.set(bits..block_bytes as u32 * 8, true);
        bitmap
    }

    pub(crate) fn from_block(block: &[u8]) -> Self {
        Self(block.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_set(&self, bit: u32) -> bool {
        self.0[bit as usize / 8] >> (bit % 8) & 1 == 1
    }

    /// Whether all bits of `range` are `value`.
    pub(crate) fn is_all(&self, range: Range<u32>, value: bool) -> bool {
        let mut all = true;
        each_byte(range, |byte, mask| {
            let here = self.0[byte] & mask;
            all &= here == if value { mask } else { 0 };
        });
        all
    }

    /// Sets all bits of `range`, of which none is `value` before, to that; `false` when some are,
    /// and then nothing is changed.
    pub(crate) fn flip(&mut self, range: Range<u32>, value: bool) -> bool {
        let (first, last) = (range.start as usize / 64, (range.end as usize - 1) / 64);
        if first != last {
            let is_other = self.is_all(range.clone(), !value);
            if is_other {
                self.set(range, value);
            }
            return is_other;
        }
        let Some(bytes) = self
            .0
            .get_mut(first * 8..)
            .and_then(<[u8]>::first_chunk_mut::<8>)
        else {
            return false;
        };
        let word = u64::from_le_bytes(*bytes);
        let mask = (u64::MAX >> (64 - (range.end - range.start))) << (range.start % 64);
        let is_other = word & mask == if value { 0 } else { mask };
        if is_other {
            *bytes = (word ^ mask).to_le_bytes();
        }
        is_other
    }

    /// Sets all bits of `range` to `value`.
    pub(crate) fn set(&mut self, range: Range<u32>, value: bool) {
        each_byte(range, |byte, mask| {
            if value {
                self.0[byte] |= mask
            } else {
                self.0[byte] &= !mask
            }
        });
    }

    /// Bits below `bits` that are not set.
    pub(crate) fn count_unset(&self, bits: u32) -> u32 {
        let mut count = 0;
        each_byte(0..bits, |byte, mask| {
            count += (!self.0[byte] & mask).count_ones();
        });
        count
    }

    /// The first bit of `range` that is not set.
    pub(crate) fn first_unset(&self, range: Range<u32>) -> Option<u32> {
        let mut at = range.start;
        while at < range.end {
            let free = !self.0[at as usize / 8] >> (at % 8);
            if free != 0 {
                return Some(at + free.trailing_zeros()).filter(|&bit| bit < range.end);
            }
            at = (at / 8 + 1) * 8;
        }
        None
    }

    /// The first bit of `range` that is set.
    pub(crate) fn first_set(&self, range: Range<u32>) -> Option<u32> {
        let mut at = range.start;
        while at < range.end {
            let used = self.0[at as usize / 8] >> (at % 8);
            if used != 0 {
                return Some(at + used.trailing_zeros()).filter(|&bit| bit < range.end);
            }
            at = (at / 8 + 1) * 8;
        }
        None
    }
}

/// Visits the bytes of a range of bits, with the bits of each that are in the range.
fn each_byte(range: Range<u32>, mut visit: impl FnMut(usize, u8)) {
    let mut at = range.start;
    while at < range.end {
        let byte_end = (at / 8 + 1) * 8;
        let end = range.end.min(byte_end);
        let mask = (0xFFu8 << (at % 8)) & (0xFFu8 >> (byte_end - end));
        visit(at as usize / 8, mask);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bitmap_is_an_array_of_bits(ranges in prop::collection::vec((0u32..512, 0u32..512, any::<bool>()), 1..20)) {
            let mut bitmap = BitmapBytes::unused(64, 500);
            let mut model: Vec<bool> = (0..512).map(|bit| bit >= 500).collect();
            for (from, to, value) in ranges {
                let range = from.min(to)..from.max(to);
                bitmap.set(range.clone(), value);
                model[range.start as usize..range.end as usize].fill(value);
                let mut flipped = bitmap.clone();
                if !range.is_empty() {
                    let are_others = model[range.start as usize..range.end as usize].iter().all(|&bit| bit == value);
                    prop_assert_eq!(flipped.flip(range.clone(), !value), are_others);
                    prop_assert_eq!(flipped.is_all(range.clone(), !value), are_others);
                }
                let part = &model[range.start as usize..range.end as usize];
                prop_assert_eq!(bitmap.is_all(range.clone(), value), true);
                prop_assert_eq!(bitmap.is_all(0..512, value), model.iter().all(|&bit| bit == value));
                prop_assert_eq!(part.is_empty() || !value, bitmap.first_unset(range.clone()).is_some() || part.is_empty());
                prop_assert_eq!(bitmap.count_unset(512) as usize, model.iter().filter(|&&bit| !bit).count());
                prop_assert_eq!(
                    bitmap.first_unset(range.start..512),
                    (range.start..512).find(|&bit| !model[bit as usize])
                );
                prop_assert_eq!(
                    bitmap.first_set(range.start..512),
                    (range.start..512).find(|&bit| model[bit as usize])
                );
                for bit in 0..512 {
                    prop_assert_eq!(bitmap.is_set(bit), model[bit as usize]);
                }
            }
        }
    }
}
