//! Takes one run's reports on one stream, gives how long its ranks waited, how full their queues were and what the run could use.
//!
//! Ranks make steps together, so a rank that waits for another one's data counts that as its own time. The rank that comes last waits for
//! nobody: the least own time of all ranks is the step's. While nobody waits for data that is so on average, too; otherwise each rank has been
//! last in some steps and waited for others in the rest, and only the quickest steps tell.

use feedmill_protocol::report::RankReport;

use crate::signals::Run;

/// Steps of a run may be so long, and reports of it so old, at most.
const LONGEST_STALE_MS: u64 = 600_000;

/// Reports are sent on one clock and read by another, and a step's end falls between them.
const CLOCK_SLACK_MS: u64 = 2_000;

/// Ranks that wait less than this hide less than half as much in their own times.
pub(crate) const WAITING: f64 = 0.1;

/// Totals at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Totals {
    arrived_ms: u64,
    waited_ms: u64,
    computed_ms: u64,
    trained: u64,
}

/// One rank.
#[derive(Clone, Debug)]
struct RankTrack {
    rank: u32,
    sequence: u64,
    last: Totals,
    /// When the last report of the window before came, and how long it had waited then.
    base: (u64, u64),
    /// Its latest whole steps, for how old a report may be.
    step_ms: u64,
    fill: f32,
    fills: u32,
    /// How long it waited and how full its queue was in the last window with a newer report.
    before: (f64, f64),
    contradicts: bool,
}

/// Own milliseconds for a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    average: f64,
    quickest: f64,
}

impl Own {
    fn least(self, other: Own) -> Own {
        Own { average: self.average.min(other.average), quickest: self.quickest.min(other.quickest) }
    }
}

/// One run in this window. What its ranks say of another stream has another sequence and other totals, and is followed apart.
#[derive(Clone, Debug)]
pub(super) struct RunTrack {
    pub(super) run: String,
    pub(super) stream: String,
    /// What it is called, apart from the same run with another stream.
    name: String,
    size: u32,
    sizes_differ: bool,
    /// By rank.
    ranks: Vec<RankTrack>,
    /// Where the next report's rank probably is.
    next: usize,
    /// Least own milliseconds for a sample of any rank in this round, on average over its steps and in its quickest one.
    round: Option<Own>,
    /// The sum of averages and the least of quickest ones, and of how many rounds.
    rounds: (Own, u32),
    heard_ms: u64,
}

impl RunTrack {
    /// Nothing is known of it but who this report is from; `several` streams are followed.
    pub(super) fn new(report: &RankReport, several: bool) -> Self {
        let (run, stream) = (report.run.clone(), report.stream.clone());
        Self {
            name: if several { format!("{run}/{stream}") } else { run.clone() },
            run,
            stream,
            size: 0,
            sizes_differ: false,
            ranks: Vec::new(),
            next: 0,
            round: None,
            rounds: (Own::default(), 0),
            heard_ms: 0,
        }
    }

    /// When its newest report came.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// One report that came at `arrived`.
    pub(super) fn take(&mut self, report: &RankReport, arrived: u64, stale_after: u64) {
        let totals = Totals {
            arrived_ms: arrived,
            waited_ms: report.waited_ms,
            computed_ms: report.computed_ms,
            trained: report.trained,
        };
        let index = match self.ranks.get(self.next) {
            Some(track) if track.rank == report.rank => Ok(self.next),
            _ => self.ranks.binary_search_by_key(&report.rank, |track| track.rank),
        };
        let index = match index {
            Ok(index) => index,
            Err(index) => {
                self.ranks.insert(index, RankTrack::new(report, totals));
                self.next = index + 1;
                self.heard(report, arrived);
                return;
            }
        };
        self.next = index + 1;
        let Some(track) = self.ranks.get_mut(index) else { return };
        if report.sequence <= track.sequence {
            // The same again, or an older one from a worker that was its home before; or the rank has been started anew.
            let anew = report.sequence < track.sequence
                && arrived > track.last.arrived_ms.saturating_add(stale_after);
            if anew {
                *track = RankTrack::new(report, totals);
                self.heard(report, arrived);
            }
            return;
        }
        let own = track.follow(report, totals);
        self.round = match (self.round, own) {
            (Some(least), Some(own)) => Some(least.least(own)),
            (least, own) => least.or(own),
        };
        self.heard(report, arrived);
    }

    fn heard(&mut self, report: &RankReport, arrived: u64) {
        if self.heard_ms == 0 || arrived > self.heard_ms {
            self.heard_ms = arrived;
        }
        self.sizes_differ |= self.size != 0 && self.size != report.size;
        self.size = report.size;
    }

    /// One round of answers is in.
    pub(super) fn end_round(&mut self) {
        if let Some(own) = self.round.take() {
            let (sum, count) = &mut self.rounds;
            sum.average += own.average;
            // Of a step that has just ended only some ranks have told; the last one may not be among them.
            sum.quickest = if *count == 0 { own.quickest } else { sum.quickest.min(own.quickest) };
            *count += 1;
        }
        self.next = 0;
    }

    /// Ends the window.
    pub(super) fn window(&mut self, now: u64, stale_after: u64) -> Run {
        let mut run = Run { name: self.name.clone(), ranks: self.size, fill: 1.0, ..Run::default() };
        let size = self.size;
        // Ranks that a smaller size does not have are those of an earlier start.
        self.ranks.retain(|track| {
            track.rank < size && now.saturating_sub(track.last.arrived_ms) < LONGEST_STALE_MS
        });
        let mut contradicting = 0u32;
        for track in &mut self.ranks {
            let fresh_for = stale_after.max(track.step_ms.saturating_mul(3).min(LONGEST_STALE_MS));
            contradicting += u32::from(track.contradicts);
            if !track.contradicts && now.saturating_sub(track.last.arrived_ms) <= fresh_for {
                run.reporting += 1;
                let waited = track.waited();
                run.wait = run.wait.max(waited);
                run.mean_wait += waited;
                run.fill = run.fill.min(track.filled());
            }
            track.end_window();
        }
        // One rank in a muddle is one missing value; many are two trainings of one name.
        run.contradicts =
            self.sizes_differ || (contradicting > 0 && contradicting.saturating_mul(5) > run.ranks);
        run.mean_wait /= f64::from(run.reporting.max(1));
        let (sum, rounds) = std::mem::take(&mut self.rounds);
        let rounds = f64::from(rounds);
        let own = if run.wait > WAITING { sum.quickest * rounds } else { sum.average };
        run.demand = (rounds > 0.0 && own > 0.0).then(|| 1000.0 * rounds / own);
        self.sizes_differ = false;
        run
    }
}

impl RankTrack {
    fn new(report: &RankReport, totals: Totals) -> Self {
        let mut track = Self {
            rank: report.rank,
            sequence: report.sequence,
            last: totals,
            base: (totals.arrived_ms, totals.waited_ms),
            step_ms: report.step_ms,
            fill: 0.0,
            fills: 0,
            before: (0.0, 0.0),
            contradicts: false,
        };
        track.count_fill(report);
        track
    }

    /// A newer report: its own milliseconds for a sample in the steps since, if there were any.
    fn follow(&mut self, report: &RankReport, totals: Totals) -> Option<Own> {
        let before = std::mem::replace(&mut self.last, totals);
        self.sequence = report.sequence;
        if report.step_ms > 0 {
            self.step_ms = report.step_ms;
        }
        self.count_fill(report);
        let span = totals.arrived_ms.saturating_sub(before.arrived_ms);
        let backwards = totals.arrived_ms < before.arrived_ms
            || totals.waited_ms < before.waited_ms
            || totals.computed_ms < before.computed_ms
            || totals.trained < before.trained;
        let impossible =
            totals.waited_ms.saturating_sub(before.waited_ms) > span.saturating_add(CLOCK_SLACK_MS);
        if backwards || impossible {
            self.contradicts = true;
            self.base = (totals.arrived_ms, totals.waited_ms);
            return None;
        }
        let computed = totals.computed_ms - before.computed_ms;
        let trained = totals.trained - before.trained;
        if trained == 0 || computed == 0 {
            return None;
        }
        let average = computed as f64 / trained as f64;
        let quickest = report.quickest_us as f64 / 1000.0 / report.quickest_samples.max(1) as f64;
        // A rank that does not say, or says what cannot be, has no quicker step than the average one.
        let quickest = if quickest > 0.0 && quickest < average { quickest } else { average };
        Some(Own { average, quickest })
    }

    /// A queue of one place, or none, is as full as it can be only while nobody reads; so the batch that has just been asked for in place
    /// of the one in use does not count as missing.
    fn count_fill(&mut self, report: &RankReport) {
        let places = report.target.saturating_sub(1);
        if places > 0 {
            self.fill += (report.ready as f32 / places as f32).min(1.0);
            self.fills += 1;
        }
    }

    fn waited(&self) -> f64 {
        let span = self.last.arrived_ms.saturating_sub(self.base.0);
        if span == 0 {
            // Nothing newer has come, and what it said last still counts: that it waits, too.
            return self.before.0;
        }
        (self.last.waited_ms.saturating_sub(self.base.1) as f64 / span as f64).min(1.0)
    }

    fn filled(&self) -> f64 {
        // A window of one batch says nothing; waiting alone decides then.
        if self.fills == 0 { self.before.1 } else { f64::from(self.fill) / f64::from(self.fills) }
    }

    fn end_window(&mut self) {
        self.before = (self.waited(), self.filled());
        self.base = (self.last.arrived_ms, self.last.waited_ms);
        self.fill = 0.0;
        self.fills = 0;
        self.contradicts = false;
    }
}
