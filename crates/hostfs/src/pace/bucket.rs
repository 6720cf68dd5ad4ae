//! A token bucket: holds a rate over a tenth of a second.

use std::time::{Duration, Instant};

use super::rate::Rate;
use super::{Admission, REQUEST_MAX};

/// Tokens of this much time may be saved up.
const DEPTH: Duration = Duration::from_millis(100);
/// A request is at most so much of a second's bytes.
const REQUESTS_A_SECOND: u64 = 20;

pub(super) struct Bucket {
    rate: Rate,
    /// Bytes that may start; below zero after a request larger than the tokens there were.
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            tokens: 1.0,
            filled: now,
        }
    }

    pub(super) fn request_max(&self) -> u32 {
        (self.rate.bytes_a_second() / REQUESTS_A_SECOND).min(REQUEST_MAX) as u32
    }

    /// Takes `bytes`, or says when to ask again. One request may overdraw the bucket: the
    /// next waits until the debt is paid.
    pub(super) fn take(&mut self, now: Instant, bytes: u32) -> Admission {
        let rate = self.rate.bytes_a_second() as f64;
        let elapsed = now.saturating_duration_since(self.filled);
        self.filled = now;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * rate).min(DEPTH.as_secs_f64() * rate);
        if self.tokens > 0.0 {
            self.tokens -= f64::from(bytes);
            return Admission::Now(bytes);
        }
        let debt = Duration::from_secs_f64((-self.tokens / rate).min(60.0));
        Admission::Later(debt.max(Duration::from_micros(100)))
    }
}
