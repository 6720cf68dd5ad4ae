//! Random numbers that depend on a seed and a place, and on nothing that happened before.
//!
//! So a decision can be repeated alone, and another order of threads changes only the decisions
//! that are numbered by order.

use fastrand::Rng;

/// The generator for one decision: `place` says which.
pub(super) fn random(seed: u64, place: &[u64]) -> Rng {
    let mixed = place.iter().fold(seed, |state, &part| {
        // The finalizer of SplitMix64, a public domain algorithm of Sebastiano Vigna.
        let state = state.wrapping_add(part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^ (state >> 31)
    });
    Rng::with_seed(mixed)
}
