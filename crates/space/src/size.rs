//! Sizes as people write them: `10G`, `10GiB`, `10GB`, `512k`, `1.5T`, `4096`.
//!
//! As in `fallocate(1)` and `qemu-img(1)`: a letter alone or with `iB` is a
//! power of 1024, with `B` a power of 1000; case does not matter; a number
//! alone, or with `B`, counts bytes.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

const LETTERS: &str = "KMGTPE";

/// A number of bytes, parsed from and shown as a size with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSizeError {
    /// Not digits with an optional fraction.
    #[error("'{0}' is not a number")]
    NotANumber(String),
    /// Below zero.
    #[error("'{0}' is negative")]
    Negative(String),
    /// A suffix that is no unit.
    #[error(
        "'{0}' is not a unit; use K, M, G, T, P, E (1024), KiB ..., Ki ... (1024) or KB ... (1000)"
    )]
    UnknownUnit(String),
    /// A part of a byte.
    #[error("'{0}' is not a whole number of bytes")]
    NotWhole(String),
    /// 2^64 bytes or more.
    #[error("'{0}' does not fit 64 bits")]
    TooLarge(String),
}

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.starts_with('-') {
            return Err(ParseSizeError::Negative(text.to_owned()));
        }
        let digits = text.strip_prefix('+').unwrap_or(text);
        let hex = digits
            .strip_prefix("0x")
            .or_else(|| digits.strip_prefix("0X"));
        if let Some(hex) = hex {
            // A suffix would be ambiguous: E and B are digits here.
            return u64::from_str_radix(hex, 16)
                .map(Self)
                .map_err(|_| ParseSizeError::NotANumber(text.to_owned()));
        }
        let unit_at = digits
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(digits.len());
        let (number, unit) = digits.split_at(unit_at);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') {
            return Err(ParseSizeError::NotANumber(text.to_owned()));
        }
        let scale =
            unit_scale(unit.trim()).ok_or_else(|| ParseSizeError::UnknownUnit(unit.to_owned()))?;
        let too_large = || ParseSizeError::TooLarge(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = u128::from(whole) * u128::from(scale);
        if fraction.bytes().any(|digit| digit != b'0') {
            bytes += fraction_of(fraction, scale)
                .ok_or_else(|| ParseSizeError::NotWhole(text.to_owned()))?;
        }
        u64::try_from(bytes).map(Self).map_err(|_| too_large())
    }
}

/// `0.fraction * scale`, exactly or truncated to a byte; `None` for a fraction of a byte.
fn fraction_of(fraction: &str, scale: u64) -> Option<u128> {
    if scale == 1 {
        return None;
    }
    // 18 digits are more than any unit can resolve.
    let digits = &fraction[..fraction.len().min(18)];
    let numerator: u128 = digits.parse().ok()?;
    Some(numerator * u128::from(scale) / 10u128.pow(digits.len() as u32))
}

fn unit_scale(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(1);
    }
    let power = LETTERS.find(unit.chars().next()?)? as u32 + 1;
    match &unit[1..] {
        "" | "I" | "IB" => Some(1 << (10 * power)),
        "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

impl fmt::Display for ByteSize {
    /// With a binary unit: exact if divisible, otherwise with two decimals. A value that only
    /// rounds to a whole number has a tilde.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let power = (bytes.max(1).ilog2() / 10) as usize;
        if power == 0 {
            return f.pad(&format!("{bytes} B"));
        }
        let unit = 1u64 << (10 * power);
        let letter = &LETTERS[power - 1..power];
        let text = if bytes.is_multiple_of(unit) {
            format!("{} {letter}iB", bytes / unit)
        } else {
            let rounded = format!("{:.2}", bytes as f64 / unit as f64);
            match rounded.strip_suffix(".00") {
                Some(whole) => format!("~{whole} {letter}iB"),
                None => format!("{rounded} {letter}iB"),
            }
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<u64, ParseSizeError> {
        text.parse::<ByteSize>().map(|size| size.0)
    }

    #[test]
    fn suffixes_are_those_of_fallocate_and_qemu_img() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("1b", 1),
            ("512k", 512 << 10),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("10gib", 10 << 30),
            ("10Gi", 10 << 30),
            ("1ki", 1 << 10),
            ("10GB", 10_000_000_000),
            ("3 MiB", 3 << 20),
            ("1.5K", 1536),
            ("0.1G", 107_374_182),
            ("2.0", 2),
            ("0x1000", 4096),
            ("15EiB", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_with_the_reason() {
        use ParseSizeError::*;
        assert!(matches!(parse("-1"), Err(Negative(_))));
        assert!(matches!(parse(""), Err(NotANumber(_))));
        assert!(matches!(parse("G"), Err(NotANumber(_))));
        assert!(matches!(parse("1.2.3G"), Err(NotANumber(_))));
        assert!(matches!(parse("10X"), Err(UnknownUnit(_))));
        assert!(matches!(parse("10Gib2"), Err(UnknownUnit(_))));
        assert!(matches!(parse("1e9"), Err(UnknownUnit(_))));
        assert!(matches!(parse("10ZiB"), Err(UnknownUnit(_))));
        assert!(matches!(parse("1.5"), Err(NotWhole(_))));
        assert!(matches!(parse("16E"), Err(TooLarge(_))));
        assert!(matches!(parse("99999999999999999999"), Err(TooLarge(_))));
        assert!(matches!(parse("1µ"), Err(UnknownUnit(_))));
    }

    #[test]
    fn display_is_exact_where_the_unit_divides_and_has_a_tilde_where_it_seems_so() {
        assert_eq!(ByteSize((32 << 20) - 882).to_string(), "~32 MiB");
        assert_eq!(ByteSize((32 << 20) + 1).to_string(), "~32 MiB");
        assert_eq!(ByteSize(1 << 30).to_string(), "1 GiB");
        assert_eq!(ByteSize(1536 << 20).to_string(), "1.50 GiB");
        assert_eq!(ByteSize(0).to_string(), "0 B");
        assert_eq!(ByteSize(1023).to_string(), "1023 B");
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".{0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn bytes_parse_back(bytes: u64) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
        }
    }
}
