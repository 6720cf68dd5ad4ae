//! Comparison of two results of a bench, with the noise of both taken into account.
//!
//! The two runs are independent, so that samples cannot be paired. For each figure the ratio of
//! the new median to the old one gets a 95% percentile bootstrap interval: both sets of samples are
//! resampled [`RESAMPLES`] times. A figure is a regression, or an improvement, if the whole
//! interval is on one side of 1 and its end nearest to 1 is at least [`MARGIN`] away. With three
//! samples the interval reaches from the least to the greatest ratio of any two samples.
//!
//! The unit says which direction is good ([`better`]). A figure without a direction is listed as
//! changed. Figures of peers and of the machine are listed too, as they show whether the machine
//! has changed; they are no regressions of Extant.

use std::fmt;

use crate::metrics::{Better, better, median};
use crate::random::Random;
use crate::saved::{Figure, SavedReport};

/// Fewer samples on either side are not evaluated.
pub const SAMPLES_MIN: usize = 3;
/// Smallest difference that counts, of the ratio.
pub const MARGIN: f64 = 0.05;
/// Resamples of a bootstrap.
pub const RESAMPLES: usize = 4000;
const SEED: u64 = 20_260_101;

/// Words in names of figures that Extant has no part in.
const PEERS: [&str; 12] = [
    "before",
    "ceiling",
    "dd",
    "fallocate",
    "fio",
    "floor",
    "fuse2fs",
    "kernel",
    "libvirtd",
    "qemu-img",
    "qemu-nbd",
    "virsh",
];

/// The result for a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Worse, beyond the noise.
    Regression,
    /// Better, beyond the noise.
    Improvement,
    /// Another value beyond the noise, where neither direction is good.
    Changed,
    /// A peer or the machine has changed.
    PeerChanged,
    /// Level within the noise and the margin.
    Level,
    /// Fewer than [`SAMPLES_MIN`] samples.
    NotEvaluated,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Regression => "regression",
            Self::Improvement => "improvement",
            Self::Changed => "changed",
            Self::PeerChanged => "peer changed",
            Self::Level => "level",
            Self::NotEvaluated => "not evaluated",
        })
    }
}

/// A figure of both results.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// In the old result.
    pub old: &'a Figure,
    /// In the new one.
    pub new: &'a Figure,
    /// New median over the old one, where all samples are above 0.
    pub ratio: Option<f64>,
    /// Its interval.
    pub interval: Option<(f64, f64)>,
    /// The result.
    pub verdict: Verdict,
}

/// The results of one bench, compared.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// The old result.
    pub old: &'a SavedReport,
    /// The new one.
    pub new: &'a SavedReport,
    /// Conditions that differ.
    pub warnings: Vec<String>,
    /// Figures of both, the worst verdict first.
    pub changes: Vec<Change<'a>>,
    /// Goals with another verdict: name, and the two verdicts.
    pub goals: Vec<(&'a str, Option<bool>, Option<bool>)>,
    /// Figures that only one of them has.
    pub unmatched: usize,
}

impl<'a> Comparison<'a> {
    /// Compares all figures that both have. Runs with and without `--quick` measure other sizes:
    /// then no figure is evaluated.
    pub fn new(old: &'a SavedReport, new: &'a SavedReport) -> Self {
        let mut random = Random::new(SEED);
        let comparable = old.quick == new.quick;
        let mut changes = Vec::new();
        for figure in &new.figures {
            let same = |old: &&Figure| old.name == figure.name && old.unit == figure.unit;
            if let Some(old) = old.figures.iter().find(same) {
                let mut change = Change::new(old, figure, &mut random);
                if !comparable {
                    change.verdict = Verdict::NotEvaluated;
                }
                changes.push(change);
            }
        }
        let unmatched = old.figures.len() + new.figures.len() - 2 * changes.len();
        changes.sort_by_key(|change| change.verdict);
        let goals = new.goals.iter().filter_map(|goal| {
            let before = old.goals.iter().find(|old| old.name == goal.name)?;
            (before.met != goal.met).then_some((&*goal.name, before.met, goal.met))
        });
        Self {
            old,
            new,
            warnings: warnings(old, new),
            changes,
            goals: goals.collect(),
            unmatched,
        }
    }

    /// Figures with that verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Change<'a>> {
        let changes = self.changes.iter();
        changes.filter(move |change| change.verdict == verdict)
    }
}

impl<'a> Change<'a> {
    fn new(old: &'a Figure, new: &'a Figure, random: &mut Random) -> Self {
        let is_positive = |figure: &Figure| figure.range().0 > 0.0;
        let has_samples = old.samples.len().min(new.samples.len()) >= SAMPLES_MIN;
        let has_ratio = is_positive(old) && is_positive(new);
        let interval =
            (has_samples && has_ratio).then(|| interval(&old.samples, &new.samples, random));
        let direction = match interval {
            _ if !has_samples => None,
            Some((low, _)) if low >= 1.0 + MARGIN => Some(Better::Higher),
            Some((_, high)) if high <= 1.0 / (1.0 + MARGIN) => Some(Better::Lower),
            Some(_) => None,
            // No ratio to a zero: the ranges are apart.
            None if new.range().0 > old.range().1 => Some(Better::Higher),
            None if new.range().1 < old.range().0 => Some(Better::Lower),
            None => None,
        };
        let verdict = match direction {
            _ if !has_samples => Verdict::NotEvaluated,
            None => Verdict::Level,
            Some(_) if is_peer(&new.name) => Verdict::PeerChanged,
            Some(direction) => match better(&new.unit) {
                None => Verdict::Changed,
                Some(good) if good == direction => Verdict::Improvement,
                Some(_) => Verdict::Regression,
            },
        };
        Self {
            old,
            new,
            ratio: has_ratio.then(|| new.median() / old.median()),
            interval,
            verdict,
        }
    }
}

/// Whether a figure is of a peer or of the machine: its name has a word of them, and not our name.
fn is_peer(name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-';
    let mut words = name.split(|c| !is_part(c));
    !name.contains("extant") && words.any(|word| PEERS.contains(&word))
}

/// The bootstrap interval of the ratio of medians.
fn interval(old: &[f64], new: &[f64], random: &mut Random) -> (f64, f64) {
    let mut resampled = |samples: &[f64]| {
        let count = samples.len();
        let drawn = (0..count).map(|_| samples[(random.fraction() * count as f64) as usize]);
        median(&drawn.collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let mut ratios: Vec<_> = (0..RESAMPLES)
        .map(|_| resampled(new) / resampled(old))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    (ratios[tail], ratios[RESAMPLES - 1 - tail])
}

fn warnings(old: &SavedReport, new: &SavedReport) -> Vec<String> {
    let mut warnings = Vec::new();
    if old.quick != new.quick {
        let warning = "one of them is a run with --quick: figures are not evaluated";
        warnings.push(warning.to_owned());
    }
    if old.title != new.title {
        let warning = format!("other parameters: {:?}, now {:?}", old.title, new.title);
        warnings.push(warning);
    }
    let (before, now) = (old.machine.comparable_line(), new.machine.comparable_line());
    if before != now {
        warnings.push(format!("another machine: {before}; now {now}"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved;

    fn verdict(name: &str, unit: &str, old: &[f64], new: &[f64]) -> Verdict {
        let (old, new) = (
            Figure::of_samples(name, unit, old),
            Figure::of_samples(name, unit, new),
        );
        Change::new(&old, &new, &mut Random::new(1)).verdict
    }

    #[test]
    fn unit_decides_which_direction_is_a_regression() {
        let (slow, fast) = ([90.0, 100.0, 110.0], [200.0, 210.0, 190.0]);
        for (unit, down) in [
            ("MiB/s", Verdict::Regression),
            ("ms", Verdict::Improvement),
            ("assigns", Verdict::Changed),
        ] {
            assert_eq!(verdict("extant", unit, &fast, &slow), down, "{unit}");
        }
        assert_eq!(verdict("x", "ms", &slow, &fast), Verdict::Regression);
        assert_eq!(verdict("dd", "ms", &slow, &fast), Verdict::PeerChanged);
    }

    #[test]
    fn noise_and_small_differences_are_level() {
        let old = [90.0, 100.0, 110.0];
        // The medians differ by a fifth, and the ranges overlap.
        assert_eq!(
            verdict("x", "ms", &old, &[105.0, 120.0, 130.0]),
            Verdict::Level
        );
        // Far apart in terms of their noise, and only 3 % apart.
        let (old, new) = ([100.0, 100.1, 100.2], [103.0, 103.1, 103.2]);
        assert_eq!(verdict("x", "ms", &old, &new), Verdict::Level);
    }

    #[test]
    fn few_samples_are_not_evaluated() {
        assert_eq!(
            verdict("x", "ms", &[1.0, 1.0], &[9.0; 5]),
            Verdict::NotEvaluated
        );
    }

    #[test]
    fn zero_has_no_ratio_and_growth_from_it_is_a_regression() {
        assert_eq!(
            verdict("x", "extents", &[0.0; 3], &[5.0; 3]),
            Verdict::Regression
        );
        assert_eq!(
            verdict("x", "extents", &[0.0; 3], &[0.0; 3]),
            Verdict::Level
        );
    }

    #[test]
    fn equal_runs_differ_beyond_the_noise_in_few_cases() {
        let mut random = Random::new(7);
        let mut found = 0;
        for _ in 0..200 {
            let mut draw = || [0; 5].map(|_| 90.0 + 20.0 * random.fraction());
            let (old, new) = (draw(), draw());
            found += usize::from(verdict("x", "ms", &old, &new) != Verdict::Level);
        }
        assert!(found <= 6, "{found} of 200");
    }

    #[test]
    fn result_is_level_with_itself_and_a_quick_one_is_not_evaluated() {
        let saved = saved::read(&crate::results::directory().join("written.json")).unwrap();
        let same = Comparison::new(&saved[0], &saved[0]);
        assert!(same.warnings.is_empty() && same.goals.is_empty() && same.unmatched == 0);
        let level = [Verdict::Level, Verdict::NotEvaluated];
        assert!(same.changes.iter().all(|it| level.contains(&it.verdict)));
        let mut quick = saved[0].clone();
        quick.quick = true;
        let other = Comparison::new(&saved[0], &quick);
        assert_eq!(
            other.with(Verdict::NotEvaluated).count(),
            other.changes.len()
        );
        assert_eq!(other.warnings.len(), 1);
    }

    #[test]
    fn peers_are_known_by_whole_words() {
        for name in ["dd direct", "kernel, off", "ceiling: fio, new blocks"] {
            assert!(is_peer(name), "{name}");
        }
        for name in ["kernel, extant assign", "1 layer, create --in", "added"] {
            assert!(!is_peer(name), "{name}");
        }
    }
}
