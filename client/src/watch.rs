//! Takes when a worker was used and heard, gives when it is asked for its load, whether it is silent, and
//! whether its connections are idle. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// When what happened between this process and one worker.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// A range looked at it as somebody to be asked.
    wanted: Option<Instant>,
    /// A request ended, or one was sent.
    used: Option<Instant>,
    heard: Option<Instant>,
    outstanding: usize,
    /// A question went over the control connection.
    spoken: Option<Instant>,
    asked_load: Option<Instant>,
    asking_load: bool,
}

impl Watch {
    /// A range may be asked of it. True when none was for long: somebody should look after it now.
    pub(crate) fn wanted(&mut self, now: Instant, idle: Duration) -> bool {
        let news = self.wanted.is_none_or(|wanted| now.saturating_duration_since(wanted) >= idle / 2);
        self.wanted = Some(now);
        news
    }

    /// A request goes out.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.outstanding += 1;
        self.used = Some(now);
    }

    /// A request has ended, somehow.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.used = Some(now);
    }

    /// Anything came from it.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    pub(crate) fn was_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// True when nothing came since, although something is outstanding.
    pub(crate) fn is_silent_since(&self, then: Instant) -> bool {
        self.outstanding > 0 && self.heard.is_none_or(|heard| heard < then)
    }

    /// When it is asked for its load next; None while nobody wants it, or it is being asked.
    pub(crate) fn load_due(&self, now: Instant, every: Duration, idle: Duration) -> Option<Instant> {
        let wanted = self.wanted.is_some_and(|wanted| now.saturating_duration_since(wanted) < idle);
        if !wanted || self.asking_load {
            return None;
        }
        Some(self.asked_load.map_or(now, |asked| asked + every))
    }

    /// The load is asked for. False when it is already.
    pub(crate) fn asks_load(&mut self, now: Instant) -> bool {
        if self.asking_load {
            return false;
        }
        self.asking_load = true;
        self.asked_load = Some(now);
        true
    }

    /// It was answered, or there will be no answer.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.asking_load = false;
        self.asked_load = Some(now);
    }

    /// True when a question asked now would say something new: nothing came for a while, and none is open.
    pub(crate) fn is_in_doubt(&self, now: Instant, quiet: Duration) -> bool {
        !self.asking_load && self.heard.is_none_or(|heard| now.saturating_duration_since(heard) >= quiet)
    }

    /// A question goes over the control connection.
    pub(crate) fn spoken(&mut self, now: Instant) {
        self.spoken = Some(now);
    }

    /// Which connections were used once, and not for so long; the one for batches is kept while ranges may be asked.
    pub(crate) fn idle(&self, now: Instant, idle: Duration) -> Idle {
        let long_ago = |then: Instant| now.saturating_duration_since(then) >= idle;
        Idle {
            batches: self.outstanding == 0
                && self.used.is_some_and(long_ago)
                && self.wanted.is_none_or(long_ago),
            questions: self.spoken.is_some_and(long_ago),
        }
    }
}

/// Connections that carry nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) batches: bool,
    pub(crate) questions: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const IDLE: Duration = Duration::from_secs(60);

    #[test]
    fn a_worker_is_asked_for_its_load_while_it_is_wanted() {
        let mut watch = Watch::default();
        let now = crate::chance::now();
        assert_eq!(watch.load_due(now, SECOND, IDLE), None, "nobody wants it");
        assert!(watch.wanted(now, IDLE));
        assert!(!watch.wanted(now + SECOND, IDLE), "known");
        assert_eq!(watch.load_due(now, SECOND, IDLE), Some(now), "at once");
        assert!(watch.asks_load(now));
        assert!(!watch.asks_load(now), "one at a time");
        assert_eq!(watch.load_due(now, SECOND, IDLE), None);
        watch.answered(now + SECOND / 2);
        assert_eq!(watch.load_due(now, SECOND, IDLE), Some(now + 3 * SECOND / 2));
        assert_eq!(watch.load_due(now + 2 * IDLE, SECOND, IDLE), None, "not wanted any more");
        assert!(watch.wanted(now + IDLE, IDLE), "wanted again");
    }

    #[test]
    fn silent_is_who_owes_something_and_says_nothing() {
        let mut watch = Watch::default();
        let now = crate::chance::now();
        assert!(!watch.is_silent_since(now), "nothing is outstanding");
        assert!(watch.is_in_doubt(now, SECOND));
        watch.asked(now);
        assert!(watch.is_silent_since(now), "never heard");
        watch.heard(now + SECOND);
        assert!(!watch.is_silent_since(now));
        assert!(watch.is_silent_since(now + 2 * SECOND));
        assert!(!watch.is_in_doubt(now + SECOND, SECOND));
        assert!(watch.is_in_doubt(now + 2 * SECOND, SECOND));
        watch.ended(now + 2 * SECOND);
        assert!(!watch.is_silent_since(now + 2 * SECOND));
    }

    #[test]
    fn connections_are_idle_when_nobody_wants_or_uses_them() {
        let mut watch = Watch::default();
        let now = crate::chance::now();
        let idle = |watch: &Watch, after: Duration| {
            let Idle { batches, questions } = watch.idle(now + after, IDLE);
            (batches, questions)
        };
        assert_eq!(idle(&watch, IDLE), (false, false), "never opened");
        watch.asked(now);
        watch.spoken(now);
        assert_eq!(idle(&watch, 2 * IDLE), (false, true), "a request is outstanding");
        watch.ended(now + SECOND);
        assert_eq!(idle(&watch, IDLE), (false, true));
        assert_eq!(idle(&watch, IDLE + SECOND), (true, true));
        watch.wanted(now + IDLE, IDLE);
        watch.spoken(now + IDLE);
        assert_eq!(idle(&watch, IDLE + SECOND), (false, false));
    }
}
