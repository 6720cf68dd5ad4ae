//! Samples and their statistics.
//!
//! A metric is named by its subject and its unit; samples are appended in the order of the rounds.
//! Medians and the full spread are shown, never means: on a shared machine single samples may be
//! far off.

use anyhow::{Result, anyhow};
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Samples of one quantity.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name of the measured case.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The command as a user would type it.
    pub command: String,
    /// In the order of the rounds; at least one.
    pub samples: Vec<f64>,
}

impl Metric {
    /// The middle one, or the mean of the middle two.
    pub fn median(&self) -> f64 {
        median(&self.samples).expect("a metric has samples")
    }

    /// The least.
    pub fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The greatest.
    pub fn max(&self) -> f64 {
        self.samples
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
    }

    /// Greatest minus least, in percent of the median.
    pub fn spread_percent(&self) -> f64 {
        (self.max() - self.min()) / self.median() * 100.0
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut metric = serializer.serialize_struct("Metric", 7)?;
        metric.serialize_field("name", &self.name)?;
        metric.serialize_field("unit", self.unit)?;
        metric.serialize_field("command", &self.command)?;
        metric.serialize_field("samples", &self.samples)?;
        metric.serialize_field("median", &self.median())?;
        metric.serialize_field("min", &self.min())?;
        metric.serialize_field("max", &self.max())?;
        metric.end()
    }
}

/// All metrics of a run, in the order of their first samples.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Metrics {
    metrics: Vec<Metric>,
}

impl Metrics {
    /// Appends a sample. The command of the first one is kept.
    pub fn record(&mut self, name: &str, unit: &'static str, command: &str, value: f64) {
        match self.position(name, unit) {
            Some(at) => self.metrics[at].samples.push(value),
            None => self.metrics.push(Metric {
                name: name.to_owned(),
                unit,
                command: command.to_owned(),
                samples: vec![value],
            }),
        }
    }

    /// Takes those of other samples.
    pub fn extend(&mut self, other: Self) {
        self.metrics.extend(other.metrics);
    }

    /// The metric, if there are samples.
    pub fn get(&self, name: &str, unit: &str) -> Option<&Metric> {
        self.position(name, unit).map(|at| &self.metrics[at])
    }

    /// The metric, which the bench itself has recorded.
    pub fn of(&self, name: &str, unit: &str) -> Result<&Metric> {
        self.get(name, unit)
            .ok_or_else(|| anyhow!("no samples of {name} in {unit}"))
    }

    /// Each sample of `ours` divided by that of `peer` in the same round; their median.
    pub fn ratio(&self, ours: &str, peer: &str, unit: &str) -> Result<f64> {
        let (ours, peer) = (self.of(ours, unit)?, self.of(peer, unit)?);
        let ratios: Vec<_> = ours
            .samples
            .iter()
            .zip(&peer.samples)
            .map(|(ours, peer)| ours / peer)
            .collect();
        median(&ratios).ok_or_else(|| anyhow!("no samples"))
    }

    /// Each command once, with the names of the metrics it stands for.
    pub fn commands(&self) -> Vec<(String, &str)> {
        let mut commands: Vec<(Vec<&str>, &str)> = Vec::new();
        for Metric { name, command, .. } in &self.metrics {
            match commands.iter_mut().find(|(_, known)| known == command) {
                _ if command.is_empty() => {}
                Some((names, _)) if names.contains(&name.as_str()) => {}
                Some((names, _)) => names.push(name),
                None => commands.push((vec![name], command)),
            }
        }
        let joined = commands.into_iter();
        joined
            .map(|(names, command)| (names.join("; "), command))
            .collect()
    }

    fn position(&self, name: &str, unit: &str) -> Option<usize> {
        let mut metrics = self.metrics.iter();
        metrics.position(|metric| metric.name == name && metric.unit == unit)
    }
}

/// The middle of `samples`, in whatever order; `None` of nothing.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
}

/// The good direction of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better, as of rates.
    Higher,
    /// Less is better, as of times, extents and memory.
    Lower,
}

/// The good direction of `unit`; `None` where it has none: counts of requests, sizes.
pub fn better(unit: &str) -> Option<Better> {
    const LOWER: [&str; 14] = [
        "s",
        "ms",
        "us",
        "ns",
        "extents",
        "pieces",
        "memory",
        "waits",
        "score",
        "lost",
        "added",
        "failed",
        "difference",
        "B/group",
    ];
    let mut words = unit.split([' ', ',']);
    // Of the machine, and rates that hold a cost.
    if unit.contains("first touch") {
        None
    } else if words.clone().any(|word| {
        LOWER.contains(&word) || word.starts_with("extents/") || word.starts_with("waits/")
    }) {
        Some(Better::Lower)
    } else if words.any(|word| word.ends_with("/s") || word == "IOPS") {
        Some(Better::Higher)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    fn metrics(samples: &[(&str, f64)]) -> Metrics {
        let mut metrics = Metrics::default();
        for (name, value) in samples {
            metrics.record(name, "MiB/s", &format!("run {name}"), *value);
        }
        metrics
    }

    #[test]
    fn ratio_is_the_median_of_the_rounds_not_of_all() {
        // The second round was slow for both.
        let rounds = [
            ("a", 30.0),
            ("b", 10.0),
            ("a", 3.0),
            ("b", 1.0),
            ("a", 4.0),
            ("b", 2.0),
        ];
        assert_eq!(metrics(&rounds).ratio("a", "b", "MiB/s").unwrap(), 3.0);
        assert!(metrics(&rounds).ratio("a", "c", "MiB/s").is_err());
    }

    #[test]
    fn spread_is_all_samples() {
        let metrics = metrics(&[("a", 8.0), ("a", 12.0), ("a", 10.0)]);
        let metric = metrics.of("a", "MiB/s").unwrap();
        assert_eq!(
            (metric.min(), metric.median(), metric.max()),
            (8.0, 10.0, 12.0)
        );
        assert_eq!(metric.spread_percent(), 40.0);
    }

    #[test]
    fn commands_are_listed_once_with_all_their_names() {
        let mut metrics = metrics(&[("a", 8.0), ("b", 12.0), ("a", 10.0)]);
        metrics.record("a", "s", "run a", 1.0);
        metrics.record("c", "s", "run a", 1.0);
        metrics.record("d", "s", "", 1.0);
        let names = ["a; c", "b"].map(str::to_owned);
        let [both, b] = names;
        assert_eq!(metrics.commands(), [(both, "run a"), (b, "run b")]);
    }

    #[test]
    fn direction_follows_from_the_unit() {
        for (unit, direction) in [
            ("MiB/s", Some(Better::Higher)),
            ("k/s in total", Some(Better::Higher)),
            ("IOPS", Some(Better::Higher)),
            ("s", Some(Better::Lower)),
            ("slowest write, ms", Some(Better::Lower)),
            ("us CPU/request", Some(Better::Lower)),
            ("free extents/file", Some(Better::Lower)),
            ("MiB peak memory", Some(Better::Lower)),
            ("% lost", Some(Better::Lower)),
            ("MiB/s first touch of memory", None),
            ("KiB each", None),
            ("", None),
        ] {
            assert_eq!(better(unit), direction, "{unit}");
        }
    }

    #[test]
    fn json_of_a_figure_holds_samples_and_statistics() {
        let json = serde_json::to_value(metrics(&[("a", 1.0), ("a", 3.0)])).unwrap();
        assert_eq!(
            json,
            serde_json::json!([{"name": "a", "unit": "MiB/s", "command": "run a",
                "samples": [1.0, 3.0], "median": 2.0, "min": 1.0, "max": 3.0}])
        );
    }
}
