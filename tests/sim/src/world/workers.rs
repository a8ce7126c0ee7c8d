//! Workers: they are ordered, start, make batches in the order of need, drain, and are lost.

use std::collections::BTreeSet;

use super::{Event, HEDGE_AFTER, Life, Worker, World};
use crate::trace::{BATCH_NOISE, LOSS, MACHINE_START};

/// A dead worker is noticed after so long.
const SUSPECT_AFTER: f64 = 0.5;
/// The share of a step that the next candidate must be better by: twice.
const MUCH_LONGER: f64 = 2.0;
const GOLDEN: f64 = 0.618_033_988_749_894_9;

impl World<'_> {
    pub(super) fn ask(&mut self, rank: usize, batch: u64) {
        let Some(worker) = self.place(self.number(batch, rank)) else {
            self.at(self.now + SUSPECT_AFTER, Event::Ask { run: self.run, rank, batch });
            return;
        };
        self.workers[worker].queue.insert((batch, rank));
        self.make_next(worker);
    }

    /// A worker that is free begins what is needed first.
    pub(super) fn make_next(&mut self, worker: usize) {
        if self.workers[worker].making.is_some() {
            return;
        }
        let Some((batch, rank)) = self.workers[worker].queue.pop_first() else {
            if self.workers[worker].life == Life::Draining {
                self.pay(worker);
            }
            return;
        };
        let end = self.now + self.seconds_of(self.number(batch, rank)) / self.workers[worker].speed;
        self.workers[worker].making = Some((batch, rank, self.now));
        self.at(end, Event::Made { worker, run: self.run, rank, batch });
    }

    /// A rank's batch among those of all ranks.
    fn number(&self, batch: u64, rank: usize) -> u64 {
        batch * self.trace.shape.ranks as u64 + rank as u64
    }

    /// How long a worker needs for a batch.
    fn seconds_of(&mut self, number: u64) -> f64 {
        let measured = &self.trace.batches;
        if let Some(seconds) =
            number.checked_rem(measured.len() as u64).and_then(|at| measured.get(at as usize))
        {
            return *seconds;
        }
        let shape = self.trace.shape;
        let seconds = shape.micro_batch as f64 * self.trace.sample_at(self.now) / f64::from(shape.cores);
        seconds * self.noise(BATCH_NOISE)
    }

    /// Whoever waits for a batch that a worker has not begun asks another one that has less to do.
    pub(super) fn hedge(&mut self) {
        let waiting = (0..self.ranks.len()).filter(|rank| {
            self.ranks[*rank].waiting_since.is_some_and(|since| self.now - since >= HEDGE_AFTER)
        });
        let wanted: Vec<(u64, usize)> = waiting.map(|rank| (self.ranks[rank].used, rank)).collect();
        for key in wanted {
            let Some(from) =
                self.serving.iter().copied().find(|worker| self.workers[*worker].queue.contains(&key))
            else {
                continue;
            };
            let range = self.random.u64(..1 << 40);
            let Some(to) = self.place(range) else { return };
            if self.ahead(to) * MUCH_LONGER <= self.ahead(from) {
                self.workers[from].queue.remove(&key);
                self.workers[to].queue.insert(key);
                self.make_next(to);
            }
        }
    }

    /// Batches ahead of a new one.
    pub(super) fn ahead(&self, worker: usize) -> f64 {
        let worker = &self.workers[worker];
        (worker.queue.len() + usize::from(worker.making.is_some())) as f64
    }

    /// Striping, and away from a worker that has much more ahead of it.
    pub(super) fn place(&self, range: u64) -> Option<usize> {
        let ready = &self.serving;
        if ready.is_empty() {
            return None;
        }
        let point = (range as f64 * GOLDEN).fract();
        let candidate =
            |shift: f64| ready[((point + shift).fract() * ready.len() as f64) as usize % ready.len()];
        let ahead = |worker: usize| self.ahead(worker);
        let first = candidate(0.0);
        let best = [candidate(1.0 / 3.0), candidate(2.0 / 3.0)]
            .into_iter()
            .min_by(|a, b| ahead(*a).total_cmp(&ahead(*b)))
            .unwrap_or(first);
        let longer = ahead(first) > MUCH_LONGER * ahead(best) && ahead(first) > 1.0;
        Some(if longer { best } else { first })
    }

    pub(super) fn made(&mut self, worker: usize, run: u32, rank: usize, batch: u64) {
        if self.workers[worker].life == Life::Gone {
            return;
        }
        if let Some((_, _, begun)) = self.workers[worker].making.take() {
            self.workers[worker].busy_ms += (self.now - begun) * 1000.0 * f64::from(self.trace.shape.cores);
        }
        self.workers[worker].samples += self.trace.shape.micro_batch;
        self.workers[worker].batches += 1;
        self.make_next(worker);
        if run == self.run && self.alive {
            self.ranks[rank].arrived.insert(batch);
            self.hand_out(rank);
        }
    }

    pub(super) fn order(&mut self, wanted: u32) {
        let wanted = wanted.max(1);
        if wanted != self.wanted {
            self.history.changes.push((self.now, wanted));
        }
        self.wanted = wanted;
        let alive = |worker: &Worker| matches!(worker.life, Life::Starting | Life::Ready);
        let mut have = self.workers.iter().filter(|worker| alive(worker)).count();
        while have < wanted as usize {
            self.start(0.0);
            have += 1;
        }
        // Those that are not ready go first, then the newest.
        while have > wanted as usize {
            let victim = (0..self.workers.len())
                .rev()
                .filter(|worker| alive(&self.workers[*worker]))
                .min_by_key(|worker| self.workers[*worker].life == Life::Ready);
            let Some(victim) = victim else { return };
            self.workers[victim].life = Life::Draining;
            self.make_next(victim);
            have -= 1;
        }
    }

    pub(super) fn start(&mut self, later: f64) {
        let (share, speed) = self.trace.slow_workers;
        let index = self.workers.len();
        // The second of ten and so on, so that any two policies have equally slow fleets.
        let slow = share > 0.0 && index % (1.0 / share) as usize == 1;
        self.workers.push(Worker {
            life: Life::Starting,
            speed: if slow { speed } else { 1.0 },
            making: None,
            queue: BTreeSet::new(),
            samples: 0,
            busy_ms: 0.0,
            batches: 0,
            ordered_at: self.now,
        });
        let (least, most) = self.trace.shape.start;
        let ready = self.now + later + least + (most - least) * self.random.f64();
        self.at(ready, Event::Ready { worker: index });
    }

    /// Ends a worker and counts what it has cost.
    pub(super) fn pay(&mut self, worker: usize) {
        if self.workers[worker].life != Life::Gone {
            self.history.worker_seconds += self.now - self.workers[worker].ordered_at;
            self.workers[worker].life = Life::Gone;
        }
    }

    pub(super) fn lose(&mut self) {
        let ready: Vec<usize> =
            (0..self.workers.len()).filter(|worker| self.workers[*worker].life == Life::Ready).collect();
        let lost = (ready.len() as f64 * LOSS).round() as usize;
        for worker in ready.into_iter().rev().take(lost) {
            let mut outstanding = std::mem::take(&mut self.workers[worker].queue);
            outstanding.extend(self.workers[worker].making.take().map(|(batch, rank, ..)| (batch, rank)));
            self.pay(worker);
            self.refresh();
            for (batch, rank) in outstanding {
                self.at(self.now + SUSPECT_AFTER, Event::Ask { run: self.run, rank, batch });
            }
            // The Deployment starts another one at once, when there is a machine.
            self.start(MACHINE_START);
        }
    }

    pub(super) fn refresh(&mut self) {
        let workers = &self.workers;
        self.serving.clear();
        self.serving.extend((0..workers.len()).filter(|worker| workers[*worker].life == Life::Ready));
    }
}
