//! Seeds and numbers that the environment gives to a test, and counts of what it tested.
//!
//! A test has few seeds of its own, the same each day. `cargo xtask soak` gives others, and adds up
//! the lines of [`counted`]. A failure prints the line that repeats one seed.

use std::env;
use std::fmt::Display;
use std::ops::Range;

/// The seeds `A..B` that the environment variable gives, if it is set.
///
/// # Panics
/// When it is no such range.
pub fn given(variable: &str) -> Option<Range<u64>> {
    let text = env::var(variable).ok()?;
    Some(parse(&text).unwrap_or_else(|| panic!("{variable}={text} is not A..B")))
}

/// The seeds that the environment variable gives, or `usual`.
///
/// # Panics
/// When the variable is no range.
pub fn seeds(variable: &str, usual: Range<u64>) -> Range<u64> {
    given(variable).unwrap_or(usual)
}

/// The number that the environment variable gives, or `usual`.
///
/// # Panics
/// When the variable is no number.
pub fn number(variable: &str, usual: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
        Err(_) => usual,
    }
}

/// Prints how many cases, cuts or kills were tested.
pub fn counted(count: impl Display, unit: &str) {
    println!("counted: {count} {unit}");
}

fn parse(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    let seeds = first.parse().ok()?..end.parse().ok()?;
    (!seeds.is_empty()).then_some(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_that_is_not_empty() {
        assert_eq!(parse("3..7"), Some(3..7));
        for wrong in ["3", "3..", "7..3", "3..3", "a..b"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn without_a_variable_the_usual_values_hold() {
        assert_eq!(seeds("EXTANT_NO_SUCH_SEEDS", 1..2), 1..2);
        assert_eq!(number("EXTANT_NO_SUCH_NUMBER", 9), 9);
    }
}
