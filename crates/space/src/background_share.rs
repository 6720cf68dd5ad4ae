//! The share of a disk that background work may use while others use the disk.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// A share of a disk in hundredths of a percent, from 0.1 % to 100 %.
///
/// Its meaning is that of the background pace of `extant-provision`: while others use the disk,
/// requests are in flight for this share of the time, or transfer this share of the bytes that all
/// users transfer, whichever is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct BackgroundShare {
    basis_points: NonZeroU16,
}

impl BackgroundShare {
    /// 0.1 % in hundredths of a percent.
    const BASIS_POINTS_MIN: u32 = 10;
    /// 100 % in hundredths of a percent.
    const BASIS_POINTS_MAX: u32 = 10_000;

    /// A share in hundredths of a percent.
    ///
    /// # Errors
    /// `InvalidArgument` unless it is from 10 to 10 000.
    pub fn from_basis_points(basis_points: u32) -> Result<Self> {
        let is_valid = (Self::BASIS_POINTS_MIN..=Self::BASIS_POINTS_MAX).contains(&basis_points);
        match NonZeroU16::new(basis_points as u16).filter(|_| is_valid) {
            Some(basis_points) => Ok(Self { basis_points }),
            None => Err(out_of_range(format_args!(
                "{}%",
                f64::from(basis_points) / 100.0
            ))),
        }
    }

    /// Hundredths of a percent.
    pub fn basis_points(self) -> u16 {
        self.basis_points.get()
    }

    /// The percentage.
    pub fn percent(self) -> f64 {
        f64::from(self.basis_points()) / 100.0
    }

    /// From 0.001 to 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.basis_points()) / f64::from(Self::BASIS_POINTS_MAX)
    }
}

fn out_of_range(given: fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!(
        "a background share of {given} is not from 0.1% to 100%, in steps of 0.01%"
    ))
}

impl TryFrom<f64> for BackgroundShare {
    type Error = Error;

    fn try_from(percent: f64) -> Result<Self> {
        let basis_points = (percent * 100.0).round();
        let is_exact = (percent * 100.0 - basis_points).abs() < 1e-6;
        // Also false for what is no number.
        if is_exact && (0.0..=f64::from(u32::MAX)).contains(&basis_points) {
            Self::from_basis_points(basis_points as u32)
        } else {
            Err(out_of_range(format_args!("{percent}%")))
        }
    }
}

impl FromStr for BackgroundShare {
    type Err = Error;

    /// A percentage such as `10%`; the sign may be missing.
    fn from_str(text: &str) -> Result<Self> {
        match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
            Ok(percent) => percent.try_into(),
            Err(_) => Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("'{text}' is not a percentage such as 10%"))),
        }
    }
}

impl From<BackgroundShare> for f64 {
    fn from(share: BackgroundShare) -> Self {
        share.percent()
    }
}

impl fmt::Display for BackgroundShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_within_the_range_are_exact_in_hundredths() {
        for (text, basis_points) in [
            ("10%", 1000),
            ("10", 1000),
            ("0.1%", 10),
            ("2.25%", 225),
            ("33.33%", 3333),
            ("100%", 10_000),
        ] {
            let share: BackgroundShare = text.parse().unwrap();
            assert_eq!(share.basis_points(), basis_points, "{text}");
            assert_eq!(share.to_string().parse::<BackgroundShare>().unwrap(), share);
        }
    }

    #[test]
    fn percentages_outside_of_the_range_or_too_fine_are_refused() {
        for text in [
            "0", "0.09%", "100.01%", "-1%", "nan", "inf", "0.125%", "%", "x", "",
        ] {
            assert!(text.parse::<BackgroundShare>().is_err(), "{text}");
        }
        let error = "0.05%".parse::<BackgroundShare>().unwrap_err();
        assert!(error.to_string().contains("0.1% to 100%"), "{error}");
        for basis_points in [0, 9, 10_001, 65_546, u32::MAX] {
            assert!(BackgroundShare::from_basis_points(basis_points).is_err());
        }
    }
}
