//! Takes the number of failures and a random number, gives the pause before the next attempt.

use std::time::Duration;

/// Full jitter: `share` (0 to 1, random) of `base` doubled with each failure, at most of `cap`. Clients that failed together must not
/// come back together, so any pause down to zero is possible.
pub(crate) fn pause(base: Duration, cap: Duration, failures: u32, share: f64) -> Duration {
    let doublings = failures.saturating_sub(1);
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    base.saturating_mul(factor).min(cap).mul_f64(share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let millis = |failures, share| {
            let (base, cap) = (Duration::from_millis(100), Duration::from_millis(1000));
            pause(base, cap, failures, share).as_millis()
        };
        assert_eq!([1, 2, 3, 4, 5].map(|failures| millis(failures, 1.0)), [100, 200, 400, 800, 1000]);
        assert_eq!(
            [millis(3, 0.5), millis(3, 0.0), millis(u32::MAX, 1.0), millis(0, 1.0)],
            [200, 0, 1000, 100]
        );
    }
}
