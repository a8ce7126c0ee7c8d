//! The one place where a clock is read; everything that decides or computes takes times as arguments.

use tokio::time::Instant;

/// Now, by the clock of the runtime.
pub fn now() -> Instant {
    Instant::now()
}
