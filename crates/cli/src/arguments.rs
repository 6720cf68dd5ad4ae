//! Values that several commands take.

use std::num::NonZeroU64;
use std::str::FromStr;

use clap::Args;
use extant_hostfs::Pace;
use extant_space::{BackgroundShare, ByteSize, Error, ErrorKind};

use crate::progress::ProgressArgs;

/// Options for the use of the disk.
#[derive(Args, Clone, Debug)]
pub struct PaceArgs {
    /// Write at most this much a second, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// Yield to all other users of the disk; with PERCENT, use about that share of the disk beside
    /// them (0.1% to 100%)
    #[arg(long, value_name = "PERCENT%", require_equals = true, value_parser = parse_share)]
    pub background: Option<Option<BackgroundShare>>,
}

impl PaceArgs {
    /// The pace asked for.
    pub fn pace(&self) -> Pace {
        Pace::new(self.background, self.rate)
    }
}

/// Progress and results of a long operation, and their destinations.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// Print more about how it was done
    #[arg(long, short)]
    pub verbose: bool,

    /// Print nothing but errors
    #[arg(long, short, conflicts_with_all = ["json", "verbose"])]
    pub quiet: bool,
}

/// Bytes a second, with or without `/s`.
pub fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = ByteSize::from_str(text.strip_suffix("/s").unwrap_or(text))
        .map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes.0).ok_or_else(|| "a rate of 0 would never end".to_owned())
}

/// The share of a disk that background work may use.
pub fn parse_share(text: &str) -> Result<BackgroundShare, String> {
    BackgroundShare::from_str(text).map_err(|error| error.to_string())
}

/// A size with a unit.
pub fn parse_size(text: &str) -> Result<ByteSize, String> {
    ByteSize::from_str(text).map_err(|error| error.to_string())
}

/// A size, or a change of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This size.
    To(u64),
    /// So much more.
    By(u64),
    /// So much less.
    Less(u64),
}

/// A size, +SIZE or -SIZE.
pub fn parse_change(text: &str) -> Result<Change, String> {
    let size = |text: &str| {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            parse_size(text).map(|size| size.0)
        } else {
            Err("a size, +SIZE or -SIZE is wanted".to_owned())
        }
    };
    match text.as_bytes().first() {
        Some(b'+') => size(&text[1..]).map(Change::By),
        Some(b'-') => size(&text[1..]).map(Change::Less),
        _ => size(text).map(Change::To),
    }
}

impl Change {
    /// The size that comes of it, from the present one.
    pub fn of(self, size: u64) -> Result<u64, Error> {
        let changed = match self {
            Self::To(size) => Some(size),
            Self::By(more) => size.checked_add(more),
            Self::Less(less) => size.checked_sub(less),
        };
        changed.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument).detail(format!(
                "it has {}, and cannot be changed by that",
                ByteSize(size)
            ))
        })
    }
}

/// Permissions, in octal as for chmod(1).
pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("'{text}' is not a file mode (0 to 7777, octal)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_takes_sizes_with_and_without_a_second() {
        assert_eq!(parse_rate("1KB/s").unwrap().get(), 1000);
        assert_eq!(parse_rate("1M").unwrap().get(), 1 << 20);
        assert!(parse_rate("0").is_err());
    }

    #[test]
    fn mode_is_octal() {
        assert_eq!(parse_mode("0640"), Ok(0o640));
        assert!(parse_mode("9").is_err());
        assert!(parse_mode("17777").is_err());
    }
}
