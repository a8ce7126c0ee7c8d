//! The one place where a clock is read and a die is thrown; decisions take both as arguments.

use std::future::Future;
use std::sync::OnceLock;
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

/// Which process this is, among those of all hosts and containers: `host/process id/chance`, as a report's `process`.
pub(crate) fn process() -> String {
    // Containers of one host may have the same process ids; after a fork it is the id that differs.
    static CHANCE: OnceLock<u32> = OnceLock::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let host: String = host.chars().filter(plain).take(64).collect();
    format!("{host}/{}/{:08x}", std::process::id(), CHANCE.get_or_init(|| fastrand::u32(..)))
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
