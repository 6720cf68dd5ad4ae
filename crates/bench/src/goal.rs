//! Goals: the required value of a metric, and whether it was reached.
//!
//! Goals are declared by the benches and written for readers in the table of
//! docs/benchmarks.md; a test holds the two against each other. Goals are ratios or
//! absolute limits, of metrics from the same run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// On which side of the bound a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// The bound or more.
    AtLeast,
    /// The bound or less.
    AtMost,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AtLeast => "at least",
            Self::AtMost => "at most",
        })
    }
}

/// A goal.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Unique within the bench.
    pub name: &'static str,
    /// Which side.
    pub comparison: Comparison,
    /// The limit that is still good.
    pub bound: f64,
    /// Unit of the bound; empty for ratios.
    pub unit: &'static str,
}

impl Goal {
    /// `name` must be `bound` or more.
    pub const fn at_least(name: &'static str, bound: f64, unit: &'static str) -> Self {
        Self {
            name,
            comparison: Comparison::AtLeast,
            bound,
            unit,
        }
    }

    /// `name` must be `bound` or less.
    pub const fn at_most(name: &'static str, bound: f64, unit: &'static str) -> Self {
        Self {
            name,
            comparison: Comparison::AtMost,
            bound,
            unit,
        }
    }

    /// The bound as text, as in the document.
    pub fn bound(&self) -> String {
        let bound = format!("{} {} {}", self.comparison, self.bound, self.unit);
        bound.trim_end().to_owned()
    }

    /// Holds a value against the bound; `None` is a value that the bench failed to give.
    pub fn evaluate(&self, value: Option<&Value>) -> GoalResult {
        let (value, met, why) = match value {
            Some(Value::Measured(value)) => (Some(*value), Some(self.is_met(*value)), None),
            Some(Value::Meaningless(value, why)) => (Some(*value), None, Some(why.clone())),
            None => (None, Some(false), Some("not measured".to_owned())),
        };
        GoalResult {
            name: self.name,
            value,
            goal: self.bound,
            wanted: self.bound(),
            unit: self.unit,
            comparison: self.comparison,
            met,
            why,
        }
    }

    fn is_met(&self, value: f64) -> bool {
        match self.comparison {
            Comparison::AtLeast => value >= self.bound,
            Comparison::AtMost => value <= self.bound,
        }
    }
}

/// Measured value of a goal.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// To be evaluated.
    Measured(f64),
    /// Measured although the goal's premise does not hold, and why; not evaluated.
    Meaningless(f64, String),
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Measured(value)
    }
}

/// A goal and its result.
#[derive(Clone, Debug, Serialize)]
pub struct GoalResult {
    /// The goal's name.
    pub name: &'static str,
    /// The measured value.
    pub value: Option<f64>,
    /// The bound.
    pub goal: f64,
    /// The bound as text.
    #[serde(skip)]
    pub wanted: String,
    /// Unit of both.
    pub unit: &'static str,
    /// The good side of a bound.
    pub comparison: Comparison,
    /// `None`: not evaluated.
    pub met: Option<bool>,
    /// Why it was not evaluated or not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl GoalResult {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "not evaluated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_itself_is_good_on_either_side() {
        let (least, most) = (
            Goal::at_least("a", 1.2, ""),
            Goal::at_most("b", 64.0, "MiB"),
        );
        let met = |goal: &Goal, value: f64| goal.evaluate(Some(&value.into())).met;
        assert_eq!(met(&least, 1.2), Some(true));
        assert_eq!(met(&least, 1.19), Some(false));
        assert_eq!(met(&most, 64.0), Some(true));
        assert_eq!(met(&most, 64.1), Some(false));
        assert_eq!(met(&least, f64::NAN), Some(false));
    }

    #[test]
    fn value_that_is_missing_is_a_miss_and_a_meaningless_one_is_not() {
        let goal = Goal::at_least("a", 1.2, "");
        assert_eq!(goal.evaluate(None).word(), "MISSED");
        let value = Value::Meaningless(0.1, "memory stayed warm".to_owned());
        let result = goal.evaluate(Some(&value));
        assert_eq!((result.word(), result.value), ("not evaluated", Some(0.1)));
    }

    #[test]
    fn bounds_are_written_as_in_the_document() {
        assert_eq!(Goal::at_least("a", 1.2, "").bound(), "at least 1.2");
        assert_eq!(Goal::at_most("a", 64.0, "MiB").bound(), "at most 64 MiB");
    }

    #[test]
    fn json_of_a_goal_names_the_comparison() {
        let goal = Goal::at_most("a", 64.0, "MiB");
        let json = serde_json::to_value(goal.evaluate(Some(&12.5.into()))).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"name": "a", "value": 12.5, "goal": 64.0, "unit": "MiB",
                "comparison": "at-most", "met": true})
        );
    }
}
