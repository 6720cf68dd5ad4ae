//! Limits of a pool: overcommit, rate, jobs.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Preallocation};
use serde::{Deserialize, Serialize};

/// Limits of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum space of all volumes in bytes; `None`: the size of the file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// How much capacity may be promised for each byte that there is.
    pub overcommit: Overcommit,
    /// Bytes a second that all jobs in the background write together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<NonZeroU64>,
    /// Maximum number of running jobs; the others wait.
    pub jobs_max: NonZeroU32,
    /// Default preallocation of new volumes.
    pub preallocation: Preallocation,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            total_bytes: None,
            overcommit: Overcommit::NONE,
            rate: None,
            jobs_max: NonZeroU32::new(4).expect("not 0"),
            preallocation: Preallocation::Full,
        }
    }
}

/// Capacity promised for each byte of space, in hundredths: 1.0 promises the existing space only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Overcommit {
    percent: u32,
}

impl Overcommit {
    /// No overcommit.
    pub const NONE: Self = Self { percent: 100 };
    const PERCENT_MAX: f64 = 100_000.0;

    /// The capacity that may be promised on `space_bytes`.
    pub fn of(self, space_bytes: u64) -> u64 {
        let promised = u128::from(space_bytes) * u128::from(self.percent) / 100;
        promised.try_into().unwrap_or(u64::MAX)
    }
}

impl TryFrom<f64> for Overcommit {
    type Error = Error;

    fn try_from(ratio: f64) -> Result<Self, Error> {
        let percent = (ratio * 100.0).round();
        // Also false for NaN.
        if (1.0..=Self::PERCENT_MAX).contains(&percent) {
            return Ok(Self {
                percent: percent as u32,
            });
        }
        Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("an overcommit of {ratio} is not from 0.01 to 1000")))
    }
}

impl FromStr for Overcommit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.parse::<f64>() {
            Ok(ratio) => ratio.try_into(),
            Err(_) => Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("'{text}' is not a ratio such as 1.5"))),
        }
    }
}

impl From<Overcommit> for f64 {
    fn from(overcommit: Overcommit) -> Self {
        f64::from(overcommit.percent) / 100.0
    }
}

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&f64::from(*self).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overcommit_is_exact_in_hundredths_and_never_overflows() {
        let ratio: Overcommit = "1.15".parse().unwrap();
        assert_eq!(ratio.of(1000), 1150);
        assert_eq!("1000".parse::<Overcommit>().unwrap().of(u64::MAX), u64::MAX);
        assert_eq!(Overcommit::NONE.of(u64::MAX), u64::MAX);
        for text in ["0", "-1", "nan", "inf", "1001", "x", ""] {
            assert!(text.parse::<Overcommit>().is_err(), "{text}");
        }
    }

    #[test]
    fn limits_come_back_from_json_and_default_where_nothing_is_said() {
        let limits = Limits {
            overcommit: "1.5".parse().unwrap(),
            rate: NonZeroU64::new(1 << 20),
            ..Limits::default()
        };
        let text = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        assert_eq!(
            serde_json::from_str::<Limits>("{}").unwrap(),
            Limits::default()
        );
        assert!(serde_json::from_str::<Limits>("{\"totl_bytes\": 1}").is_err());
    }
}
