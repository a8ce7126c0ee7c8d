//! Takes how requests to a worker end, gives whether it is asked, left alone for a while, or probed. Pure: time and chance are arguments.

use tokio::time::Instant;

use crate::choice::Standing;
use crate::settings::Timeouts;

/// Whether one worker is well.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Failures since the last batch.
    pub(crate) failures: u32,
    state: HealthState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HealthState {
    #[default]
    Well,
    Resting {
        until: Instant,
    },
    Down {
        probe_at: Instant,
        probing: bool,
    },
}

impl Health {
    pub(crate) fn standing(&self) -> Standing {
        match self.state {
            HealthState::Well => Standing::Ready,
            HealthState::Resting { until } => Standing::Resting(until),
            HealthState::Down { .. } => Standing::Down,
        }
    }

    pub(crate) fn rest(&mut self, until: Instant) {
        self.state = match self.state {
            HealthState::Well => HealthState::Resting { until },
            HealthState::Resting { until: other } => HealthState::Resting { until: until.max(other) },
            down => down,
        };
    }

    /// True when it was not down before.
    pub(crate) fn down(&mut self, now: Instant, timeouts: &Timeouts, jitter: f64) -> bool {
        let news = !matches!(self.state, HealthState::Down { .. });
        if news {
            self.probe_later(now, timeouts, jitter);
        }
        news
    }

    pub(crate) fn probe_later(&mut self, now: Instant, timeouts: &Timeouts, jitter: f64) {
        self.failures = self.failures.saturating_add(1);
        self.state =
            HealthState::Down { probe_at: now + timeouts.backoff(self.failures, jitter), probing: false };
    }

    /// True when it is time for a probe, which the caller then makes.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> bool {
        match self.state {
            HealthState::Down { probe_at, probing: false } if probe_at <= now => {
                self.state = HealthState::Down { probe_at, probing: true };
                true
            }
            _ => false,
        }
    }

    /// True when it was down.
    pub(crate) fn revived(&mut self) -> bool {
        let was_down = matches!(self.state, HealthState::Down { .. });
        if was_down {
            self.state = HealthState::Well;
        }
        was_down
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::chance;

    #[test]
    fn a_worker_that_is_down_is_probed_once_at_a_time_and_ever_more_seldom() {
        let timeouts = Timeouts::default();
        let mut health = Health::default();
        let mut now = chance::now();
        assert!(!health.begin_probe(now));
        assert!(health.down(now, &timeouts, 1.0));
        assert!(!health.down(now, &timeouts, 1.0), "known already");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let HealthState::Down { probe_at, .. } = health.state else { panic!("{health:?}") };
            pauses.push((probe_at - now).as_millis());
            assert!(!health.begin_probe(now));
            now = probe_at;
            assert!(health.begin_probe(now));
            assert!(!health.begin_probe(now), "one is under way");
            health.probe_later(now, &timeouts, 1.0);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        health.rest(now);
        assert_eq!(health.standing(), Standing::Down);
        health.revived();
        assert_eq!(health.standing(), Standing::Ready);
    }

    #[test]
    fn the_longer_pause_counts() {
        let mut health = Health::default();
        let now = chance::now();
        let (soon, late) = (now + Duration::from_secs(1), now + Duration::from_secs(5));
        health.rest(late);
        health.rest(soon);
        assert_eq!(health.standing(), Standing::Resting(late));
        health.revived();
        assert_eq!(health.standing(), Standing::Resting(late));
    }
}
