//! Takes what can be seen of a fleet, gives how many workers there should be: the scaler itself, and what people use instead.

use std::collections::{HashMap, VecDeque};

use feedmill_protocol::report::WorkerStatus;
use feedmill_scaler::signals::Fleet;
use feedmill_scaler::{Observer, ScalingSpec, State, Stream, decide};

use crate::trace::{SHAPE, Trace};
use crate::world::{PLAN, STREAM};

/// Most workers that any policy may ask for.
pub const MAX: u32 = 200;

/// What a policy may look at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Seconds since the beginning.
    pub now: f64,
    /// What is really going on; for oracles only.
    pub trace: &'a Trace,
    /// Workers that are wanted now.
    pub wanted: u32,
    /// Those that are ready.
    pub ready: u32,
}

/// Decides.
pub trait Policy {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// How many at the beginning.
    fn first(&self, _trace: &Trace) -> u32 {
        1
    }
    /// How often it decides, in seconds.
    fn every(&self) -> f64 {
        10.0
    }
    /// What workers say, every few seconds.
    fn scrape(&mut self, _statuses: &[(String, WorkerStatus)], _now: f64) {}
    /// How many from now on, and why.
    fn decide(&mut self, view: &View<'_>) -> (u32, String);
}

/// What is needed with the scaler's headroom: what both oracles ask for.
#[must_use]
pub fn needed(demand: f64, capacity: f64) -> u32 {
    ((1.15 * demand / (0.8 * capacity)).ceil() as u32).clamp(1, MAX)
}

/// So many of [`all`] are ours or know what is going on; the rest are rivals.
pub const KNOWING: usize = 4;

/// A size that somebody has measured once, for the training that most traces begin with.
const FIXED: u32 = 20;

/// All that are compared; ours is the first, those that know what nobody can know follow it.
#[must_use]
pub fn all() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Ours::new()),
        Box::new(Oracle { bounded: true }),
        Box::new(Oracle { bounded: false }),
        Box::new(Fixed { peak: true }),
        Box::new(Fixed { peak: false }),
        Box::new(Hpa::new(true)),
        Box::new(Hpa::new(false)),
        Box::new(OneMore::default()),
    ]
}

/// The scaler, fed with what workers answer.
pub struct Ours {
    spec: ScalingSpec,
    observer: Observer,
    state: Option<State>,
}

impl Ours {
    /// With defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::up_to(MAX)
    }

    /// With defaults and so many workers at most.
    #[must_use]
    pub fn up_to(max: u32) -> Self {
        let spec = ScalingSpec { max, ..ScalingSpec::default() };
        let stream = Stream { name: STREAM.into(), plan: PLAN.into() };
        Self { observer: Observer::new(vec![stream], spec.reports.stale_after_ms), spec, state: None }
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

fn ms(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

impl Policy for Ours {
    fn name(&self) -> &'static str {
        "feedmill"
    }

    fn scrape(&mut self, statuses: &[(String, WorkerStatus)], now: f64) {
        let scrapes: Vec<feedmill_scaler::Scrape<'_>> = statuses
            .iter()
            .map(|(worker, status)| feedmill_scaler::Scrape { worker, at_ms: ms(now), status: Some(status) })
            .collect();
        self.observer.take(&scrapes);
    }

    fn decide(&mut self, view: &View<'_>) -> (u32, String) {
        let fleet = Fleet { replicas: Some(view.wanted), ready: view.ready, rollout: false };
        let signals = self.observer.window(fleet, ms(view.now));
        let decision = decide(&self.spec, &signals, self.state.as_ref(), ms(view.now));
        self.state = Some(decision.state);
        (decision.replicas, decision.reason.label().into())
    }
}

/// Knows what is needed, from the end of the first whole window after a change on.
struct Oracle {
    /// At most four times as many at once, as everybody; without it, at once.
    bounded: bool,
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        if self.bounded { "oracle" } else { "oracle without step bound" }
    }

    fn decide(&mut self, view: &View<'_>) -> (u32, String) {
        // The window that has just ended must have begun after the change.
        let seen = view.now - self.every();
        let (demand, capacity) = (view.trace.demand_at(seen), view.trace.capacity_at(seen));
        let size = if demand > 0.0 { needed(demand, capacity) } else { view.wanted };
        let step = (view.wanted * 4).min(view.wanted + 500);
        (if self.bounded { size.min(step) } else { size }, String::new())
    }
}

/// One size for all time.
struct Fixed {
    /// What the worst moment of the trace will need; nobody knows that before. Else one size for all traces.
    peak: bool,
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        if self.peak { "fixed, knowing the peak" } else { "fixed, 20 workers" }
    }

    fn first(&self, trace: &Trace) -> u32 {
        if !self.peak {
            return FIXED;
        }
        let moments = (0..trace.seconds as u32).step_by(10).map(f64::from);
        moments.map(|at| needed(trace.demand_at(at), trace.capacity_at(at))).max().unwrap_or(1)
    }

    fn decide(&mut self, view: &View<'_>) -> (u32, String) {
        (view.wanted, String::new())
    }
}

/// What simple policies look at, over the last scrapes.
#[derive(Default)]
struct Meters {
    busy: HashMap<String, (f64, u64)>,
    /// Share of CPU, mean over workers that are ready.
    utilization: f64,
    /// Mean over ranks.
    fill: f64,
    /// Mean over ranks' totals: seconds waited.
    waited: f64,
    wait: f64,
    at: f64,
}

impl Meters {
    fn take(&mut self, statuses: &[(String, WorkerStatus)], now: f64) {
        let mut shares = Vec::new();
        for (name, status) in statuses {
            if let Some((at, busy)) = self.busy.insert(name.clone(), (now, status.busy_ms)) {
                let possible = (now - at) * 1000.0 * f64::from(status.cores);
                shares.push(status.busy_ms.saturating_sub(busy) as f64 / possible.max(1.0));
            }
        }
        self.utilization = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        let fresh = |age: u64| age < 15_000;
        let reports =
            || statuses.iter().flat_map(|(_, status)| &status.reports).filter(|kept| fresh(kept.age_ms));
        let count = reports().count().max(1) as f64;
        self.fill =
            reports().map(|kept| f64::from(kept.report.ready) / f64::from(kept.report.target)).sum::<f64>()
                / count;
        let waited =
            reports().map(|kept| kept.report.waited_ms as f64 / 1000.0).sum::<f64>() / SHAPE.ranks as f64;
        self.wait = ((waited - self.waited) / (now - self.at).max(1.0)).clamp(0.0, 1.0);
        (self.waited, self.at) = (waited, now);
    }
}

/// Kubernetes' HorizontalPodAutoscaler: every 15 s, tolerance of a tenth, at most doubled or 4 more in 15 s, down only to the most of the
/// last 5 minutes.
struct Hpa {
    /// On CPU at 80 %; else on queues half full.
    cpu: bool,
    meters: Meters,
    wishes: VecDeque<(f64, u32)>,
}

impl Hpa {
    fn new(cpu: bool) -> Self {
        Self { cpu, meters: Meters::default(), wishes: VecDeque::new() }
    }
}

impl Policy for Hpa {
    fn name(&self) -> &'static str {
        if self.cpu { "HPA on CPU, 80 %" } else { "HPA on queue fill, 50 %" }
    }

    fn every(&self) -> f64 {
        15.0
    }

    fn scrape(&mut self, statuses: &[(String, WorkerStatus)], now: f64) {
        self.meters.take(statuses, now);
    }

    fn decide(&mut self, view: &View<'_>) -> (u32, String) {
        let ratio = if self.cpu {
            // Pods that are not ready count as idle when it would grow.
            let ratio = self.meters.utilization / 0.8;
            let idle = ratio * f64::from(view.ready) / f64::from(view.wanted.max(1));
            if ratio > 1.0 { idle.max(1.0) } else { ratio }
        } else {
            (1.0 - self.meters.fill) / 0.5
        };
        let from = view.wanted;
        let wish = if (ratio - 1.0).abs() <= 0.1 { from } else { (f64::from(from) * ratio).ceil() as u32 };
        self.wishes.push_back((view.now, wish));
        while self.wishes.front().is_some_and(|(at, _)| view.now - at > 300.0) {
            self.wishes.pop_front();
        }
        let stable = self.wishes.iter().map(|(_, wish)| *wish).max().unwrap_or(from);
        let wish = if wish < from { stable.min(from) } else { wish };
        (wish.min((from * 2).max(from + 4)).clamp(1, MAX), String::new())
    }
}

/// One more every 10 s while ranks wait, one less after five minutes without.
#[derive(Default)]
struct OneMore {
    meters: Meters,
    calm: u32,
}

impl Policy for OneMore {
    fn name(&self) -> &'static str {
        "+1 per 10 s"
    }

    fn scrape(&mut self, statuses: &[(String, WorkerStatus)], now: f64) {
        self.meters.take(statuses, now);
    }

    fn decide(&mut self, view: &View<'_>) -> (u32, String) {
        let waits = self.meters.wait > 0.02;
        self.calm = if waits { 0 } else { self.calm + 1 };
        let fewer = self.calm >= 30;
        if fewer {
            self.calm = 0;
        }
        ((view.wanted + u32::from(waits) - u32::from(fewer)).clamp(1, MAX), String::new())
    }
}
