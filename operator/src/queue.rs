//! Takes pipelines that may need work, gives the one whose turn it is: each at most once at a time, each with its own back-off.
//! Pure: time and chance are arguments.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::validate::Key;

/// The pause after a first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, to which chance adds up to a half: what is repaired elsewhere, such as an object in the way, is seen within 30 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    /// Wakes may not shorten the pause after a failure, or an object that always fails would be tried with every event.
    not_before: Option<Instant>,
    running: bool,
    /// It was changed while it was worked on.
    renewed: bool,
    failures: u32,
}

/// Which pipelines are due when.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
}

/// How work on a pipeline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Look again after this long, whatever happens.
    Again(Duration),
    /// It failed; try again after a pause.
    Failed,
    /// It is gone.
    Gone,
}

impl Outcome {
    /// The same, but not later than this.
    #[must_use]
    pub fn within(self, most: Duration) -> Self {
        match self {
            Self::Again(after) => Self::Again(after.min(most)),
            other => other,
        }
    }
}

impl Queue {
    /// Something happened to a pipeline.
    pub fn wake(&mut self, key: Key, at: Instant) {
        let entry = self.entries.entry(key).or_default();
        let at = entry.not_before.map_or(at, |not_before| not_before.max(at));
        entry.due = Some(entry.due.map_or(at, |due| due.min(at)));
    }

    /// The pipeline itself was changed: whatever failed before may be mended by that.
    pub fn renew(&mut self, key: Key, at: Instant) {
        let entry = self.entries.entry(key).or_default();
        (entry.not_before, entry.failures) = (None, 0);
        entry.renewed = entry.running;
        entry.due = Some(entry.due.map_or(at, |due| due.min(at)));
    }

    /// Takes the pipeline that has been due the longest.
    pub fn next(&mut self, now: Instant) -> Option<Key> {
        let due = |entry: &Entry| entry.due.filter(|due| !entry.running && *due <= now);
        let (key, _) = self
            .entries
            .iter()
            .filter_map(|(key, entry)| Some((key, due(entry)?)))
            .min_by(|(a_key, a), (b_key, b)| (a, a_key).cmp(&(b, b_key)))?;
        let key = key.clone();
        let entry = self.entries.get_mut(&key)?;
        (entry.due, entry.running) = (None, true);
        Some(key)
    }

    /// How often in a row work on a pipeline has failed, until now.
    #[must_use]
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries.get(key).map(|entry| entry.failures).unwrap_or_default()
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| !entry.running).filter_map(|entry| entry.due).min()
    }

    /// Work ended. `chance` is 0 up to 1 and spreads the pauses of many that failed together.
    pub fn done(&mut self, key: &Key, outcome: Outcome, now: Instant, chance: f64) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = false;
        match outcome {
            Outcome::Again(after) => {
                (entry.failures, entry.not_before, entry.renewed) = (0, None, false);
                // Those that were looked at together are not looked at together for ever. Never sooner: what is waited for would not be due.
                let at = now + after.mul_f64(1.0 + 0.2 * chance.clamp(0.0, 1.0));
                entry.due = Some(entry.due.map_or(at, |due| due.min(at)));
            }
            Outcome::Failed => {
                let pause = pause(entry.failures).mul_f64(1.0 + chance.clamp(0.0, 1.0) / 2.0);
                entry.failures = entry.failures.saturating_add(1);
                // Renewed meanwhile: that has not been tried yet.
                if std::mem::take(&mut entry.renewed) {
                    return;
                }
                (entry.due, entry.not_before) = (Some(now + pause), Some(now + pause));
            }
            // Woken meanwhile: a namesake may have been made.
            Outcome::Gone if entry.due.is_some() => (entry.failures, entry.not_before) = (0, None),
            Outcome::Gone => {
                self.entries.remove(key);
            }
        }
    }

    /// How many pipelines are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "n".into(), name: name.into() }
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn one_pipeline_is_worked_on_once_at_a_time() {
        let (mut queue, t) = (Queue::default(), start());
        queue.wake(key("a"), t);
        queue.wake(key("a"), t);
        assert_eq!(queue.next(t), Some(key("a")));
        queue.wake(key("a"), t);
        assert_eq!(queue.next(t), None);
        queue.done(&key("a"), Outcome::Again(Duration::from_secs(30)), t, 0.0);
        // What happened meanwhile is not lost.
        assert_eq!(queue.next(t), Some(key("a")));
        queue.done(&key("a"), Outcome::Again(Duration::from_secs(30)), t, 0.0);
        assert_eq!(queue.next(t), None);
        assert_eq!(queue.next_due(), Some(t + Duration::from_secs(30)));
    }

    #[test]
    fn one_that_fails_holds_up_no_other_and_is_not_tried_with_every_event() {
        let (mut queue, t) = (Queue::default(), start());
        queue.wake(key("bad"), t);
        assert_eq!(queue.next(t), Some(key("bad")));
        queue.done(&key("bad"), Outcome::Failed, t, 0.0);
        queue.wake(key("bad"), t);
        queue.wake(key("good"), t);
        assert_eq!(queue.next(t), Some(key("good")));
        assert_eq!(queue.next(t), None);
        let mut now = t;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let due = queue.next_due().unwrap();
            pauses.push(due.duration_since(now).as_secs());
            now = due;
            assert_eq!(queue.next(now), Some(key("bad")));
            queue.done(&key("bad"), Outcome::Failed, now, 0.0);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 20, 20, 20, 20]);
    }

    #[test]
    fn a_change_of_the_pipeline_itself_is_tried_at_once() {
        let (mut queue, t) = (Queue::default(), start());
        queue.wake(key("a"), t);
        queue.next(t);
        queue.done(&key("a"), Outcome::Failed, t, 0.0);
        assert_eq!(queue.next(t), None);
        queue.renew(key("a"), t);
        assert_eq!(queue.next(t), Some(key("a")));
        // Also one that comes while it is worked on.
        queue.renew(key("a"), t);
        queue.done(&key("a"), Outcome::Failed, t, 0.0);
        assert_eq!(queue.next(t), Some(key("a")));
        queue.done(&key("a"), Outcome::Failed, t, 0.0);
        assert_eq!(queue.next(t), None);
    }

    #[test]
    fn nobody_is_looked_at_sooner_than_asked_for_nor_all_at_once() {
        let (mut queue, t) = (Queue::default(), start());
        for chance in [0.0, 0.5, 1.0] {
            queue.wake(key("a"), t);
            queue.next(t);
            queue.done(&key("a"), Outcome::Again(Duration::from_secs(5)), t, chance);
            let due = t + Duration::from_millis(5000) + Duration::from_secs(1).mul_f64(chance);
            assert_eq!(queue.next_due(), Some(due), "{chance}");
        }
    }

    #[test]
    fn success_forgets_failures_and_gone_forgets_all() {
        let (mut queue, t) = (Queue::default(), start());
        queue.wake(key("a"), t);
        queue.next(t);
        queue.done(&key("a"), Outcome::Failed, t, 1.0);
        let later = t + Duration::from_millis(1500);
        assert_eq!(queue.next(t + Duration::from_millis(1499)), None);
        assert_eq!(queue.next(later), Some(key("a")));
        queue.done(&key("a"), Outcome::Again(Duration::from_secs(60)), later, 0.0);
        queue.wake(key("a"), later);
        assert_eq!(queue.next(later), Some(key("a")));
        queue.done(&key("a"), Outcome::Gone, later, 0.0);
        assert_eq!(queue.len(), 0);
    }
}
