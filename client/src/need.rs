//! Takes a rank's pace, gives when a range that it asks for is needed. Pure.

use std::time::Duration;

/// The pace that is assumed before the first batch has been used: only the order of needs matters then, and that those that are asked for
/// later are not needed sooner. So it is quick.
pub(crate) const FIRST_PACE: Duration = Duration::from_millis(2);

/// What lies between the needs of two ranges that are asked for one after the other, at least: needs are told in milliseconds, and the way to a
/// worker takes longer now and then.
pub(crate) const LEAST_BETWEEN: Duration = Duration::from_millis(2);

/// A need is told later than the pace says by so many times at most, and [`MOST_LATER`]: after a long pause, as for an evaluation, or first
/// steps that were slow, needs are soon again what they are.
const MOST_TIMES: u32 = 4;
/// See [`MOST_TIMES`].
const MOST_LATER: Duration = Duration::from_millis(100);

/// How long until the range `ahead` places behind the next one is needed, where that one is needed in `until_next`, a batch takes the trainer
/// `pace` (None before the first) and the range that was asked for before is needed in `last`.
///
/// Not sooner than that, as far as that is sensible: workers make first what is needed first, and a batch that later ones have overtaken is
/// waited for with those in hand. The pace may turn out to be quicker than was thought.
#[must_use]
pub fn needed_in(
    pace: Option<Duration>,
    until_next: Duration,
    ahead: usize,
    last: Option<Duration>,
) -> Duration {
    let pace = pace.unwrap_or(FIRST_PACE);
    let steps = u32::try_from(ahead).unwrap_or(u32::MAX);
    let need = until_next.saturating_add(pace.saturating_mul(steps));
    let Some(last) = last else { return need };
    // Not by a whole pace: it comes back to when they are really needed.
    let after_last = last.saturating_add((pace / 2).min(LEAST_BETWEEN));
    need.max(after_last.min(need.saturating_mul(MOST_TIMES).saturating_add(MOST_LATER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Paces of batches, in milliseconds, one after another; gives when each range, asked for five places ahead, is needed after the begin.
    fn needed(paces: impl IntoIterator<Item = u32>) -> Vec<(Duration, Duration)> {
        let (mut now, mut last, mut pace) = (Duration::ZERO, None::<Duration>, None::<Duration>);
        let mut needs = Vec::new();
        for own in paces {
            now += own * MILLI;
            pace = Some(pace.map_or(own * MILLI, |pace| pace.mul_f64(0.8) + (own * MILLI).mul_f64(0.2)));
            let need = needed_in(pace, Duration::ZERO, 5, last.map(|last| last.saturating_sub(now)));
            last = Some(now + need);
            needs.push((now, now + need));
        }
        needs
    }

    /// The pace that was thought of first was slow. What was asked for by it was needed later than what was asked for after it, workers made
    /// that first, and a rank waited for 0.6 s with a dozen batches in hand. A pace that becomes quicker does the same.
    #[test]
    fn later_ranges_overtook_the_first_ones() {
        let needs = needed([20; 20].into_iter().chain([8; 100]));
        assert!(needs.windows(2).all(|two| two[1].1 >= two[0].1 + LEAST_BETWEEN), "{needs:?}");
        // By then they are asked for as they are needed.
        let (now, last) = needs[119];
        assert!((39..=41).contains(&(last - now).as_millis()), "{:?}", last - now);
    }

    /// Ten minutes of an evaluation made the next range needed in an hour, and all later ones after it, for hours.
    #[test]
    fn one_long_pause_is_forgotten_with_the_pace_that_it_made() {
        let needs = needed([100; 50].into_iter().chain([600_000]).chain([100; 60]));
        let (now, last) = needs[110];
        assert!(last - now < Duration::from_secs(3), "{:?}", last - now);
        let first_slow = needed([10_000].into_iter().chain([100; 60]));
        let (now, last) = first_slow[60];
        assert!(last - now < Duration::from_secs(3), "{:?}", last - now);
    }

    #[test]
    fn nothing_is_known_at_first_and_huge_numbers_stay_numbers() {
        assert_eq!(needed_in(None, Duration::ZERO, 3, None), 3 * FIRST_PACE);
        assert_eq!(needed_in(Some(MILLI), Duration::ZERO, 0, None), Duration::ZERO);
        let longest = needed_in(Some(Duration::MAX), Duration::MAX, usize::MAX, Some(Duration::MAX));
        assert_eq!(longest, Duration::MAX);
    }
}
