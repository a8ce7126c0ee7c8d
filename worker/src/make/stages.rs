//! Where the time goes, stage by stage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Busy time and runs of one stage.
#[derive(Debug, Default)]
pub struct Stage {
    nanoseconds: AtomicU64,
    runs: AtomicU64,
}

impl Stage {
    /// Runs `work` and counts it.
    #[expect(clippy::disallowed_methods, reason = "a stopwatch; nothing is decided by it")]
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let spent = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Seconds and runs so far.
    #[must_use]
    pub fn read(&self) -> (f64, u64) {
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        (seconds, self.runs.load(Ordering::Relaxed))
    }
}

/// The stages that cost CPU time.
#[derive(Debug, Default)]
pub struct Stages {
    /// Reading and parsing a record, rendering and tokenizing its text.
    pub record: Stage,
    /// Picture headers, sizes, expanding placeholders.
    pub size: Stage,
    /// Decoding, resizing, patchifying.
    pub fill: Stage,
    /// Hashing the finished sample.
    pub hash: Stage,
}

impl Stages {
    /// Name and stage, in flow order.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &Stage); 4] {
        [("record", &self.record), ("size", &self.size), ("fill", &self.fill), ("hash", &self.hash)]
    }
}
