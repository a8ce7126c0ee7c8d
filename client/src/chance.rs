//! The one place where a clock is read and a die is thrown; decisions take both as arguments.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// A timer that fires so much too late shows that this process itself stood still, and nothing about others.
const STOOD_STILL: Duration = Duration::from_millis(100);

/// Now, by the clock of the runtime.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A number in 0..1 that spreads retries.
pub(crate) fn jitter() -> f64 {
    fastrand::f64()
}

/// The output, if it comes within a limit; time in which this process itself stood still (stopped, or starved of
/// CPU) does not count, since the answer may have waited for us.
pub(crate) async fn unless_late<F: Future + Unpin>(limit: Duration, future: &mut F) -> Option<F::Output> {
    loop {
        let until = now() + limit;
        if let Ok(output) = tokio::time::timeout_at(until, &mut *future).await {
            return Some(output);
        }
        if now() < until + STOOD_STILL {
            return None;
        }
    }
}
