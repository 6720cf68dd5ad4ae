//! Names of volumes and of pools.
//!
//! A name is one path component in UTF-8 that fits a line of a list: it cannot leave the pool, hide
//! a file or break a table. Other files in the directory are not volumes.

use std::fmt;
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Longest name on every file system of Linux that matters, bytes.
const BYTES_MAX: usize = 255;

/// Name of a volume: its file's name in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

/// Name of a defined pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PoolName(String);

/// Why `text` is no name.
fn fault(text: &str) -> Option<&'static str> {
    match text {
        "" => Some("it is empty"),
        _ if text.starts_with('.') => Some("it begins with a dot"),
        _ if text.contains('/') => Some("it has a slash"),
        _ if text.chars().any(char::is_control) => Some("it has a control character"),
        _ if text.len() > BYTES_MAX => Some("it is longer than 255 bytes"),
        _ => None,
    }
}

fn check(what: &str, text: &str) -> Result<()> {
    match fault(text) {
        None => Ok(()),
        Some(fault) => Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("{text:?} cannot name a {what}: {fault}"))),
    }
}

macro_rules! name {
    ($name:ident, $what:literal) => {
        impl $name {
            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                check($what, text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                check($what, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(VolumeName, "volume");
name!(PoolName, "pool");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_or_break_a_line_are_refused() {
        let long = "n".repeat(256);
        for text in [
            "",
            ".",
            "..",
            "../a",
            "a/b",
            "/a",
            "a\nb",
            "a\0",
            "\u{1b}[2J",
            ".extant",
            ".a",
            &long,
        ] {
            let error = text.parse::<VolumeName>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text:?}");
            assert_eq!(error.to_string().lines().count(), 1, "{text:?}");
        }
        for text in ["a", "vm 1.raw", "ä..b", "-x", &long[1..]] {
            assert_eq!(text.parse::<VolumeName>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn names_in_records_are_checked_as_well() {
        assert!(serde_json::from_str::<VolumeName>("\"../a\"").is_err());
        let name: VolumeName = serde_json::from_str("\"a\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"a\"");
    }
}
