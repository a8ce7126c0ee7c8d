//! Takes what a rank knows and wants, gives what it asks of whom: every decision is the client's own.

use std::collections::VecDeque;
use std::time::Duration;

use feedmill_client::decisions::{
    Bounds, Budget, Choice, Known, Load, LoadStatus, ReadyTimes, Seen, Standing, Window, capacities, choose,
    due, needed_in, point,
};
use feedmill_protocol::position::Range;
use feedmill_protocol::report::WorkerState;

use crate::Policy;
use crate::fleet::{CORES, Copy, Event, FETCH, MICRO_BATCH, POLL, Simulation, nanos};

const BATCH_BYTES: u64 = 1_000_000;
/// As the Python package has them.
const BOUNDS: Bounds = Bounds { ranges: 1024, bytes: 1 << 30 };

/// A range in a rank's window.
pub(crate) struct Outstanding {
    pub(crate) number: u64,
    pub(crate) needed_at: u64,
    pub(crate) copies: Vec<usize>,
    pub(crate) there: bool,
}

pub(crate) struct Rank {
    /// Indices of its workers, and how many ranks ask each.
    pub(crate) circle: Vec<(usize, u64)>,
    pub(crate) loads: Vec<Load>,
    pub(crate) capacities: Vec<u32>,
    pub(crate) resting: Vec<u64>,
    pub(crate) failures: Vec<u32>,
    pub(crate) window: VecDeque<Outstanding>,
    pub(crate) size: Window,
    pub(crate) next: u64,
    pub(crate) times: ReadyTimes,
    pub(crate) budget: Budget,
    pub(crate) pace: Option<f64>,
    pub(crate) last_needed: Option<u64>,
    pub(crate) handed_out: Option<u64>,
    pub(crate) waiting: bool,
    pub(crate) ranges: u64,
    pub(crate) hedged: u64,
}

impl Rank {
    pub(crate) fn new(circle: Vec<(usize, u64)>) -> Self {
        let size = circle.len();
        Rank {
            circle,
            loads: vec![Load::default(); size],
            capacities: vec![8; size],
            resting: vec![0; size],
            failures: vec![0; size],
            window: VecDeque::new(),
            size: Window::adaptive(BOUNDS),
            next: 0,
            times: ReadyTimes::default(),
            budget: Budget::default(),
            pace: None,
            last_needed: None,
            handed_out: None,
            waiting: false,
            ranges: 0,
            hedged: 0,
        }
    }
}

impl Simulation {
    /// The rank is done with its batch and with waiting for the others.
    pub(crate) fn wants(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if let Some(handed_out) = state.handed_out.take() {
            let own = (self.now - handed_out) as f64 / 1e9;
            state.pace = Some(state.pace.map_or(own, |pace| pace * 0.8 + own * 0.2));
        }
        state.waiting = true;
        self.fill(rank);
        let first = &self.ranks[rank].window[0];
        if first.there {
            self.takes(rank, false);
        } else {
            let number = first.number;
            self.at(self.now, Event::Look(rank, number));
        }
    }

    pub(crate) fn takes(&mut self, rank: usize, waited: bool) {
        let known = self.known(rank);
        let state = &mut self.ranks[rank];
        state.waiting = false;
        state.handed_out = Some(self.now);
        state.window.pop_front();
        state.size.took(waited, &known);
        self.computing += 1;
        self.at(self.now + nanos(self.own_time), Event::Computed);
        self.fill(rank);
    }

    fn known(&self, rank: usize) -> Known {
        let state = &self.ranks[rank];
        let cores: Vec<u64> = state.loads.iter().filter_map(Load::cores).map(u64::from).collect();
        let count = cores.len() as u64;
        Known {
            cores: (count > 0).then(|| cores.iter().sum::<u64>() * self.case.workers as u64 / count.max(1)),
            ranks: self.case.ranks,
            micro_batch: MICRO_BATCH,
            pace: state.pace.map(Duration::from_secs_f64),
            slow_time: state.times.longest(),
            batch_bytes: state.times.median().map(|_| BATCH_BYTES),
        }
    }

    fn fill(&mut self, rank: usize) {
        let size = self.ranks[rank].size.ranges(&self.known(rank)).max(1);
        while self.ranks[rank].window.len() < size {
            let (number, ahead) = (self.ranks[rank].next, self.ranks[rank].window.len());
            self.ranks[rank].next += 1;
            self.ranks[rank].ranges += 1;
            self.ranks[rank].budget.asked();
            let pace = self.ranks[rank].pace.map(Duration::from_secs_f64);
            let last = self.ranks[rank].last_needed;
            let last = last.map(|last| Duration::from_nanos(last.saturating_sub(self.now)));
            let need = needed_in(pace, Duration::ZERO, ahead, last.filter(|_| ahead > 0));
            let needed_at = self.now + nanos(need.as_secs_f64());
            if ahead > 0 {
                self.ranks[rank].last_needed = Some(needed_at);
            }
            let range = Outstanding { number, needed_at, copies: Vec::new(), there: false };
            self.ranks[rank].window.push_back(range);
            if let Some(slot) = self.choose(rank, number, None) {
                self.ask(rank, number, slot);
            }
            self.at(needed_at, Event::Look(rank, number));
        }
    }

    /// Which of the rank's workers; never the one that is asked already.
    fn choose(&mut self, rank: usize, number: u64, but: Option<usize>) -> Option<usize> {
        let state = &self.ranks[rank];
        if self.policy == Policy::Hash {
            let hash = (number * self.case.ranks + rank as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            return Some(((u128::from(hash) * state.circle.len() as u128) >> 64) as usize);
        }
        let now = self.instant(self.now);
        let seen: Vec<Seen> = state
            .circle
            .iter()
            .enumerate()
            .map(|(slot, (worker, ranks))| Seen {
                standing: if but == Some(*worker) {
                    Standing::Tried
                } else if state.resting[slot] > self.now {
                    Standing::Resting(self.instant(state.resting[slot]))
                } else {
                    Standing::Ready
                },
                capacity: state.capacities[slot],
                work_ahead: state.loads[slot].work_ahead(now),
                ranks: *ranks,
            })
            .collect();
        let g = number * self.case.ranks + rank as u64;
        let range = Range::new(g * MICRO_BATCH, (g + 1) * MICRO_BATCH).expect("a range");
        let ranks = if self.policy == Policy::OneCircle { 1 } else { self.case.ranks };
        match choose(point(range, ranks, self.case.workers), MICRO_BATCH, &seen, now) {
            Choice::Ask(slot) => Some(slot),
            // All rest; the client waits some milliseconds, here the first one is asked.
            _ if but.is_none() => Some(0),
            _ => None,
        }
    }

    fn ask(&mut self, rank: usize, number: u64, slot: usize) {
        let worker = self.ranks[rank].circle[slot].0;
        self.ranks[rank].loads[slot].asked(MICRO_BATCH);
        self.workers[worker].ahead += MICRO_BATCH;
        let copy = self.copies.len();
        self.copies.push(Copy {
            rank,
            number,
            worker,
            asked: self.now,
            to_begin: MICRO_BATCH,
            to_finish: MICRO_BATCH,
            begun: 0,
            cancelled: false,
        });
        if let Some(range) = self.ranks[rank].window.iter_mut().find(|range| range.number == number) {
            range.copies.push(copy);
        }
        // The slowest of the samples' objects.
        let fetched = (0..MICRO_BATCH).map(|_| self.lognormal(FETCH)).fold(0.0, f64::max);
        self.at(self.now + nanos(fetched), Event::Runnable(copy));
    }

    /// Is it time for a second worker?
    pub(crate) fn look(&mut self, rank: usize, number: u64) {
        if matches!(self.policy, Policy::NoHedge | Policy::Hash) {
            return;
        }
        let state = &self.ranks[rank];
        let Some(place) = state.window.iter().position(|range| range.number == number) else { return };
        let range = &state.window[place];
        if range.there || range.copies.len() != 1 {
            return;
        }
        let waited_for = place == 0 && state.waiting;
        let sent = self.instant(self.copies[range.copies[0]].asked);
        let at = due(sent, self.instant(range.needed_at), waited_for, state.times.median());
        let now = self.instant(self.now);
        let Some(at) = at else { return };
        if at > now {
            let at = self.now + (at - now).as_nanos() as u64;
            self.at(at, Event::Look(rank, number));
        } else if !self.ask_second(rank, number) {
            self.at(self.now + nanos(0.1), Event::Look(rank, number));
        }
    }

    pub(crate) fn ask_second(&mut self, rank: usize, number: u64) -> bool {
        if matches!(self.policy, Policy::NoHedge | Policy::Hash) {
            return true;
        }
        let first =
            self.ranks[rank].window.iter().find(|range| range.number == number).map(|range| range.copies[0]);
        let Some(first) = first else { return true };
        let but = self.copies[first].worker;
        let Some(slot) = self.choose(rank, number, Some(but)) else { return false };
        if !self.ranks[rank].budget.take() {
            return false;
        }
        self.ranks[rank].hedged += 1;
        self.ask(rank, number, slot);
        true
    }

    pub(crate) fn poll(&mut self, rank: usize) {
        let now = self.instant(self.now);
        for slot in 0..self.ranks[rank].circle.len() {
            let worker = &self.workers[self.ranks[rank].circle[slot].0];
            let status = LoadStatus {
                worker: String::new(),
                state: WorkerState::Ready,
                cores: CORES,
                work_ahead: worker.ahead,
                samples: worker.served,
            };
            self.ranks[rank].loads[slot].read(now, status);
        }
        let known = capacities(self.ranks[rank].loads.iter());
        self.ranks[rank].capacities = known;
        let again = nanos(POLL * (0.9 + self.random.f64() / 5.0));
        self.at(self.now + again, Event::Poll(rank));
    }
}
