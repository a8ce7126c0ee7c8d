//! The one place where a clock is read and a die is thrown; decisions take both as arguments.

use tokio::time::Instant;

/// Now, by the clock of the runtime.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A number in 0..1 that spreads retries.
pub(crate) fn jitter() -> f64 {
    fastrand::f64()
}
