//! Takes what happened under each policy, gives what it lost and cost, and how it took changes.

use crate::goals::Sample;
use crate::policy::{self, Policy};
use crate::trace::Trace;
use crate::world::{History, SCRAPE_EVERY, World};

/// Dollars for an hour of one GPU, of the kind that is rented by the eight.
pub const GPU_HOUR: f64 = 2.50;
/// Dollars for an hour of a worker: four threads and their memory.
pub const WORKER_HOUR: f64 = 0.17;

/// Within so much of the oracle's throughput a change is over.
const NEAR: f64 = 0.95;

/// One policy on one trace.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy.
    pub policy: &'static str,
    /// GPU-hours in which it was meant to compute and waited.
    pub lost_gpu_hours: f64,
    /// Worker-hours paid for.
    pub worker_hours: f64,
    /// For each jump of the trace: seconds until it was over, and the most workers in the ten minutes from then.
    pub ramps: Vec<(f64, Option<f64>, u32)>,
    /// Changes of the size, the beginning left out.
    pub changes: usize,
    /// The most changes in any ten minutes of the last two thirds.
    pub most_changes: usize,
    /// Everything.
    pub history: History,
}

impl Outcome {
    /// Both in money.
    #[must_use]
    pub fn dollars(&self) -> f64 {
        self.lost_gpu_hours * GPU_HOUR + self.worker_hours * WORKER_HOUR
    }
}

/// Runs all these traces under every policy, once for each seed; seeds run beside each other.
#[must_use]
pub fn sample(traces: &[Trace], seeds: &[u64]) -> Vec<Sample> {
    let one = |seed: u64| Sample {
        seed,
        all: traces.iter().map(|trace| (trace.clone(), compare(trace, seed))).collect(),
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = seeds.iter().map(|seed| scope.spawn(move || one(*seed))).collect();
        let ended = |seed: std::thread::ScopedJoinHandle<'_, Sample>| seed.join();
        running
            .into_iter()
            .map(|seed| ended(seed).unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs one trace under every policy.
#[must_use]
pub fn compare(trace: &Trace, seed: u64) -> Vec<Outcome> {
    policy::all().into_iter().map(|mut policy| one(trace, policy.as_mut(), seed)).collect()
}

/// Runs one trace under one policy.
pub fn one(trace: &Trace, policy: &mut dyn Policy, seed: u64) -> Outcome {
    let history = World::run(trace, policy, seed);
    let lost = (history.meant - history.computed).max(0.0) * trace.shape.ranks as f64 / 3600.0;
    let ramps = trace.changes().into_iter().map(|at| ramp(&history, at)).collect();
    let later: Vec<f64> =
        history.changes.iter().map(|(at, _)| *at).filter(|at| *at > trace.seconds / 3.0).collect();
    let most_changes =
        later.iter().map(|from| later.iter().filter(|at| (*from..from + 600.0).contains(*at)).count()).max();
    Outcome {
        policy: policy.name(),
        lost_gpu_hours: lost,
        worker_hours: history.worker_seconds / 3600.0,
        ramps,
        changes: history.changes.len().saturating_sub(1),
        most_changes: most_changes.unwrap_or(0),
        history,
    }
}

fn ramp(history: &History, at: f64) -> (f64, Option<f64>, u32) {
    let first = (at / SCRAPE_EVERY) as usize;
    let shares = history.computing.get(first..).unwrap_or_default();
    let near = |bin: usize| shares.get(bin).is_none_or(|share| *share >= NEAR);
    // Queues that were full hide a change for some seconds: it is over when it stays so after it has been noticed.
    let span = shares.len().min(120);
    let noticed = (0..span.min(12)).find(|bin| !near(*bin));
    let over = match noticed {
        None => Some(0.0),
        Some(noticed) => (noticed..span)
            .find(|bin| near(*bin) && near(bin + 1) && near(bin + 2))
            .map(|bin| bin as f64 * SCRAPE_EVERY),
    };
    let most = history.wanted.iter().skip(first).take(120).copied().max().unwrap_or(0);
    (at, over, most)
}
