//! Contents and times of progress lines.
//!
//! A line when a phase begins, and about ten a second. The rate is that of the last seconds of the
//! phase, so that it shows when a disk slows down, and excludes bytes done before the operation
//! began.
//!
//! Format: docs/formats/progress.md.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Phase, Progress};
use serde::Serialize;

/// This many lines a second are enough for a program that draws its own bar.
const INTERVAL: Duration = Duration::from_millis(100);
/// The rate is that of so long.
const RATE_SPAN: Duration = Duration::from_secs(3);
/// A rate over a shorter time is meaningless.
const RATE_SPAN_MIN: Duration = Duration::from_millis(90);

/// Composes the lines of one operation.
pub struct Lines {
    started: Instant,
    /// The last line.
    told: Option<(Instant, Phase)>,
    /// Positions in this phase with their times; the oldest first.
    marks: VecDeque<(Instant, u64)>,
}

#[derive(Serialize)]
struct ProgressLine {
    event: &'static str,
    #[serde(flatten)]
    progress: Progress,
    rate_bytes_per_second: Option<u64>,
    eta_seconds: Option<f64>,
    elapsed_seconds: f64,
}

#[derive(Serialize)]
struct EndLine {
    event: &'static str,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<ErrorKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    elapsed_seconds: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Done,
    Failed,
    Cancelled,
}

impl Lines {
    /// Of an operation that begins `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            told: None,
            marks: VecDeque::new(),
        }
    }

    /// The line for `progress`, if it is time for one.
    pub fn update(&mut self, now: Instant, progress: Progress) -> Option<String> {
        let is_new = self.told.is_none_or(|(_, phase)| phase != progress.phase);
        let is_due = self
            .told
            .is_none_or(|(at, _)| now.saturating_duration_since(at) >= INTERVAL);
        if !is_new && !is_due {
            return None;
        }
        self.told = Some((now, progress.phase));
        self.mark(now, progress.done_bytes, is_new);
        let rate = self.rate();
        let left = progress.total_bytes.saturating_sub(progress.done_bytes);
        let eta = rate
            .filter(|&rate| rate > 0.0)
            .map(|rate| left as f64 / rate);
        Some(json_line(&ProgressLine {
            event: "progress",
            progress,
            rate_bytes_per_second: rate.map(|rate| rate as u64),
            eta_seconds: eta.filter(|_| progress.total_bytes > 0).map(tenths),
            elapsed_seconds: self.elapsed(now),
        }))
    }

    /// The last line.
    pub fn end(&self, now: Instant, error: Option<&Error>) -> String {
        json_line(&EndLine {
            event: "end",
            outcome: match error.map(Error::kind) {
                None => Outcome::Done,
                Some(ErrorKind::Cancelled) => Outcome::Cancelled,
                Some(_) => Outcome::Failed,
            },
            kind: error.map(Error::kind),
            message: error.map(Error::to_string),
            elapsed_seconds: self.elapsed(now),
        })
    }

    fn mark(&mut self, now: Instant, done_bytes: u64, is_new: bool) {
        let goes_back = self
            .marks
            .back()
            .is_some_and(|&(_, last)| last > done_bytes);
        if is_new || goes_back {
            self.marks.clear();
        }
        self.marks.push_back((now, done_bytes));
        // One sample from before the span is kept, for the rate over the whole span.
        while self.marks.len() > 2 && now.saturating_duration_since(self.marks[1].0) >= RATE_SPAN {
            self.marks.pop_front();
        }
    }

    /// Bytes a second.
    fn rate(&self) -> Option<f64> {
        let (first, last) = (self.marks.front()?, self.marks.back()?);
        let span = last.0.saturating_duration_since(first.0);
        (span >= RATE_SPAN_MIN).then(|| (last.1 - first.1) as f64 / span.as_secs_f64())
    }

    fn elapsed(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.started).as_secs_f64()
    }
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

fn json_line(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("plain words and numbers");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(phase: Phase, done: u64, total: u64) -> Progress {
        Progress {
            phase,
            done_bytes: done * MIB,
            total_bytes: total * MIB,
        }
    }

    #[track_caller]
    fn parsed(line: Option<String>) -> Value {
        let line = line.expect("a line");
        assert!(
            line.ends_with('\n') && line.lines().count() == 1,
            "{line:?}"
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn line_comes_with_each_phase_and_then_ten_times_a_second() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut lines = Lines::new(start);
        let mut told = |millis, progress| lines.update(after(millis), progress).is_some();
        assert!(told(0, at(Phase::Allocate, 0, 10)));
        assert!(!told(50, at(Phase::Allocate, 5, 10)));
        assert!(told(60, at(Phase::Write, 0, 10)));
        assert!(!told(159, at(Phase::Write, 1, 10)));
        assert!(told(160, at(Phase::Write, 1, 10)));
    }

    #[test]
    fn rate_is_that_of_the_last_seconds_of_the_phase() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let mut tell = |millis, progress| {
            parsed(lines.update(start + Duration::from_millis(millis), progress))
        };
        // Data that existed before the start is no progress.
        let first = tell(0, at(Phase::Write, 500, 1000));
        assert_eq!(first["rate_bytes_per_second"], Value::Null);
        assert_eq!(first["eta_seconds"], Value::Null);
        let second = tell(1000, at(Phase::Write, 600, 1000));
        assert_eq!(second["rate_bytes_per_second"], 100 * MIB);
        assert_eq!(second["eta_seconds"], 4.0);
        for millis in [2000, 3000, 4000] {
            tell(millis, at(Phase::Write, 600, 1000));
        }
        // For more than three seconds nothing moves.
        let stuck = tell(5000, at(Phase::Write, 600, 1000));
        assert_eq!(stuck["rate_bytes_per_second"], 0);
        assert_eq!(stuck["eta_seconds"], Value::Null);
        let other = tell(6000, at(Phase::Sync, 1000, 1000));
        assert_eq!(other["rate_bytes_per_second"], Value::Null);
    }

    #[test]
    fn progress_that_goes_back_resets_its_rate() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let mut tell = |millis, done| {
            let now = start + Duration::from_millis(millis);
            parsed(lines.update(now, at(Phase::Copy, done, 100)))
        };
        tell(0, 50);
        assert_eq!(tell(1000, 10)["rate_bytes_per_second"], Value::Null);
        assert_eq!(tell(2000, 20)["rate_bytes_per_second"], 10 * MIB);
    }

    #[test]
    fn end_says_how() {
        let start = Instant::now();
        let lines = Lines::new(start);
        let end =
            |error: Option<&Error>| parsed(Some(lines.end(start + Duration::from_secs(2), error)));
        assert_eq!(
            end(None),
            json!({"event": "end", "outcome": "done", "elapsed_seconds": 2.0})
        );
        let cancelled = end(Some(&Error::new(ErrorKind::Cancelled)));
        assert_eq!(cancelled["outcome"], "cancelled");
        let failed = end(Some(&Error::new(ErrorKind::NoSpace).at("/a\nb")));
        assert_eq!(failed["outcome"], "failed");
        assert_eq!(failed["kind"], "no-space");
        assert!(failed["message"].as_str().unwrap().contains("/a"));
    }
}
