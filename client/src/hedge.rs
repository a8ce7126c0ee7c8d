//! Takes how long ranges usually take, and what was asked, gives when a late range is asked of a second
//! worker too. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The median is that of so many of the newest times: enough for one, few enough to follow a change of the fleet within
/// seconds.
const KEPT: usize = 64;

/// The longest is that of so many: ranks in step wait for the last of them, so what is rare counts.
const KEPT_LONGER: usize = 256;

/// A median of fewer times than this says nothing.
const FEWEST: usize = 4;

/// Nothing that is younger is late, however fast the fleet is: below this the client's own scheduling shows.
const SHORTEST: Duration = Duration::from_millis(50);

/// The part of all requests that may be asked twice: the bound of the extra work.
const SHARE: f64 = 0.03;

/// As many second requests may be saved up for a bad moment.
const MOST_SAVED: f64 = 8.0;

/// How long ranges took from the request to the last byte.
#[derive(Clone, Debug, Default)]
pub struct ReadyTimes {
    newest: VecDeque<Duration>,
    median: Option<Duration>,
}

impl ReadyTimes {
    /// A range took this long.
    pub fn add(&mut self, time: Duration) {
        if self.newest.len() == KEPT_LONGER {
            self.newest.pop_front();
        }
        self.newest.push_back(time);
        if self.newest.len() >= FEWEST {
            let mut sorted: Vec<Duration> = self.newest.iter().rev().take(KEPT).copied().collect();
            sorted.sort_unstable();
            self.median = sorted.get(sorted.len() / 2).copied();
        }
    }

    /// The middle one of the newest; None before there are enough.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        self.median
    }

    /// The longest of a few more; None before there are enough.
    #[must_use]
    pub fn longest(&self) -> Option<Duration> {
        self.median.and(self.newest.iter().max().copied())
    }
}

/// When a range that was asked at `sent` is asked of a second worker: when it has taken half as long again as
/// usual, and not before it is nearly needed, since what is not needed yet costs nobody anything. A range
/// that the trainer waits for is needed now. None while nothing is known of usual times.
///
/// Waiting for twice as long gave up 4 % of large fleets with slow workers, at no less extra work
/// (docs/performance/placement.md).
#[must_use]
pub fn due(sent: Instant, needed_at: Instant, waited_for: bool, usual: Option<Duration>) -> Option<Instant> {
    let usual = usual?;
    let late = sent + (usual.saturating_mul(3) / 2).max(SHORTEST);
    if waited_for {
        return Some(late);
    }
    Some(late.max(needed_at.checked_sub(usual).unwrap_or(needed_at)))
}

/// Bounds the extra work: second requests are earned by first ones.
#[derive(Clone, Debug)]
pub struct Budget {
    saved: f64,
}

impl Default for Budget {
    /// One second request before any was earned: the first bad moment may come early.
    fn default() -> Self {
        Self { saved: 1.0 }
    }
}

impl Budget {
    /// A range is asked for the first time.
    pub fn asked(&mut self) {
        self.saved = (self.saved + SHARE).min(MOST_SAVED);
    }

    /// Takes one second request, if there is one.
    pub fn take(&mut self) -> bool {
        let there = self.saved >= 1.0;
        if there {
            self.saved -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn late_is_what_takes_half_as_long_again_as_usual_and_is_nearly_needed() {
        let sent = crate::chance::now();
        let usual = Some(100 * MILLI);
        let cases = [
            // Needed in, waited for, usual, asked again after.
            (0, false, usual, Some(150)),
            (0, true, usual, Some(150)),
            (1_000, false, usual, Some(900)),
            (1_000, true, usual, Some(150)),
            (250, false, usual, Some(150)),
            (0, true, Some(MILLI), Some(50)),
            (0, true, None, None),
        ];
        for (needed_in, waited_for, usual, expected) in cases {
            let at = due(sent, sent + needed_in * MILLI, waited_for, usual);
            assert_eq!(at.map(|at| (at - sent).as_millis()), expected, "{needed_in} {waited_for}");
        }
    }

    #[test]
    fn the_usual_time_is_that_of_the_newest() {
        let mut times = ReadyTimes::default();
        for _ in 0..3 {
            times.add(MILLI);
        }
        assert_eq!(times.median(), None, "too few");
        times.add(900 * MILLI);
        assert_eq!(times.median(), Some(MILLI), "one that was late is no rule");
        for _ in 0..KEPT {
            times.add(7 * MILLI);
        }
        assert_eq!(times.median(), Some(7 * MILLI));
        assert_eq!(times.longest(), Some(900 * MILLI), "one in a hundred makes ranks in step wait, too");
        for _ in 0..KEPT_LONGER {
            times.add(7 * MILLI);
        }
        assert_eq!(times.longest(), Some(7 * MILLI));
        assert_eq!(times.newest.len(), KEPT_LONGER);
    }

    proptest! {
        /// Whatever happens when, at most 3 % of what was asked is asked twice, but for the first one.
        #[test]
        fn extra_work_is_bounded(wishes in prop::collection::vec(any::<bool>(), 0..5000)) {
            let mut budget = Budget::default();
            let (mut asked, mut again) = (0u32, 0u32);
            for wish in wishes {
                budget.asked();
                asked += 1;
                if wish && budget.take() {
                    again += 1;
                }
                prop_assert!(f64::from(again) <= 1.0 + SHARE * f64::from(asked) + 1e-6);
            }
        }

        #[test]
        fn nothing_young_is_late(needed_in in 0u64..5_000, usual in 0u64..5_000, waited_for: bool) {
            let sent = crate::chance::now();
            let usual = Duration::from_millis(usual);
            let at = due(sent, sent + Duration::from_millis(needed_in), waited_for, Some(usual)).unwrap();
            prop_assert!(at >= sent + SHORTEST && at >= sent + usual * 3 / 2);
        }
    }
}
