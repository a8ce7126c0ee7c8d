//! Takes workers' counters, gives what a busy worker makes, how busy they were, and whether anything was read at all.

use super::{Scrape, serves};
use crate::signals::Workers;

/// Less CPU time than this in a window says nothing about a worker.
const LEAST_BUSY_MS: u64 = 200;

/// The slowest and the quickest quarter of workers do not count: cold caches, noisy neighbours, lies. Of four, one slow one is a quarter.
const TRIMMED: f64 = 0.25;

/// Most workers that are followed.
const MAX_WORKERS: usize = 16_384;

/// Counters at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    at_ms: u64,
    samples: u64,
    busy_ms: u64,
}

/// One worker in this window.
#[derive(Clone, Debug, Default)]
struct Track {
    name: String,
    last: Option<Counters>,
    cores: u32,
    span_ms: u64,
    samples: u64,
    busy_ms: u64,
    /// It had work ahead of it whenever it was asked.
    queued: bool,
    /// The last round in which it was asked.
    round: u64,
    answered: bool,
}

/// All workers of a pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetTrack {
    /// By name.
    workers: Vec<Track>,
    /// Where the next answer's worker probably is.
    next: usize,
    /// Rounds so far.
    rounds: u64,
    pulled: bool,
}

impl FleetTrack {
    /// One worker's answer.
    pub(super) fn take(&mut self, scrape: &Scrape<'_>) {
        let index = match self.workers.get(self.next) {
            Some(track) if track.name == scrape.worker => Ok(self.next),
            _ => self.workers.binary_search_by(|track| track.name.as_str().cmp(scrape.worker)),
        };
        let index = match index {
            Ok(index) => index,
            Err(_) if self.workers.len() >= MAX_WORKERS => return,
            Err(index) => {
                self.workers.insert(
                    index,
                    Track { name: scrape.worker.to_owned(), queued: true, ..Track::default() },
                );
                index
            }
        };
        self.next = index + 1;
        let Some(track) = self.workers.get_mut(index) else { return };
        track.round = self.rounds;
        let Some(status) = scrape.status else { return };
        track.answered = true;
        self.pulled |= status.batches > 0;
        let now = Counters { at_ms: scrape.at_ms, samples: status.samples, busy_ms: status.busy_ms };
        // Counters that fall are those of a new process under the old name.
        let before = track.last.replace(now);
        if let Some(before) = before.filter(|before| {
            before.at_ms < now.at_ms && before.samples <= now.samples && before.busy_ms <= now.busy_ms
        }) {
            track.cores = status.cores;
            track.span_ms = track.span_ms.saturating_add(now.at_ms - before.at_ms);
            track.samples = track.samples.saturating_add(now.samples - before.samples);
            track.busy_ms = track.busy_ms.saturating_add(now.busy_ms - before.busy_ms);
        }
        track.queued &= status.work_ahead > 0 && serves(status);
    }

    /// One round of answers is in.
    pub(super) fn end_round(&mut self) {
        self.rounds += 1;
        self.next = 0;
    }

    /// Ends the window.
    pub(super) fn window(&mut self) -> Workers {
        let rounds = self.rounds;
        // Who was not asked in the last round is no worker of this fleet any more.
        self.workers.retain(|track| track.round.saturating_add(1) >= rounds);
        let mut capacities = Vec::with_capacity(self.workers.len());
        let (mut busy, mut possible) = (0.0, 0.0);
        let mut workers =
            Workers { asked: count(self.workers.len()), pulled: self.pulled, ..Workers::default() };
        for track in &mut self.workers {
            workers.answered += u32::from(track.answered);
            workers.served = workers.served.saturating_add(track.samples);
            let cores = f64::from(track.cores.clamp(1, 4096));
            if track.busy_ms >= LEAST_BUSY_MS && track.samples > 0 {
                capacities.push(track.samples as f64 * 1000.0 / track.busy_ms as f64 * cores);
            }
            if track.queued && track.span_ms > 0 {
                busy += track.busy_ms as f64;
                possible += track.span_ms as f64 * cores;
            }
            (track.span_ms, track.samples, track.busy_ms) = (0, 0, 0);
            (track.queued, track.answered) = (true, false);
        }
        workers.capacity = trimmed_mean(&mut capacities);
        workers.utilization = (possible > 0.0).then(|| busy / possible);
        workers
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The mean without the quarter at either end.
fn trimmed_mean(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    // Of three, the one in the middle.
    let cut = ((values.len() as f64 * TRIMMED).round() as usize).min(values.len().saturating_sub(1) / 2);
    let kept = values.get(cut..values.len() - cut)?;
    (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
}
