//! Lengths and offsets as util-linux reads them.
//!
//! Unlike [`ByteSize`](extant_space::ByteSize) the digits may be octal (a leading 0), hexadecimal
//! (`0x`) or binary (`0b`), also with a suffix; there is no suffix `B`, nothing
//! may follow the number, and the `i` of `KiB` is small. A comma is never a decimal point.
//!
//! One difference to the original: fractions are exact, so `1.8K` is 1843 bytes (truncated), not
//! 2048.

use std::ffi::OsStr;

/// In the order of their powers.
const LETTERS: &str = "KMGTPEZY";
/// More digits of a fraction are insignificant: a byte of the largest number is 1 in 2^63.
const FRACTION_DIGITS: usize = 19;

/// The number of bytes, at most `i64::MAX`; `None` if the text is no number.
pub fn parse(text: &OsStr) -> Option<u64> {
    let text = text.to_str()?;
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (whole, rest) = whole_number(text.strip_prefix('+').unwrap_or(text))?;
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest, 10),
        None => ("", rest),
    };
    let has_point = rest.starts_with('.');
    let scale = match suffix {
        "" if !has_point => 1,
        _ => scale(suffix)?,
    };
    let bytes = u128::from(whole)
        .checked_mul(scale)?
        .checked_add(part(fraction, scale)?)?;
    u64::try_from(bytes)
        .ok()
        .filter(|&bytes| i64::try_from(bytes).is_ok())
}

fn whole_number(text: &str) -> Option<(u64, &str)> {
    let prefixed = |radix: u32, prefixes: [&str; 2]| {
        let rest = prefixes
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix))?;
        rest.starts_with(|c: char| c.is_digit(radix))
            .then_some((rest, radix))
    };
    let (text, radix) = prefixed(16, ["0x", "0X"])
        .or_else(|| prefixed(2, ["0b", "0B"]))
        .unwrap_or((text, if text.starts_with('0') { 8 } else { 10 }));
    let (digits, rest) = split_digits(text, radix);
    Some((u64::from_str_radix(digits, radix).ok()?, rest))
}

fn split_digits(text: &str, radix: u32) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_digit(radix));
    text.split_at(end.unwrap_or(text.len()))
}

fn scale(suffix: &str) -> Option<u128> {
    let letter = suffix.chars().next()?.to_ascii_uppercase();
    let power = LETTERS.find(letter)? as u32 + 1;
    match &suffix[1..] {
        "" | "iB" | "ib" => Some(1 << (10 * power)),
        "B" | "b" => Some(1000u128.pow(power)),
        _ => None,
    }
}

/// `0.fraction` of `scale`, truncated.
fn part(fraction: &str, scale: u128) -> Option<u128> {
    let digits = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    if digits.is_empty() {
        return Some(0);
    }
    let numerator: u128 = digits.parse().ok()?;
    // 10^19 * 10^18 fits; a fraction of a zetta- or yottabyte may not, and is too large then.
    Some(numerator.checked_mul(scale)? / 10u128.pow(digits.len() as u32))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_those_of_util_linux() {
        for (text, bytes) in [
            ("10", 10),
            ("010", 8),
            ("0x10", 16),
            ("0X1f", 31),
            ("0b11", 3),
            ("0", 0),
            (" \t+5", 5),
            ("5k", 5120),
            ("5KiB", 5120),
            ("5kib", 5120),
            ("5KB", 5000),
            ("5kb", 5000),
            ("010K", 8192),
            ("0x1K", 1024),
            ("0x1E", 30),
            ("0x1B", 27),
            ("1.5K", 1536),
            ("1.K", 1024),
            ("1.8K", 1843),
            ("1.5KB", 1500),
            ("0.1G", 107_374_182),
            ("0.0001Z", 118_059_162_071_741_130),
            ("7E", 7 << 60),
            ("9EB", 9_000_000_000_000_000_000),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse(OsStr::new(text)), Some(bytes), "{text}");
        }
    }

    #[test]
    fn number_refused_by_util_linux_is_refused() {
        for text in [
            "",
            " ",
            "-1",
            "-0",
            "+-5",
            "+ 5",
            "5 ",
            "5 K",
            "08",
            "0x",
            "0xg",
            "x",
            "5b",
            "5B",
            "5iB",
            "5Ki",
            "5KIB",
            "5KiBx",
            "1X",
            "1.5",
            "1.",
            ".5K",
            "0.5",
            "1.5B",
            "1.5.5K",
            "1,5K",
            "1e3",
            "1_0",
            "1.-5K",
            "1.+5K",
            "1. 5K",
            "8E",
            "10EB",
            "1ZB",
            "1YiB",
            "16E",
            "1KK",
            "٣",
            "5µ",
            "9223372036854775808",
            "18446744073709551616",
            "99999999999999999999999Y",
        ] {
            assert_eq!(parse(OsStr::new(text)), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in "[ +-]?[0-9a-fxK.µ]{0,40}[A-Zib]{0,3}") {
            let _ = parse(OsStr::new(&text));
        }
    }
}
