//! Counters of fetching, plain atomics that a program exports as it likes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::TransientKind;

/// Upper bounds of the latency buckets in seconds; a last bucket holds what took longer.
pub const LATENCY_BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What the stores did so far. All counters only grow, except `in_flight` and `throttle_limit`.
#[derive(Debug, Default)]
pub struct FetchStats {
    /// Successful whole gets and ranges.
    pub gets: AtomicU64,
    /// Bytes of successful gets and ranges.
    pub bytes: AtomicU64,
    /// Failed attempts by kind, in the order of [`TransientKind::ALL`].
    pub failed_attempts: [AtomicU64; TransientKind::ALL.len()],
    /// Objects reported missing.
    pub missing: AtomicU64,
    /// Requests the store refused.
    pub denied: AtomicU64,
    /// Requests waiting for a place.
    pub waiting: AtomicU64,
    /// Requests in flight now.
    pub in_flight: AtomicU64,
    /// Requests to S3 allowed in flight now.
    pub throttle_limit: AtomicU64,
    /// Successful attempts by duration, not cumulative; bounds in [`LATENCY_BOUNDS`].
    pub latency_buckets: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    /// Sum of those durations in microseconds.
    pub latency_micros: AtomicU64,
}

impl FetchStats {
    /// Failed attempts of one kind.
    #[must_use]
    pub fn failed(&self, kind: TransientKind) -> u64 {
        self.failed_attempts[kind as usize].load(Relaxed)
    }

    pub(crate) fn count_failed(&self, kind: TransientKind) {
        self.failed_attempts[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_success(&self, bytes: u64, took: Duration) {
        self.gets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        let seconds = took.as_secs_f64();
        let bucket =
            LATENCY_BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(LATENCY_BOUNDS.len());
        self.latency_buckets[bucket].fetch_add(1, Relaxed);
        self.latency_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// Adds one to a gauge for as long as it lives.
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl<'a> Gauge<'a> {
    pub(crate) fn raise(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_indexed_in_order() {
        for (at, kind) in TransientKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }

    #[test]
    fn durations_fall_into_their_buckets() {
        let stats = FetchStats::default();
        for millis in [5, 6, 40_000] {
            stats.count_success(10, Duration::from_millis(millis));
        }
        let counts: Vec<u64> = stats.latency_buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(stats.latency_micros.load(Relaxed), 40_011_000);
        assert_eq!(stats.bytes.load(Relaxed), 30);
    }
}
