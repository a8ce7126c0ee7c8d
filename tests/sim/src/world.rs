//! Takes a trace and a policy, gives what happened. Discrete events; every random number comes from the seed.
//!
//! A worker makes its batches one after another, in the order in which they were asked for. A rank keeps a window of batches asked for or
//! in hand and uses them in order; ranks go into a step together. Ranges are striped over workers as the client does it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedmill_protocol::report::RankReport;

use crate::policy::Policy;
use crate::trace::Trace;

/// What ranks do.
mod ranks;
/// What is seen of it all.
mod seen;
/// What workers do.
mod workers;

/// The plan of the simulated stream.
pub const PLAN: &str = "sha256:sim";
/// Its name.
pub const STREAM: &str = "train";

/// Ranks report so often.
const REPORT_EVERY: f64 = 2.0;
/// Workers are asked so often.
pub const SCRAPE_EVERY: f64 = 5.0;
/// A rank that has waited so long for a batch asks another worker for it.
const HEDGE_AFTER: f64 = 0.5;
/// From the look to the decision.
const LOOKED: f64 = 0.001;

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
    Computed { run: u32 },
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
    /// What it is making: batch, rank, begun.
    making: Option<(u64, usize, f64)>,
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
    /// By time, then by the order in which they were planned.
    events: BTreeMap<(u64, u64), Event>,
    planned: u64,
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
            events: BTreeMap::new(),
            planned: 0,
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
        while let Some(((time, _), event)) = world.events.pop_first() {
            let time = time as f64 / 1e6;
            if time > trace.seconds {
                break;
            }
            world.now = time;
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
        self.planned += 1;
        self.events.insert(((time.max(self.now) * 1e6) as u64, self.planned), event);
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
            Event::Computed { run } if run == self.run && self.alive => self.arrive(),
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
}
