//! Takes how each worker stands, gives which one is asked next. Pure.

use feedmill_protocol::placement::{self, WorkerLoad};
use feedmill_protocol::position::Range;
use tokio::time::Instant;

/// How a worker stands for one range at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can be asked.
    Ready,
    /// It has failed this range in this round.
    Tried,
    /// It asked for a pause, or rests after a failure.
    Resting(Instant),
    /// It cannot be reached.
    Down,
    /// It reads by another plan.
    Disagrees,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This one.
    Ask(usize),
    /// Nobody now; this is when the first pause ends, or None when the round is over for everyone.
    Wait(Option<Instant>),
    /// Every worker that can be reached has another plan.
    NoneAgrees {
        /// True when every worker could be reached.
        all_live: bool,
    },
}

/// Striping over the workers that live and agree, in their sorted order; one that was tried or rests is
/// passed over while there is another.
pub(crate) fn choose(range: Range, standings: &[Standing], now: Instant) -> Choice {
    let stripe: Vec<usize> = (0..standings.len())
        .filter(|index| !matches!(standings[*index], Standing::Down | Standing::Disagrees))
        .collect();
    if stripe.is_empty() {
        return if standings.contains(&Standing::Disagrees) {
            Choice::NoneAgrees { all_live: !standings.contains(&Standing::Down) }
        } else {
            Choice::Wait(None)
        };
    }
    let can_be_asked = |index: usize| match standings[index] {
        Standing::Resting(until) => until <= now,
        standing => standing == Standing::Ready,
    };
    let loads: Vec<WorkerLoad> = stripe
        .iter()
        .map(|index| WorkerLoad { capacity: 1, work_ahead: 0, preferred: can_be_asked(*index) })
        .collect();
    let number = range.start() / range.len();
    match placement::choose(number, range.len(), &loads) {
        Some(chosen) if loads[chosen].preferred => Choice::Ask(stripe[chosen]),
        _ if stripe.iter().any(|index| standings[*index] == Standing::Tried) => Choice::Wait(None),
        _ => Choice::Wait(
            stripe
                .iter()
                .filter_map(|index| match standings[*index] {
                    Standing::Resting(until) => Some(until),
                    _ => None,
                })
                .min(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn range(number: u64) -> Range {
        Range::new(number * 4, number * 4 + 4).unwrap()
    }

    #[test]
    fn the_first_choice_is_left_only_while_it_cannot_be_asked() {
        use Standing::{Disagrees, Down, Ready, Resting, Tried};
        let now = crate::chance::now();
        let later = now + Duration::from_secs(1);
        let latest = now + Duration::from_secs(2);
        for number in 0..50 {
            let all = [Ready; 3];
            let Choice::Ask(first) = choose(range(number), &all, now) else { panic!("all are ready") };
            for standing in [Tried, Resting(later), Down, Disagrees] {
                let mut standings = all;
                standings[first] = standing;
                let choice = choose(range(number), &standings, now);
                assert!(matches!(choice, Choice::Ask(other) if other != first), "{choice:?}");
            }
            let mut rested = all;
            rested[first] = Resting(now);
            assert_eq!(choose(range(number), &rested, now), Choice::Ask(first));
        }
        let cases = [
            (vec![], Choice::Wait(None)),
            (vec![Down, Down], Choice::Wait(None)),
            (vec![Tried, Tried], Choice::Wait(None)),
            (vec![Tried, Resting(later)], Choice::Wait(None)),
            (vec![Resting(latest), Resting(later), Disagrees], Choice::Wait(Some(later))),
            (vec![Disagrees, Disagrees], Choice::NoneAgrees { all_live: true }),
            (vec![Disagrees, Down], Choice::NoneAgrees { all_live: false }),
            (vec![Disagrees, Down, Tried], Choice::Wait(None)),
        ];
        for (standings, expected) in cases {
            assert_eq!(choose(range(7), &standings, now), expected, "{standings:?}");
        }
    }
}
