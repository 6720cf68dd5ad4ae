//! Conversions to smaller integers: the only casts of the format crates that may truncate.
//!
//! - `low16`, `low32`: the low half, for fields whose high half is stored elsewhere;
//! - `fit8`, `fit16`, `fit32`, `fit_index`: numbers that the caller has bounded, asserted.

#![expect(
    clippy::cast_possible_truncation,
    reason = "each function states what is lost"
)]

/// The low 16 bits.
#[inline]
pub const fn low16(value: u32) -> u16 {
    value as u16
}

/// The low 32 bits.
#[inline]
pub const fn low32(value: u64) -> u32 {
    value as u32
}

/// The same number.
///
/// # Panics
/// If it is above 255.
#[inline]
pub const fn fit8(value: usize) -> u8 {
    assert!(value <= u8::MAX as usize);
    value as u8
}

/// The same number.
///
/// # Panics
/// If it is above 65,535.
#[inline]
pub const fn fit16(value: usize) -> u16 {
    assert!(value <= u16::MAX as usize);
    value as u16
}

/// The same number.
///
/// # Panics
/// If it is above 2^32 - 1.
#[inline]
pub const fn fit32(value: usize) -> u32 {
    assert!(value <= u32::MAX as usize);
    value as u32
}

/// The same number.
///
/// # Panics
/// If no slice can have that index: above 2^32 - 1 on 32-bit machines.
#[inline]
pub const fn fit_index(value: u64) -> usize {
    assert!(value <= usize::MAX as u64);
    value as usize
}
