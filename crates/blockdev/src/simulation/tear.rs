//! The parts of a torn write that are kept.

use extant_space::ByteRange;
use fastrand::Rng;

/// A random selection of the `unit`s of `range`: at least one but not all; of a single unit, all or
/// nothing.
///
/// Up to 32 units each is for itself; of more, runs of neighbours share their fate, so that a huge
/// write costs no more than a small one.
pub(super) fn torn(range: ByteRange, unit: u64, random: &mut Rng) -> Vec<ByteRange> {
    let units = units(range, unit);
    let run_max = (units / 16).max(1);
    loop {
        let mut kept = Vec::new();
        let mut at = range.start();
        while at < range.end() {
            let run = random.u64(1..=run_max);
            let end = (at / unit + run).saturating_mul(unit).min(range.end());
            if random.bool() {
                kept.push(ByteRange::new(at, end));
            }
            at = end;
        }
        let bytes: u64 = kept.iter().map(|part| part.len()).sum();
        if units <= 1 || (bytes > 0 && bytes < range.len()) {
            return kept;
        }
    }
}

/// The number of `unit`s in `range`.
pub(super) fn units(range: ByteRange, unit: u64) -> u64 {
    if range.is_empty() {
        0
    } else {
        (range.end() - 1) / unit - range.start() / unit + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_write_keeps_whole_units_but_neither_none_nor_all() {
        let mut random = Rng::with_seed(1);
        for length in [1024, 4096, 1 << 20, 1 << 40] {
            for _ in 0..100 {
                let range = ByteRange::new(512, 512 + length);
                let kept = torn(range, 512, &mut random);
                let bytes: u64 = kept.iter().map(|part| part.len()).sum();
                assert!(0 < bytes && bytes < length && kept.len() <= 2000);
                assert!(kept.iter().all(|part| range.contains(*part)
                    && part.start().is_multiple_of(512)
                    && part.end().is_multiple_of(512)));
            }
        }
    }

    #[test]
    fn torn_write_of_one_unit_is_all_or_nothing_and_either_happens() {
        let mut random = Rng::with_seed(1);
        let range = ByteRange::new(512, 1024);
        let kept: Vec<_> = (0..100).map(|_| torn(range, 512, &mut random)).collect();
        assert!(kept.contains(&vec![range]) && kept.contains(&vec![]));
    }
}
