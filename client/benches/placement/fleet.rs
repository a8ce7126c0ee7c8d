//! Takes a fleet's sizes and who is asked, gives how near to its ideal it comes: workers that fetch and make, requests,
//! and the events between them in the order of simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use feedmill_protocol::placement::asked_by;
use tokio::time::Instant;

use crate::rank::Rank;
use crate::{Case, Outcome, Policy};

pub(crate) const MICRO_BATCH: u64 = 4;
pub(crate) const CORES: u32 = 4;
const SERVICE: f64 = 0.050;
pub(crate) const FETCH: f64 = 0.030;
const SPREAD: f64 = 0.5;
const TRANSFER: f64 = 0.002;
pub(crate) const POLL: f64 = 1.0;
const LOAD: f64 = 0.9;
/// Until ranks know speeds and windows have their size.
const WARM_UP: f64 = 20.0;
const MEASURED: f64 = 20.0;
/// And for so many batches of each rank at least.
const WAVES: u64 = 40;

pub(crate) struct Worker {
    pub(crate) pace: f64,
    pub(crate) idle: u32,
    /// By need, then by age: copies with samples to begin.
    pub(crate) queue: BinaryHeap<Reverse<(u64, usize)>>,
    pub(crate) ahead: u64,
    pub(crate) served: u64,
}

/// One request for a range.
pub(crate) struct Copy {
    pub(crate) rank: usize,
    pub(crate) number: u64,
    pub(crate) worker: usize,
    pub(crate) asked: u64,
    pub(crate) to_begin: u64,
    pub(crate) to_finish: u64,
    pub(crate) begun: u64,
    pub(crate) cancelled: bool,
}

pub(crate) enum Event {
    Runnable(usize),
    SampleMade(usize),
    There(usize),
    Computed,
    Poll(usize),
    Look(usize, u64),
}

pub(crate) struct Simulation {
    pub(crate) case: Case,
    pub(crate) policy: Policy,
    pub(crate) now: u64,
    pub(crate) base: Instant,
    pub(crate) random: fastrand::Rng,
    pub(crate) events: BinaryHeap<Reverse<(u64, usize)>>,
    pub(crate) kinds: Vec<Option<Event>>,
    pub(crate) free: Vec<usize>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) copies: Vec<Copy>,
    pub(crate) computing: usize,
    pub(crate) own_time: f64,
    pub(crate) waves: u64,
    pub(crate) used: u64,
    pub(crate) wasted: u64,
}

pub(crate) fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Simulation {
    pub(crate) fn new(case: Case, policy: Policy) -> Self {
        let slow = case.workers * case.slow_percent / 100;
        let workers = (0..case.workers)
            .map(|index| {
                // Slow ones lie anywhere in the order.
                let is_slow = slow > 0 && index % (case.workers / slow) == case.workers / slow / 2;
                let pace = if is_slow { 5.0 } else { 1.0 };
                Worker { pace, idle: CORES, queue: BinaryHeap::new(), ahead: 0, served: 0 }
            })
            .collect();
        let ranks = (0..case.ranks)
            .map(|rank| {
                let circle: Vec<(usize, u64)> = asked_by(rank, case.ranks, case.workers)
                    .iter()
                    .map(|asked| (asked.index, asked.ranks))
                    .collect();
                Rank::new(circle)
            })
            .collect();
        let rate = LOAD * case.workers as f64 * f64::from(CORES) / SERVICE;
        Self {
            case,
            policy,
            now: 0,
            base: Instant::now(),
            random: fastrand::Rng::with_seed(case.seed),
            events: BinaryHeap::new(),
            kinds: Vec::new(),
            free: Vec::new(),
            workers,
            ranks,
            copies: Vec::new(),
            computing: 0,
            own_time: case.ranks as f64 * MICRO_BATCH as f64 / rate,
            waves: 0,
            used: 0,
            wasted: 0,
        }
    }

    pub(crate) fn instant(&self, at: u64) -> Instant {
        self.base + Duration::from_nanos(at)
    }

    pub(crate) fn at(&mut self, moment: u64, event: Event) {
        let index = self.free.pop().unwrap_or(self.kinds.len());
        if index == self.kinds.len() {
            self.kinds.push(None);
        }
        self.kinds[index] = Some(event);
        self.events.push(Reverse((moment.max(self.now), index)));
    }

    pub(crate) fn lognormal(&mut self, mean: f64) -> f64 {
        let (a, b) = (self.random.f64().max(1e-12), self.random.f64());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        mean * (SPREAD * normal - SPREAD * SPREAD / 2.0).exp()
    }

    pub(crate) fn run(mut self) -> Outcome {
        for rank in 0..self.ranks.len() {
            let begin = nanos(self.random.f64() * POLL);
            self.at(begin, Event::Poll(rank));
        }
        for rank in 0..self.ranks.len() {
            self.wants(rank);
        }
        let mut mark: Option<(u64, u64, u64, u64, u64, u64)> = None;
        while let Some(Reverse((moment, index))) = self.events.pop() {
            let waves = self.waves;
            self.now = moment;
            let event = self.kinds[index].take().expect("an event");
            self.free.push(index);
            self.happens(event);
            if self.waves == waves {
                continue;
            }
            // A step was made just now.
            match mark {
                None if moment >= nanos(WARM_UP) && waves >= WAVES => {
                    let (asked, hedged) = self.asked();
                    mark = Some((moment, self.waves, self.used, self.wasted, asked, hedged));
                }
                Some((began, waves, ..))
                    if moment >= began + nanos(MEASURED) && self.waves >= waves + WAVES =>
                {
                    break;
                }
                _ => {}
            }
        }
        let (began, waves, used, wasted, asked, hedged) = mark.expect("a warm fleet");
        let elapsed = (self.now - began) as f64 / 1e9;
        let own = self.own_time;
        let capacity = self.capacity();
        // A fleet that is too small even at its best is held against what it can do.
        let ideal = (1.0 / own).min(capacity / (self.case.ranks * MICRO_BATCH) as f64);
        let (asked_now, hedged_now) = self.asked();
        Outcome {
            throughput: (self.waves - waves) as f64 / elapsed / ideal,
            extra: (self.wasted - wasted) as f64 / (self.used - used).max(1) as f64,
            hedged: (hedged_now - hedged) as f64 / (asked_now - asked).max(1) as f64,
            window: self.ranks[0].window.len(),
        }
    }

    fn capacity(&self) -> f64 {
        self.workers.iter().map(|worker| f64::from(CORES) / SERVICE / worker.pace).sum()
    }

    fn asked(&self) -> (u64, u64) {
        self.ranks.iter().fold((0, 0), |(ranges, hedged), rank| (ranges + rank.ranges, hedged + rank.hedged))
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Runnable(copy) => {
                let Copy { worker, cancelled, .. } = self.copies[copy];
                if !cancelled {
                    let need = self.need_of(copy);
                    self.workers[worker].queue.push(Reverse((need, copy)));
                    self.begin_samples(worker);
                }
            }
            Event::SampleMade(copy) => self.sample_made(copy),
            Event::There(copy) => self.there(copy),
            Event::Computed => {
                self.computing -= 1;
                if self.computing == 0 && self.ranks.iter().all(|rank| !rank.waiting) {
                    self.waves += 1;
                    for rank in 0..self.ranks.len() {
                        self.wants(rank);
                    }
                }
            }
            Event::Poll(rank) => self.poll(rank),
            Event::Look(rank, number) => self.look(rank, number),
        }
    }

    fn need_of(&self, copy: usize) -> u64 {
        let Copy { rank, number, .. } = self.copies[copy];
        let outstanding = self.ranks[rank].window.iter().find(|range| range.number == number);
        outstanding.map_or(u64::MAX, |range| range.needed_at)
    }

    fn begin_samples(&mut self, worker: usize) {
        while self.workers[worker].idle > 0 {
            let Some(Reverse((_, copy))) = self.workers[worker].queue.peek().copied() else { return };
            if self.copies[copy].cancelled || self.copies[copy].to_begin == 0 {
                self.workers[worker].queue.pop();
                continue;
            }
            self.copies[copy].to_begin -= 1;
            self.copies[copy].begun += 1;
            self.workers[worker].idle -= 1;
            let time = self.lognormal(SERVICE) * self.workers[worker].pace;
            self.at(self.now + nanos(time), Event::SampleMade(copy));
        }
    }

    fn sample_made(&mut self, copy: usize) {
        let Copy { worker, cancelled, .. } = self.copies[copy];
        self.workers[worker].idle += 1;
        if !cancelled {
            self.copies[copy].to_finish -= 1;
            if self.copies[copy].to_finish == 0 {
                self.at(self.now + nanos(TRANSFER), Event::There(copy));
            }
        }
        self.begin_samples(worker);
    }

    fn there(&mut self, copy: usize) {
        let Copy { rank, number, worker, asked, cancelled, .. } = self.copies[copy];
        if cancelled {
            return;
        }
        self.workers[worker].served += MICRO_BATCH;
        self.workers[worker].ahead -= MICRO_BATCH;
        self.used += MICRO_BATCH;
        let now = self.now;
        let time = Duration::from_nanos(now - asked);
        let Some(place) = self.ranks[rank].window.iter().position(|range| range.number == number) else {
            return;
        };
        self.ranks[rank].times.add(time);
        self.ranks[rank].window[place].there = true;
        let copies = std::mem::take(&mut self.ranks[rank].window[place].copies);
        let slot = |state: &Rank, worker: usize| state.circle.iter().position(|(index, _)| *index == worker);
        if let Some(slot) = slot(&self.ranks[rank], worker) {
            self.ranks[rank].failures[slot] = 0;
        }
        for other in copies.into_iter().filter(|other| *other != copy) {
            self.cancel(other);
            // The first one lost: it rests as a worker does that failed, and what else is late there may be asked again.
            if self.copies[other].asked < asked {
                let loser = self.copies[other].worker;
                if let Some(slot) = slot(&self.ranks[rank], loser) {
                    let state = &mut self.ranks[rank];
                    state.failures[slot] += 1;
                    let pause = 0.05 * f64::from(1u32 << (state.failures[slot] - 1).min(6));
                    state.resting[slot] = now + nanos(pause.min(2.0) * (0.5 + self.random.f64() / 2.0));
                }
                let late: Vec<u64> = self.ranks[rank]
                    .window
                    .iter()
                    .filter(|range| range.copies.len() == 1 && self.copies[range.copies[0]].worker == loser)
                    .map(|range| range.number)
                    .collect();
                for number in late {
                    self.ask_second(rank, number);
                }
            }
        }
        if place == 0 && self.ranks[rank].waiting {
            self.takes(rank, true);
        }
    }

    fn cancel(&mut self, copy: usize) {
        let state = &mut self.copies[copy];
        if !state.cancelled {
            state.cancelled = true;
            self.wasted += state.begun;
            let worker = state.worker;
            self.workers[worker].ahead -= MICRO_BATCH;
        }
    }
}
