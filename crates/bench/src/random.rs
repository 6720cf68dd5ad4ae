//! Random moments that a seed repeats.

use std::time::Duration;

/// A small generator (splitmix64): equal seeds, equal numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// From a seed, which the report shows.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number from 0 up to and without 1.
    pub fn fraction(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A moment before `end`.
    pub fn moment(&mut self, end: Duration) -> Duration {
        end.mul_f64(self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_repeat_and_fill_the_unit() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.fraction()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mean = draw(7).iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert!(draw(7).iter().all(|fraction| (0.0..1.0).contains(fraction)));
    }
}
