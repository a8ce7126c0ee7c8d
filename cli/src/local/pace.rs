//! Takes how long each rank waited in each step, gives what the training lost.
//!
//! Ranks make steps together: a step is as late as its latest rank, so a step's wait is the longest of its ranks' waits. The first step
//! waits for the start (manifests, first pictures) and is told apart.

use std::collections::BTreeMap;
use std::time::Duration;

/// So many steps after a mark are looked at.
pub const STEPS_AFTER_MARK: u64 = 10;

/// What steps lost, as far as they have been made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    /// Of each step that is being made: the longest wait, and all waits.
    waits: BTreeMap<u64, (Duration, Duration)>,
    /// Whole steps made.
    pub steps: u64,
    /// The first step's wait.
    pub first_wait: Duration,
    /// The first step without its wait.
    pub first_rest: Duration,
    /// All later steps, waits included.
    pub steady: Duration,
    /// All later steps' waits.
    pub steady_wait: Duration,
    /// All later steps' waits of all ranks together.
    pub rank_waits: Duration,
    /// The longest wait of a later step, and which.
    pub longest: Option<(u64, Duration)>,
    /// A step at which something was done to the workers.
    pub mark: Option<u64>,
    /// The waits of that step and the next [`STEPS_AFTER_MARK`].
    pub wait_after_mark: Duration,
}

impl Pace {
    /// A rank has waited so long in a step.
    pub fn waited(&mut self, step: u64, wait: Duration) {
        let (longest, all) = self.waits.entry(step).or_default();
        *longest = wait.max(*longest);
        *all += wait;
    }

    /// All ranks have made the step, which took `whole`.
    pub fn made(&mut self, step: u64, whole: Duration) {
        let (longest, all) = self.waits.remove(&step).unwrap_or_default();
        let wait = longest.min(whole);
        self.steps += 1;
        if step == 0 {
            self.first_wait = wait;
            self.first_rest = whole - wait;
            return;
        }
        self.steady += whole;
        self.steady_wait += wait;
        self.rank_waits += all;
        if self.longest.is_none_or(|(_, longest)| wait > longest) {
            self.longest = Some((step, wait));
        }
        if self.mark.is_some_and(|mark| (mark..=mark + STEPS_AFTER_MARK).contains(&step)) {
            self.wait_after_mark += wait;
        }
    }

    /// Time waiting / (waiting + training), after the first step; 0 when there was only one.
    pub fn wait_ratio(&self) -> f64 {
        if self.steady.is_zero() {
            return 0.0;
        }
        self.steady_wait.as_secs_f64() / self.steady.as_secs_f64()
    }

    /// The same for one of `ranks` by itself, without what it waited for the others.
    pub fn rank_wait_ratio(&self, ranks: u64) -> f64 {
        if self.steady.is_zero() {
            return 0.0;
        }
        self.rank_waits.as_secs_f64() / ranks.max(1) as f64 / self.steady.as_secs_f64()
    }

    /// The time in which samples were used: everything but the first wait.
    pub fn running(&self) -> Duration {
        self.first_rest + self.steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_step_waits_as_long_as_its_latest_rank_and_the_first_is_apart() {
        let mut pace = Pace::default();
        for (step, waits, whole) in [(0, [900, 1000], 1100), (1, [0, 10], 110), (2, [30, 0], 130)] {
            for wait in waits {
                pace.waited(step, ms(wait));
            }
            // A rank that is already in the next step does not change this one.
            pace.waited(step + 1, ms(1));
            pace.made(step, ms(whole));
        }
        assert_eq!(pace.first_wait, ms(1000));
        assert_eq!(pace.steady_wait, ms(40));
        assert_eq!(pace.longest, Some((2, ms(30))));
        assert_eq!(pace.running(), ms(100 + 240));
        assert!((pace.wait_ratio() - 40.0 / 240.0).abs() < 1e-9);
        // One millisecond of a rank that was early, in each step.
        assert!((pace.rank_wait_ratio(2) - 42.0 / 2.0 / 240.0).abs() < 1e-9);
    }

    #[test]
    fn one_step_has_no_ratio_and_a_wait_is_never_longer_than_its_step() {
        let mut pace = Pace::default();
        pace.waited(0, ms(20));
        pace.made(0, ms(10));
        assert_eq!((pace.wait_ratio(), pace.first_wait, pace.first_rest), (0.0, ms(10), ms(0)));
    }

    #[test]
    fn waits_after_a_mark_are_added_up() {
        let mut pace = Pace { mark: Some(2), ..Pace::default() };
        for step in 0..20 {
            pace.waited(step, ms(1));
            pace.made(step, ms(10));
        }
        assert_eq!(pace.wait_after_mark, ms(11));
    }
}
