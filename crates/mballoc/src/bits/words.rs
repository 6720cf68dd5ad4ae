//! Arithmetic on words of bits.

/// The bits `start..end` of a word; `end <= 64`.
pub(super) fn mask(start: usize, end: usize) -> u64 {
    debug_assert!(start < end && end <= 64);
    (u64::MAX << start) & (u64::MAX >> (64 - end))
}

/// Start positions of chunks of order 1 to 5.
const STARTS: [u64; 5] = [
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
];

/// The aligned chunks of order 0 to 5 in a word, each shown by its first bit.
pub(super) fn aligned_chunks(word: u64, order: usize) -> u64 {
    let halves = STARTS.iter().enumerate().take(order);
    halves.fold(word, |chunks, (half, starts)| {
        chunks & chunks >> (1 << half) & starts
    })
}

/// One bit for each order 0 to 6 of which the word holds a chunk.
pub(super) fn chunk_orders(word: u64) -> u8 {
    if word == u64::MAX {
        return 0x7f;
    }
    let mut orders = u8::from(word != 0);
    let mut chunks = word;
    for (half, starts) in STARTS.iter().enumerate() {
        chunks &= chunks >> (1 << half) & starts;
        orders |= u8::from(chunks != 0) << (half + 1);
    }
    orders
}

/// Sets the bits `start..end` of `words` to `value`.
pub(super) fn fill(words: &mut [u64], start: usize, end: usize, value: bool) {
    let (first, last) = (start / 64, end.div_ceil(64));
    for (at, word) in words[first..last].iter_mut().enumerate() {
        let base = (first + at) * 64;
        let mask = mask(start.max(base) - base, end.min(base + 64) - base);
        *word = if value { *word | mask } else { *word & !mask };
    }
}

/// Whether the bits `start..end` of `words` all have `value`.
pub(super) fn is_all(words: &[u64], start: usize, end: usize, value: bool) -> bool {
    (start / 64..end.div_ceil(64)).all(|at| {
        let mask = mask(
            start.max(at * 64) - at * 64,
            end.min(at * 64 + 64) - at * 64,
        );
        words[at] & mask == if value { mask } else { 0 }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_of_a_word_are_its_aligned_free_runs(a: u64, b: u64) {
            // Two random words joined make long runs likely enough.
            let word = a | b;
            for order in 0..6 {
                let length = 1usize << order;
                let mut expected = 0;
                for start in (0..64).step_by(length) {
                    if word & mask(start, start + length) == mask(start, start + length) {
                        expected |= 1 << start;
                    }
                }
                prop_assert_eq!(aligned_chunks(word, order), expected);
                prop_assert_eq!(chunk_orders(word) >> order & 1 == 1, expected != 0);
            }
        }

        #[test]
        fn fill_changes_its_range_alone(start in 0usize..200, length in 1usize..200, value: bool) {
            let end = start + length;
            let mut words = [if value { 0 } else { u64::MAX }; 7];
            fill(&mut words, start, end, value);
            for at in 0..448 {
                let inside = (start..end).contains(&at);
                prop_assert_eq!(words[at / 64] >> (at % 64) & 1 == 1, inside == value);
            }
            prop_assert!(is_all(&words, start, end, value));
            prop_assert!(!is_all(&words, start, end + 1, value));
        }
    }
}
