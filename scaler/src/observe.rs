//! Takes what workers answer, as often as they are asked, gives one window's signals.
//!
//! Reports are read by their totals: a report that nobody saw, one that comes twice or late, and a worker that gives its reports over to
//! another one change nothing. What stands in a report is a stranger's word: it is compared with the clock and with what the same rank said
//! before, and a rank that contradicts itself does not count.

/// What one worker has done in a window.
mod fleet;
/// What one run's ranks have said in a window.
pub(crate) mod run;

use feedmill_protocol::report::{KeptReport, WorkerState, WorkerStatus};

use crate::signals::{Fleet, Signals};
use fleet::FleetTrack;
use run::RunTrack;

/// Most runs of one pipeline that are followed; more are not heard.
const MAX_RUNS: usize = 64;

/// Highest rank that is believed.
const MAX_RANK: u32 = 16_383;

/// A run that nobody has heard of for so long is forgotten; workers forget it then, too.
const FORGET_MS: u64 = 600_000;

/// A stream whose ranks count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// The plan that its readers must have.
    pub plan: String,
}

/// One worker's answer, or that it gave none.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// A name that no other worker of the fleet has.
    pub worker: &'a str,
    /// When it answered.
    pub at_ms: u64,
    /// What it said; None when it did not answer, or nothing that could be read.
    pub status: Option<&'a WorkerStatus>,
}

/// Follows one pipeline. It need not survive its process: two reports of each rank, some seconds apart, are all it has to know.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    streams: Vec<Stream>,
    stale_after_ms: u64,
    fleet: FleetTrack,
    runs: Vec<RunTrack>,
}

impl Observer {
    /// Follows runs that read these streams by these plans. Streams for evaluation are left out by not being named.
    #[must_use]
    pub fn new(streams: Vec<Stream>, stale_after_ms: u64) -> Self {
        Self { streams, stale_after_ms, ..Self::default() }
    }

    /// Takes one round of answers.
    pub fn take(&mut self, scrapes: &[Scrape<'_>]) {
        for scrape in scrapes {
            self.fleet.take(scrape);
            let Some(status) = scrape.status else { continue };
            // Reports come in the order of run, stream and rank, so all three are mostly where the last ones were.
            let mut run = 0;
            for kept in &status.reports {
                if self.counts(kept) {
                    run = self.take_report(kept, scrape.at_ms, run);
                }
            }
        }
        self.fleet.end_round();
        self.runs.iter_mut().for_each(RunTrack::end_round);
    }

    /// Ends the window.
    #[must_use]
    pub fn window(&mut self, fleet: Fleet, now_ms: u64) -> Signals {
        let workers = self.fleet.window();
        let stale_after = self.stale_after_ms;
        let runs = self.runs.iter_mut().map(|run| run.window(now_ms, stale_after)).collect();
        self.runs.retain(|run| now_ms.saturating_sub(run.heard_ms()) < FORGET_MS);
        Signals { fleet, workers, runs, unanswered: None, in_workers: false }
    }

    /// Whether a report is about a stream and a plan that count, and possible at all.
    fn counts(&self, kept: &KeptReport) -> bool {
        let report = &kept.report;
        let right = |stream: &Stream| stream.name == report.stream && stream.plan == report.plan;
        report.rank < report.size
            && report.rank <= MAX_RANK
            && kept.age_ms < FORGET_MS
            && self.streams.iter().any(right)
    }

    fn take_report(&mut self, kept: &KeptReport, at_ms: u64, hint: usize) -> usize {
        let report = &kept.report;
        let is = |run: &RunTrack| (&run.run, &run.stream) == (&report.run, &report.stream);
        let place =
            if self.runs.get(hint).is_some_and(is) { Some(hint) } else { self.runs.iter().position(is) };
        let place = match place {
            Some(place) => place,
            None if self.runs.len() < MAX_RUNS => {
                self.runs.push(RunTrack::new(report, self.streams.len() > 1));
                self.runs.len() - 1
            }
            None => return hint,
        };
        let arrived = at_ms.saturating_sub(kept.age_ms);
        if let Some(run) = self.runs.get_mut(place) {
            run.take(report, arrived, self.stale_after_ms);
        }
        place
    }
}

/// Whether a worker takes new work.
fn serves(status: &WorkerStatus) -> bool {
    status.state == WorkerState::Ready
}

#[cfg(test)]
mod tests;
