//! Takes a trace and a policy, gives what happened. Discrete events; every random number comes from the seed.
//!
//! A worker makes its batches one after another, in the order in which they were asked for. A rank keeps a window of batches asked for or
//! in hand and uses them in order; ranks go into a step together. Ranges are striped over workers as the client does it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use feedmill_protocol::report::{KeptReport, RankReport, WorkerState, WorkerStatus};

use crate::policy::{Policy, View};
use crate::trace::{
    BATCH_NOISE, CORES, LOSS, MACHINE_START, MICRO_BATCH, POD_START, RANKS, STEP_NOISE, Trace, WINDOW,
};

/// The plan of the simulated stream.
pub const PLAN: &str = "sha256:sim";
/// Its name.
pub const STREAM: &str = "train";

/// Ranks report so often.
const REPORT_EVERY: f64 = 2.0;
/// Workers are asked so often.
pub const SCRAPE_EVERY: f64 = 5.0;
/// A dead worker is noticed after so long.
const SUSPECT_AFTER: f64 = 0.5;
/// A rank that has waited so long for a batch asks another worker for it.
const HEDGE_AFTER: f64 = 0.5;
/// From the look to the decision.
const LOOKED: f64 = 0.001;
/// A worker forgets reports after so long.
const REPORT_LIFE: f64 = 600.0;
/// The share of a step that the next candidate must be better by: twice.
const MUCH_LONGER: f64 = 2.0;
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Samples of what happened, one in each [`SCRAPE_EVERY`].
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Workers that were wanted.
    pub wanted: Vec<u32>,
    /// Workers that were ready.
    pub ready: Vec<u32>,
    /// Share of the time in which GPUs computed.
    pub computing: Vec<f64>,
    /// Moments at which the wanted number changed, and to what.
    pub changes: Vec<(f64, u32)>,
    /// Seconds in which the training lived and was meant to compute.
    pub meant: f64,
    /// Seconds of those in which it computed.
    pub computed: f64,
    /// Worker-seconds paid for, from the order to the end.
    pub worker_seconds: f64,
    /// Steps made.
    pub steps: u64,
    /// What was said last of all decisions, by sentence's label, with how often.
    pub reasons: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Made { worker: usize, run: u32, rank: usize, batch: u64 },
    Ask { run: u32, rank: usize, batch: u64 },
    Computed { run: u32, rank: usize },
    Released { run: u32 },
    Ready { worker: usize },
    Report { phase: u32 },
    Hedge,
    Scrape,
    Decide,
    Loss,
    Die,
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Starting,
    Ready,
    Draining,
    Gone,
}

struct Worker {
    life: Life,
    speed: f64,
    /// What it is making: batch, rank, begun, done.
    making: Option<(u64, usize, f64, f64)>,
    /// What waits, in the order of need.
    queue: BTreeSet<(u64, usize)>,
    samples: u64,
    busy_ms: f64,
    batches: u64,
    ordered_at: f64,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    asked: u64,
    used: u64,
    arrived: BTreeSet<u64>,
    waiting_since: Option<f64>,
    handed_out_at: Option<f64>,
    waited: f64,
    computed: f64,
    step_seconds: f64,
    trained: u64,
    last_steps: VecDeque<f64>,
    sequence: u64,
    arrived_at_barrier: bool,
}

/// A step that is being made.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    began: f64,
    longest: f64,
    done: usize,
}

/// The simulation.
pub struct World<'a> {
    trace: &'a Trace,
    now: f64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    kinds: Vec<Event>,
    free: Vec<usize>,
    ordered: u64,
    random: fastrand::Rng,
    workers: Vec<Worker>,
    /// Those that take work.
    serving: Vec<usize>,
    wanted: u32,
    run: u32,
    alive: bool,
    ranks: Vec<Rank>,
    step: Step,
    next_checkpoint: f64,
    reports: BTreeMap<(u32, usize), (f64, RankReport)>,
    bins: Vec<f64>,
    history: History,
}

impl<'a> World<'a> {
    /// Runs a trace under a policy.
    pub fn run(trace: &'a Trace, policy: &mut dyn Policy, seed: u64) -> History {
        let first = policy.first(trace);
        let mut world = World {
            trace,
            now: 0.0,
            events: BinaryHeap::new(),
            kinds: Vec::new(),
            free: Vec::new(),
            ordered: 0,
            random: fastrand::Rng::with_seed(seed),
            workers: Vec::new(),
            serving: Vec::new(),
            wanted: 0,
            run: 0,
            alive: false,
            ranks: Vec::new(),
            step: Step::default(),
            next_checkpoint: trace.checkpoint.map_or(f64::INFINITY, |(every, _)| every),
            reports: BTreeMap::new(),
            bins: vec![0.0; (trace.seconds / SCRAPE_EVERY) as usize + 2],
            history: History::default(),
        };
        world.order(first);
        // One worker is there when the training begins; a larger first size is ordered with it.
        world.workers[0].life = Life::Ready;
        world.refresh();
        world.begin();
        for phase in 0..8 {
            world.at(REPORT_EVERY * f64::from(phase) / 8.0, Event::Report { phase });
        }
        world.at(HEDGE_AFTER, Event::Hedge);
        // The pipeline was there before its training: a policy has seen it once.
        world.scrape(policy);
        let _ = policy.decide(&world.view());
        world.at(SCRAPE_EVERY, Event::Scrape);
        // Whoever decides has just looked.
        world.at(policy.every() + LOOKED, Event::Decide);
        for loss in &trace.losses {
            world.at(*loss, Event::Loss);
        }
        if let Some((dies, pause)) = trace.restart {
            world.at(dies, Event::Die);
            world.at(dies + pause, Event::Start);
        }
        while let Some(Reverse((time, _, slot))) = world.events.pop() {
            let time = time as f64 / 1e6;
            if time > trace.seconds {
                break;
            }
            world.now = time;
            let event = world.kinds[slot];
            world.free.push(slot);
            world.happen(event, policy);
        }
        world.now = trace.seconds;
        world.finish()
    }

    fn finish(mut self) -> History {
        for worker in 0..self.workers.len() {
            self.pay(worker);
        }
        let pause = self.trace.restart.map_or(0.0, |(_, pause)| pause);
        self.history.meant += self.trace.seconds - pause;
        self.history.computing = self.bins;
        self.history
    }

    fn at(&mut self, time: f64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.kinds[slot] = event;
                slot
            }
            None => {
                self.kinds.push(event);
                self.kinds.len() - 1
            }
        };
        self.ordered += 1;
        self.events.push(Reverse(((time.max(self.now) * 1e6) as u64, self.ordered, slot)));
    }

    /// Roughly normal: the sum of three, within three deviations.
    fn noise(&mut self, deviation: f64) -> f64 {
        let sum: f64 = (0..3).map(|_| self.random.f64() * 2.0 - 1.0).sum();
        (1.0 + deviation * sum).max(0.05)
    }

    fn happen(&mut self, event: Event, policy: &mut dyn Policy) {
        match event {
            Event::Made { worker, run, rank, batch } => self.made(worker, run, rank, batch),
            Event::Ask { run, rank, batch } if run == self.run && self.alive => self.ask(rank, batch),
            Event::Computed { run, rank } if run == self.run && self.alive => self.arrive(rank),
            Event::Released { run } if run == self.run && self.alive => self.release(),
            Event::Ask { .. } | Event::Computed { .. } | Event::Released { .. } => {}
            Event::Ready { worker } => {
                if self.workers[worker].life == Life::Starting {
                    self.workers[worker].life = Life::Ready;
                    self.refresh();
                }
            }
            Event::Report { phase } => {
                self.report(phase as usize);
                self.at(self.now + REPORT_EVERY, event);
            }
            Event::Hedge => {
                self.hedge();
                self.at(self.now + HEDGE_AFTER, event);
            }
            Event::Scrape => {
                self.scrape(policy);
                self.at(self.now + SCRAPE_EVERY, event);
            }
            Event::Decide => {
                let view = self.view();
                let (wanted, reason) = policy.decide(&view);
                *self.history.reasons.entry(reason).or_default() += 1;
                self.order(wanted);
                self.refresh();
                self.at(self.now + policy.every(), event);
            }
            Event::Loss => self.lose(),
            Event::Die => {
                self.alive = false;
                // Nobody waits for what it has asked for, so nobody makes it.
                self.ranks.clear();
                for worker in &mut self.workers {
                    worker.queue.clear();
                }
            }
            Event::Start => {
                self.run += 1;
                self.begin();
            }
        }
    }

    // Ranks.

    fn begin(&mut self) {
        self.alive = true;
        let run = self.run;
        self.ranks = vec![Rank::default(); RANKS];
        self.step = Step { began: self.now, longest: 0.0, done: 0 };
        for rank in 0..RANKS {
            self.ranks[rank].waiting_since = Some(self.now);
            for batch in 0..WINDOW as u64 {
                self.at(self.now, Event::Ask { run, rank, batch });
            }
            self.ranks[rank].asked = WINDOW as u64;
        }
    }

    fn ask(&mut self, rank: usize, batch: u64) {
        let Some(worker) = self.place(batch * RANKS as u64 + rank as u64) else {
            self.at(self.now + SUSPECT_AFTER, Event::Ask { run: self.run, rank, batch });
            return;
        };
        self.workers[worker].queue.insert((batch, rank));
        self.make_next(worker);
    }

    /// A worker that is free begins what is needed first.
    fn make_next(&mut self, worker: usize) {
        if self.workers[worker].making.is_some() {
            return;
        }
        let Some((batch, rank)) = self.workers[worker].queue.pop_first() else {
            if self.workers[worker].life == Life::Draining {
                self.pay(worker);
            }
            return;
        };
        let noise = self.noise(BATCH_NOISE);
        let sample = self.trace.sample_at(self.now) / self.workers[worker].speed;
        let end = self.now + MICRO_BATCH as f64 * sample / f64::from(CORES) * noise;
        self.workers[worker].making = Some((batch, rank, self.now, end));
        self.at(end, Event::Made { worker, run: self.run, rank, batch });
    }

    /// Whoever waits for a batch that a worker has not begun asks another one that has less to do.
    fn hedge(&mut self) {
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
    fn ahead(&self, worker: usize) -> f64 {
        let worker = &self.workers[worker];
        (worker.queue.len() + usize::from(worker.making.is_some())) as f64
    }

    /// Striping, and away from a worker that has much more ahead of it.
    fn place(&self, range: u64) -> Option<usize> {
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

    fn made(&mut self, worker: usize, run: u32, rank: usize, batch: u64) {
        if self.workers[worker].life == Life::Gone {
            return;
        }
        if let Some((_, _, begun, _)) = self.workers[worker].making.take() {
            self.workers[worker].busy_ms += (self.now - begun) * 1000.0 * f64::from(CORES);
        }
        self.workers[worker].samples += MICRO_BATCH;
        self.workers[worker].batches += 1;
        self.make_next(worker);
        if run == self.run && self.alive {
            self.ranks[rank].arrived.insert(batch);
            self.hand_out(rank);
        }
    }

    /// A rank that waits gets its next batch when that is there.
    fn hand_out(&mut self, rank: usize) {
        let next = self.ranks[rank].used;
        let Some(since) = self.ranks[rank].waiting_since else { return };
        if !self.ranks[rank].arrived.remove(&next) {
            return;
        }
        let slow = if rank == 0 { self.trace.slow_rank_at(self.now) } else { 1.0 };
        // One noise for all ranks of a step would be a slow step; each has its own share of it.
        let own = self.trace.step_at(self.now) * slow * self.noise(STEP_NOISE / 3.0);
        let now = self.now;
        let state = &mut self.ranks[rank];
        state.waited += now - since;
        state.waiting_since = None;
        state.handed_out_at = Some(now);
        state.used += 1;
        let batch = state.asked;
        state.asked += 1;
        self.step.longest = self.step.longest.max(own);
        self.at(now + own, Event::Computed { run: self.run, rank });
        self.ask(rank, batch);
    }

    fn arrive(&mut self, rank: usize) {
        self.ranks[rank].arrived_at_barrier = true;
        self.step.done += 1;
        if self.step.done < RANKS {
            return;
        }
        let mut release = self.now;
        if let Some((every, pause)) = self.trace.checkpoint
            && self.now >= self.next_checkpoint
        {
            self.next_checkpoint = self.now + every;
            release += pause;
            self.history.meant -= pause.min(self.trace.seconds - self.now);
        }
        self.at(release, Event::Released { run: self.run });
        // What was computed, over the time that the step took.
        let (began, computed) = (self.step.began, self.step.longest);
        self.history.computed += computed;
        self.history.steps += 1;
        self.spread(began, self.now, computed);
        if release > self.now {
            // A pause is no waiting: as if it had computed.
            self.spread(self.now, release, release - self.now);
        }
    }

    fn spread(&mut self, from: f64, to: f64, computed: f64) {
        let density = computed / (to - from).max(1e-9);
        let mut at = from;
        while at < to {
            let bin = (at / SCRAPE_EVERY) as usize;
            let end = ((bin + 1) as f64 * SCRAPE_EVERY).min(to);
            if let Some(share) = self.bins.get_mut(bin) {
                *share += density * (end - at) / SCRAPE_EVERY;
            }
            at = end;
        }
    }

    fn release(&mut self) {
        let now = self.now;
        let span = now - self.step.began;
        self.step = Step { began: now, longest: 0.0, done: 0 };
        for rank in 0..RANKS {
            let state = &mut self.ranks[rank];
            if let Some(handed_out) = state.handed_out_at.take() {
                state.computed += now - handed_out;
                state.last_steps.push_back(now - handed_out);
                if state.last_steps.len() > 3 {
                    state.last_steps.pop_front();
                }
                state.trained += RANKS as u64 * MICRO_BATCH;
                state.step_seconds += span;
            }
            state.arrived_at_barrier = false;
            state.waiting_since = Some(now);
            self.hand_out(rank);
        }
    }

    fn report(&mut self, phase: usize) {
        if !self.alive {
            return;
        }
        let now = self.now;
        for rank in (phase..RANKS).step_by(8) {
            let state = &mut self.ranks[rank];
            state.sequence += 1;
            let waiting = state.waiting_since.map_or(0.0, |since| now - since);
            let ms = |seconds: f64| (seconds * 1000.0) as u64;
            let report = RankReport {
                run: format!("sim-{}", self.run),
                stream: STREAM.into(),
                plan: PLAN.into(),
                rank: rank as u32,
                size: RANKS as u32,
                ready: state.arrived.len() as u32,
                target: WINDOW as u32,
                waiting_ms: ms(waiting),
                wait_ms: 0,
                step_ms: ms(std::mem::take(&mut state.step_seconds)),
                waited_ms: ms(state.waited + waiting),
                computed_ms: ms(state.computed),
                trained: state.trained,
                quickest_us: state
                    .last_steps
                    .iter()
                    .copied()
                    .reduce(f64::min)
                    .map_or(0, |seconds| (seconds * 1e6) as u64),
                quickest_samples: RANKS as u64 * MICRO_BATCH,
                consumed: state.trained,
                sequence: state.sequence,
                farewell: false,
                begin: None,
            };
            self.reports.insert((self.run, rank), (now, report));
        }
    }

    // Workers.

    fn order(&mut self, wanted: u32) {
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

    fn start(&mut self, later: f64) {
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
        let (least, most) = POD_START;
        let ready = self.now + later + least + (most - least) * self.random.f64();
        self.at(ready, Event::Ready { worker: index });
    }

    /// Ends a worker and counts what it has cost.
    fn pay(&mut self, worker: usize) {
        if self.workers[worker].life != Life::Gone {
            self.history.worker_seconds += self.now - self.workers[worker].ordered_at;
            self.workers[worker].life = Life::Gone;
        }
    }

    fn lose(&mut self) {
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

    fn refresh(&mut self) {
        let workers = &self.workers;
        self.serving.clear();
        self.serving.extend((0..workers.len()).filter(|worker| workers[*worker].life == Life::Ready));
    }

    // What is seen.

    fn count(&self, life: Life) -> u32 {
        self.workers.iter().filter(|worker| worker.life == life).count() as u32
    }

    fn view(&self) -> View<'_> {
        View { now: self.now, trace: self.trace, wanted: self.wanted, ready: self.count(Life::Ready) }
    }

    fn scrape(&mut self, policy: &mut dyn Policy) {
        let now = self.now;
        self.reports.retain(|_, (at, _)| now - *at < REPORT_LIFE);
        let mut kept: Vec<KeptReport> = self
            .reports
            .values()
            .map(|(at, report)| KeptReport { age_ms: ((now - at) * 1000.0) as u64, report: report.clone() })
            .collect();
        let statuses: Vec<(String, WorkerStatus)> = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, worker)| worker.life == Life::Ready)
            .map(|(index, worker)| {
                let half_done = worker.making.map_or(0.0, |(_, _, begun, _)| now - begun);
                let waiting = worker.queue.len() + usize::from(worker.making.is_some());
                let status = WorkerStatus {
                    worker: format!("w{index:06}"),
                    version: String::new(),
                    state: WorkerState::Ready,
                    doing: None,
                    cores: CORES,
                    streams: BTreeMap::new(),
                    work_ahead: waiting as u64 * MICRO_BATCH,
                    ready: 0,
                    batches: worker.batches,
                    samples: worker.samples,
                    bytes_out: 0,
                    bytes_in: 0,
                    busy_ms: (worker.busy_ms + half_done * 1000.0 * f64::from(CORES)) as u64,
                    bad: BTreeMap::new(),
                    problems: Vec::new(),
                    agent: None,
                    reports: std::mem::take(&mut kept),
                };
                (status.worker.clone(), status)
            })
            .collect();
        policy.scrape(&statuses, now);
        self.history.wanted.push(self.wanted);
        self.history.ready.push(statuses.len() as u32);
    }
}
