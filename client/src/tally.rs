//! Takes what happens in a rank's queue and when, gives its pace, its waiting and its report.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feedmill_protocol::report::{RankReport, UNKNOWN_PLAN};
use tokio::time::Instant;

use crate::chance;
use crate::error::lock;
use crate::fleet::ExpectedPlan;
use crate::need::{FIRST_PACE, needed_in};

/// The share of the newest measurement in the average: about the last ten batches count.
const NEWEST: f64 = 0.2;

/// The quickest step is looked for among so many: enough for one in which this rank or another that reports was the last, and few enough
/// that a training that has changed shows within seconds.
const LAST_STEPS: usize = 3;

/// How a rank's queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullerStats {
    /// Batches in hand.
    pub ready: u32,
    /// Ranges asked for and not yet there.
    pub outstanding: u32,
    /// Batches it wants in hand or outstanding.
    pub target: u32,
    /// How long it has been waiting for the batch it needs now; zero when it does not wait.
    pub waiting: Duration,
    /// Waiting since the start, the present one included.
    pub waited: Duration,
    /// Time of the whole steps made since the start, waiting included.
    pub stepped: Duration,
    /// Whole steps made since the start.
    pub steps: u64,
    /// Batches handed out since the start.
    pub batches: u64,
    /// The trainer's own time per batch, waiting left out: a moving average.
    pub pace: Duration,
    /// The trainer's own time in those whole steps, waiting left out.
    pub computed: Duration,
    /// Samples that all ranks together have used in those whole steps.
    pub trained: u64,
    /// The least of the trainer's own time in one of the last few whole steps, and the samples of that step.
    pub quickest: Option<(Duration, u64)>,
    /// Samples consumed by whole global batches, those before the start included.
    pub consumed: u64,
    /// Bytes of a batch: a moving average; 0 before the first one.
    pub batch_bytes: u64,
}

/// The state machine: time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By whole steps.
    consumed: u64,
    target: u32,
    ready: u32,
    /// Of each range of the window, in order, whether it is there.
    window: VecDeque<Arc<AtomicBool>>,
    outstanding: u32,
    pace: Option<Duration>,
    /// When the last range that was asked for is needed.
    last_needed: Option<Instant>,
    waiting_since: Option<Instant>,
    waited: Duration,
    handed_out_at: Option<Instant>,
    batches: u64,
    step_began: Option<Instant>,
    stepped: Duration,
    steps: u64,
    /// The trainer's own time in the step that is being made.
    computing: Duration,
    computed: Duration,
    trained: u64,
    batch_bytes: Option<f64>,
    /// The trainer's own time and the samples of the last whole steps.
    last_steps: VecDeque<(Duration, u64)>,
}

impl Tally {
    pub(crate) fn new(consumed: u64, target: u32) -> Self {
        Self { consumed, target, ..Self::default() }
    }

    /// The window has another size.
    pub(crate) fn aims_at(&mut self, target: u32) {
        self.target = target;
    }

    /// The trainer's own time per batch, once there is one.
    pub(crate) fn pace(&self) -> Option<Duration> {
        self.pace
    }

    /// Bytes of a batch, once one has come.
    pub(crate) fn batch_bytes(&self) -> Option<u64> {
        self.batch_bytes.map(|bytes| bytes as u64)
    }

    /// A batch with so many bytes came.
    pub(crate) fn weighed(&mut self, bytes: usize) {
        let bytes = bytes as f64;
        self.batch_bytes =
            Some(self.batch_bytes.map_or(bytes, |mean| mean * (1.0 - NEWEST) + bytes * NEWEST));
    }

    /// The trainer asks for its next batch, so it has used the one before: `consumed` samples by whole steps
    /// now. A step is whole when its last batch has been used, not when it was handed out.
    pub(crate) fn asked(&mut self, now: Instant, consumed: u64) {
        if self.waiting_since.is_some() {
            return;
        }
        self.waiting_since = Some(now);
        let Some(handed_out) = self.handed_out_at.take() else {
            self.step_began.get_or_insert(now);
            return;
        };
        let own = now - handed_out;
        self.pace = Some(match self.pace {
            Some(pace) => pace.mul_f64(1.0 - NEWEST) + own.mul_f64(NEWEST),
            None => own,
        });
        self.computing += own;
        if consumed > self.consumed {
            let (computed, trained) = (std::mem::take(&mut self.computing), consumed - self.consumed);
            self.trained += trained;
            self.computed += computed;
            if self.last_steps.len() == LAST_STEPS {
                self.last_steps.pop_front();
            }
            self.last_steps.push_back((computed, trained));
            self.consumed = consumed;
            self.steps += 1;
            if let Some(began) = self.step_began.replace(now) {
                self.stepped += now - began;
            }
        }
    }

    /// It got one, or learnt that there are no more.
    pub(crate) fn answered(&mut self, now: Instant, with_batch: bool) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += now - since;
        }
        if with_batch {
            self.ready = self.ready.saturating_sub(1);
            self.batches += 1;
            self.handed_out_at = Some(now);
        }
    }

    /// What is wanted after all others, or before them.
    pub(crate) fn wants(&mut self, there: &Arc<AtomicBool>, first: bool) {
        match first {
            true => self.window.push_front(Arc::clone(there)),
            false => self.window.push_back(Arc::clone(there)),
        }
    }

    /// The first range of the window left it.
    pub(crate) fn left(&mut self) {
        self.window.pop_front();
    }

    /// The window is another one.
    pub(crate) fn left_all(&mut self) {
        self.window.clear();
        self.last_needed = None;
    }

    /// Batches that the trainer can take one after another: those behind one that is missing help nobody yet.
    fn ready_in_order(&self) -> u32 {
        let there = self.window.iter().take_while(|there| there.load(Ordering::Relaxed));
        u32::try_from(there.count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn requested(&mut self) {
        self.outstanding += 1;
    }

    /// A range that was requested is there, or has failed for good.
    pub(crate) fn arrived(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.ready += 1;
    }

    /// It goes on elsewhere: from a step's begin, with `consumed` samples by whole steps. A step that was begun
    /// is none.
    pub(crate) fn turned(&mut self, consumed: u64) {
        self.consumed = consumed;
        self.handed_out_at = None;
        self.step_began = None;
        self.computing = Duration::ZERO;
    }

    /// A range that was requested is not wanted any more.
    pub(crate) fn taken_back(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// A range that had failed for good is taken back.
    pub(crate) fn withdrawn(&mut self) {
        self.ready = self.ready.saturating_sub(1);
    }

    /// How long until the range `ahead` places behind the next one is needed, which is asked for now.
    pub(crate) fn need(&mut self, ahead: usize, now: Instant) -> Duration {
        let until_next = match (self.waiting_since, self.handed_out_at) {
            (None, Some(handed_out)) => self.pace.unwrap_or(FIRST_PACE).saturating_sub(now - handed_out),
            _ => Duration::ZERO,
        };
        let follows = ahead > 0;
        let last = self.last_needed.filter(|_| follows).map(|last| last.saturating_duration_since(now));
        let need = needed_in(self.pace, until_next, ahead, last);
        if follows {
            self.last_needed = now.checked_add(need);
        }
        need
    }

    pub(crate) fn stats(&self, now: Instant) -> PullerStats {
        let waiting = self.waiting_since.map_or(Duration::ZERO, |since| now - since);
        PullerStats {
            ready: self.ready,
            outstanding: self.outstanding,
            target: self.target,
            waiting,
            waited: self.waited + waiting,
            stepped: self.stepped,
            steps: self.steps,
            batches: self.batches,
            pace: self.pace.unwrap_or_default(),
            computed: self.computed,
            trained: self.trained,
            quickest: self
                .last_steps
                .iter()
                .copied()
                .min_by(|a, b| a.0.div_f64(a.1 as f64).cmp(&b.0.div_f64(b.1 as f64))),
            consumed: self.consumed,
            batch_bytes: self.batch_bytes().unwrap_or_default(),
        }
    }
}

/// Who reports.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) run: String,
    pub(crate) stream: String,
    pub(crate) plan: ExpectedPlan,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// As a report has it; empty where others may be the same rank.
    pub(crate) process: String,
}

#[derive(Debug)]
struct Shared {
    tally: Tally,
    /// What earlier reports have said already.
    waited_ms: u64,
    stepped_ms: u64,
    sequence: u64,
}

/// Reads a puller's state from beside it, also while it waits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Meter {
    reporter: Arc<Reporter>,
    shared: Arc<Mutex<Shared>>,
}

impl Meter {
    pub(crate) fn new(reporter: Reporter, tally: Tally) -> Self {
        Self {
            reporter: Arc::new(reporter),
            shared: Arc::new(Mutex::new(Shared { tally, waited_ms: 0, stepped_ms: 0, sequence: 0 })),
        }
    }

    pub(crate) fn tally<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut lock(&self.shared).tally)
    }

    /// How the queue stands now.
    #[must_use]
    pub fn stats(&self) -> PullerStats {
        lock(&self.shared).tally.stats(chance::now())
    }

    /// Reports name this process from now on; those of clones that were made before do not.
    pub(crate) fn is_process(&mut self, process: String) {
        self.reporter = Arc::new(Reporter { process, ..Reporter::clone(&self.reporter) });
    }

    /// The next report: waiting and step time since the last one.
    #[must_use]
    pub fn report(&self) -> RankReport {
        self.report_at(chance::now())
    }

    fn report_at(&self, now: Instant) -> RankReport {
        let mut shared = lock(&self.shared);
        let stats = shared.tally.stats(now);
        // Differences of rounded totals: no millisecond is lost between reports.
        let since = |told: &mut u64, total: Duration| {
            let total = total.as_millis() as u64;
            total.saturating_sub(std::mem::replace(told, total))
        };
        let wait_ms = since(&mut shared.waited_ms, stats.waited);
        let step_ms = since(&mut shared.stepped_ms, stats.stepped);
        shared.sequence += 1;
        let plan = self.reporter.plan.get();
        RankReport {
            run: self.reporter.run.clone(),
            stream: self.reporter.stream.clone(),
            plan: plan.map_or(UNKNOWN_PLAN.to_owned(), |plan| plan.to_string()),
            rank: self.reporter.rank,
            size: self.reporter.size,
            process: self.reporter.process.clone(),
            ready: shared.tally.ready_in_order(),
            target: stats.target,
            waiting_ms: stats.waiting.as_millis() as u64,
            wait_ms,
            step_ms,
            waited_ms: stats.waited.as_millis() as u64,
            computed_ms: stats.computed.as_millis() as u64,
            trained: stats.trained,
            quickest_us: stats.quickest.map_or(0, |(own, _)| own.as_micros() as u64),
            quickest_samples: stats.quickest.map_or(0, |(_, samples)| samples),
            consumed: stats.consumed,
            sequence: shared.sequence,
            farewell: false,
            begin: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedmill_protocol::plan::PlanDigest;

    /// Begun at sample 80.
    fn tally() -> Tally {
        Tally::new(80, 6)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_step_counts_when_its_last_batch_has_been_used() {
        let mut tally = tally();
        let mut now = chance::now();
        let begin = now;
        let mut consumed = Vec::new();
        for whole in [80, 80, 88, 88, 96] {
            tally.asked(now, whole);
            now += SECOND;
            tally.arrived();
            tally.answered(now, true);
            consumed.push(tally.stats(now).consumed);
            now += 3 * SECOND;
        }
        // The fourth batch is handed out, yet the second step is not done before the fifth is asked for.
        assert_eq!(consumed, [80, 80, 88, 88, 96]);
        let stats = tally.stats(now);
        assert_eq!((stats.steps, stats.batches), (2, 5));
        assert_eq!((stats.waited, stats.stepped), (5 * SECOND, 16 * SECOND));
        assert_eq!(stats.pace, 3 * SECOND);
        // Two whole steps of two batches each.
        assert_eq!((stats.computed, stats.trained), (12 * SECOND, 16));
        tally.asked(now, 96);
        tally.answered(now, false);
        assert_eq!(tally.stats(now).consumed, 96, "half a step is none");
        tally.turned(8);
        let stats = tally.stats(now);
        assert_eq!((stats.consumed, stats.steps), (8, 2), "a jump is no step");
        assert_eq!((stats.computed, stats.trained), (12 * SECOND, 16), "and nothing was trained by it");
        assert_eq!(now - begin, 20 * SECOND);
    }

    #[test]
    fn needs_count_from_when_the_next_batch_will_be_wanted() {
        let mut tally = tally();
        let now = chance::now();
        assert_eq!(tally.need(0, now), Duration::ZERO);
        tally.asked(now, 80);
        assert_eq!(tally.need(0, now), Duration::ZERO);
        assert_eq!(tally.need(2, now), 2 * FIRST_PACE);
        tally.answered(now, true);
        tally.asked(now + 4 * SECOND, 80);
        tally.answered(now + 4 * SECOND, true);
        // A second into a batch that takes four.
        let now = now + 5 * SECOND;
        assert_eq!(tally.need(0, now), 3 * SECOND);
        assert_eq!(tally.need(2, now), 11 * SECOND);
        // Longer than ever before: the next is due now.
        assert_eq!(tally.need(1, now + 60 * SECOND), 4 * SECOND);
        tally.asked(now, 80);
        assert_eq!(tally.need(0, now), Duration::ZERO);
    }

    #[test]
    fn a_range_is_needed_after_the_one_before_it_and_elsewhere_after_none() {
        let mut tally = tally();
        let now = chance::now();
        let slow = Duration::from_millis(50);
        tally.asked(now, 80);
        tally.answered(now, true);
        tally.asked(now + slow, 80);
        tally.answered(now + slow, true);
        let now = now + slow;
        let far = tally.need(4, now);
        assert_eq!(far, 5 * slow);
        assert!(tally.need(1, now) > far);
        assert_eq!(tally.need(0, now), slow);
        tally.left_all();
        assert_eq!(tally.need(1, now), 2 * slow);
    }

    #[test]
    fn reports_say_what_is_new_and_that_it_starves() {
        let reporter = Reporter {
            run: "run".into(),
            stream: "train".into(),
            plan: ExpectedPlan::any(),
            rank: 1,
            size: 2,
            process: chance::process(),
        };
        let meter = Meter::new(reporter, tally());
        let begin = chance::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        meter.tally(|tally| tally.asked(at(0), 80));
        let first = meter.report_at(at(2000));
        assert_eq!((first.waiting_ms, first.wait_ms, first.step_ms), (2000, 2000, 0));
        assert!(first.check().is_ok(), "also before the plan is known");
        let second = meter.report_at(at(4000));
        assert_eq!((second.waiting_ms, second.wait_ms, second.step_ms), (4000, 2000, 0));
        // A dropped call that is made again is the same waiting.
        meter.tally(|tally| tally.asked(at(4100), 80));
        meter.tally(Tally::arrived);
        meter.tally(|tally| tally.answered(at(4500), true));
        meter.tally(|tally| tally.asked(at(5000), 80));
        meter.tally(|tally| tally.answered(at(5000), true));
        meter.tally(|tally| tally.asked(at(6000), 88));
        meter.tally(|tally| tally.answered(at(6000), true));
        let third = meter.report_at(at(6500));
        assert_eq!((third.waiting_ms, third.wait_ms, third.step_ms), (0, 500, 6000));
        assert_eq!((third.consumed, third.sequence, third.target), (88, 3, 6));
        let fourth = meter.report_at(at(8500));
        assert_eq!((fourth.wait_ms, fourth.step_ms, fourth.sequence), (0, 0, 4));
        assert_eq!((fourth.waited_ms, fourth.computed_ms, fourth.trained), (4500, 1500, 8));
        assert_eq!((fourth.quickest_us, fourth.quickest_samples), (1_500_000, 8));
        assert_eq!(first.plan.parse::<PlanDigest>().ok(), None);
    }
}
