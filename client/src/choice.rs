//! Takes how each worker stands and how much it has ahead, gives which one is asked next. Pure.

use feedmill_protocol::placement::{self, WorkerLoad};
use feedmill_protocol::position::Range;
use tokio::time::Instant;

/// How a worker stands for one range at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be asked.
    Ready,
    /// It has failed this range in this round, or is being asked for it.
    Tried,
    /// It asked for a pause, or rests after a failure.
    Resting(Instant),
    /// It takes nothing new.
    Draining,
    /// It cannot be reached.
    Down,
    /// It reads by another plan.
    Disagrees,
}

/// One worker that this rank asks, as it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How it stands.
    pub standing: Standing,
    /// How much it can do, in a unit that the others have too.
    pub capacity: u32,
    /// Samples asked of it and not yet answered, as far as is known.
    pub work_ahead: u64,
    /// How many ranks ask it; at least 1.
    pub ranks: u64,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
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

/// Where a range stands on the circle of a rank that is one of `ranks` over `workers` workers.
#[must_use]
pub fn point(range: Range, ranks: u64, workers: usize) -> u64 {
    placement::point(range.start() / range.len(), ranks, workers)
}

/// Striping over the workers that live and agree, in their sorted order; one that was tried or rests is
/// passed over while there is another, and one that has much more ahead than others too.
#[must_use]
pub fn choose(point: u64, samples: u64, seen: &[Seen], now: Instant) -> Choice {
    let standings = || seen.iter().map(|seen| seen.standing);
    let stripe: Vec<usize> = (0..seen.len())
        .filter(|index| !matches!(seen[*index].standing, Standing::Down | Standing::Disagrees))
        .collect();
    if stripe.is_empty() {
        return if standings().any(|standing| standing == Standing::Disagrees) {
            Choice::NoneAgrees { all_live: !standings().any(|standing| standing == Standing::Down) }
        } else {
            Choice::Wait(None)
        };
    }
    let can_be_asked = |standing: Standing| match standing {
        Standing::Resting(until) => until <= now,
        standing => standing == Standing::Ready,
    };
    let loads: Vec<WorkerLoad> = stripe
        .iter()
        .map(|index| {
            let Seen { standing, capacity, work_ahead, ranks } = seen[*index];
            WorkerLoad {
                // What a worker can do is divided between the ranks that ask it.
                share: (u64::from(capacity) << 24) / ranks.max(1),
                capacity,
                work_ahead,
                preferred: can_be_asked(standing),
            }
        })
        .collect();
    match placement::choose(point, samples, &loads) {
        Some(chosen) if loads[chosen].preferred => Choice::Ask(stripe[chosen]),
        _ if stripe.iter().any(|index| seen[*index].standing == Standing::Tried) => Choice::Wait(None),
        _ => Choice::Wait(
            standings()
                .filter_map(|standing| match standing {
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

    fn chosen(number: u64, standings: &[Standing], now: Instant) -> Choice {
        let seen: Vec<Seen> = standings
            .iter()
            .map(|standing| Seen { standing: *standing, capacity: 1, work_ahead: 0, ranks: 1 })
            .collect();
        let range = Range::new(number * 4, number * 4 + 4).unwrap();
        choose(point(range, 1, seen.len()), 4, &seen, now)
    }

    #[test]
    fn the_first_choice_is_left_only_while_it_cannot_be_asked() {
        use Standing::{Disagrees, Down, Draining, Ready, Resting, Tried};
        let now = crate::chance::now();
        let later = now + Duration::from_secs(1);
        let latest = now + Duration::from_secs(2);
        for number in 0..50 {
            let all = [Ready; 3];
            let Choice::Ask(first) = chosen(number, &all, now) else { panic!("all are ready") };
            for standing in [Tried, Resting(later), Draining, Down, Disagrees] {
                let mut standings = all;
                standings[first] = standing;
                let choice = chosen(number, &standings, now);
                assert!(matches!(choice, Choice::Ask(other) if other != first), "{choice:?}");
            }
            let mut rested = all;
            rested[first] = Resting(now);
            assert_eq!(chosen(number, &rested, now), Choice::Ask(first));
        }
        let cases = [
            (vec![], Choice::Wait(None)),
            (vec![Down, Down], Choice::Wait(None)),
            (vec![Draining, Down], Choice::Wait(None)),
            (vec![Draining, Resting(later)], Choice::Wait(Some(later))),
            (vec![Tried, Tried], Choice::Wait(None)),
            (vec![Tried, Resting(later)], Choice::Wait(None)),
            (vec![Resting(latest), Resting(later), Disagrees], Choice::Wait(Some(later))),
            (vec![Disagrees, Disagrees], Choice::NoneAgrees { all_live: true }),
            (vec![Disagrees, Down], Choice::NoneAgrees { all_live: false }),
            (vec![Disagrees, Down, Tried], Choice::Wait(None)),
        ];
        for (standings, expected) in cases {
            assert_eq!(chosen(7, &standings, now), expected, "{standings:?}");
        }
    }

    #[test]
    fn a_worker_with_much_more_ahead_is_left_to_others() {
        let now = crate::chance::now();
        let mut seen = [Seen { standing: Standing::Ready, capacity: 8, work_ahead: 4, ranks: 1 }; 4];
        let Choice::Ask(first) = choose(77, 4, &seen, now) else { panic!("all are ready") };
        seen[first].work_ahead = 17;
        let choice = choose(77, 4, &seen, now);
        assert!(matches!(choice, Choice::Ask(other) if other != first), "{choice:?}");
        // As much work is nothing to a faster one.
        seen[first].capacity = 32;
        assert_eq!(choose(0, 4, &seen, now), Choice::Ask(0));
    }
}
