//! How long one round takes for all pipelines of a cluster: answers of workers to decisions.
//!
//! `cargo bench -p feedmill-scaler --bench decide` prints a line for people and one JSON line.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on fails here")]

use std::collections::BTreeMap;

use feedmill_protocol::report::{KeptReport, RankReport, WorkerState, WorkerStatus};
use feedmill_scaler::signals::Fleet;
use feedmill_scaler::{Observer, ScalingSpec, Scrape, Signals, State, Stream, decide};
use rustix::time::{ClockId, clock_gettime};

const PIPELINES: usize = 500;
const WORKERS: u32 = 200;
const RANKS: u32 = 512;
const WINDOWS: u64 = 12;
const PLAN: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn report(rank: u32, window: u64) -> KeptReport {
    let noise = u64::from(rank % 7);
    KeptReport {
        age_ms: u64::from(rank % 20) * 100,
        report: RankReport {
            run: "qwen3vl-sft-0".into(),
            stream: "train".into(),
            plan: PLAN.into(),
            rank,
            size: RANKS,
            process: String::new(),
            ready: 3,
            target: 4,
            waiting_ms: 0,
            wait_ms: 0,
            step_ms: 2000,
            waited_ms: 10 * window,
            computed_ms: window * 10_000 + noise,
            trained: window * 10 * 2048,
            quickest_us: 0,
            quickest_samples: 0,
            consumed: window * 10 * 2048,
            sequence: window * 5 + 1,
            farewell: false,
            begin: None,
        },
    }
}

fn status(worker: u32, window: u64) -> WorkerStatus {
    WorkerStatus {
        worker: format!("w{worker}"),
        version: "0.1.0".into(),
        state: WorkerState::Ready,
        doing: None,
        cores: 4,
        streams: BTreeMap::new(),
        work_ahead: 10,
        ready: 5,
        batches: window * 30,
        samples: window * 100,
        bytes_out: 0,
        bytes_in: 0,
        busy_ms: window * 25_000 + u64::from(worker % 5) * 100,
        bad: BTreeMap::new(),
        problems: Vec::new(),
        agent: None,
        // One home for the run.
        reports: if worker == 0 { (0..RANKS).map(|rank| report(rank, window)).collect() } else { Vec::new() },
    }
}

fn main() {
    let spec = ScalingSpec::default();
    let names: Vec<String> =
        (0..WORKERS).map(|worker| format!("qwen3vl-sft-7d9f8b6c5d-{worker:05}")).collect();
    let stream = Stream { name: "train".into(), plan: PLAN.into() };
    let mut observers = vec![Observer::new(vec![stream], 15_000); PIPELINES];
    let mut states: Vec<Option<State>> = vec![None; PIPELINES];
    let (mut taking, mut ending, mut deciding) = (Vec::new(), Vec::new(), Vec::new());
    let mut replicas = 0u64;
    for window in 1..=WINDOWS {
        // Every pipeline's answers lie elsewhere in memory, as real ones do.
        let answers: Vec<Vec<WorkerStatus>> =
            (0..PIPELINES).map(|_| (0..WORKERS).map(|worker| status(worker, window)).collect()).collect();
        let now = window * 10_000;
        let begin = cpu_ms();
        for (observer, statuses) in observers.iter_mut().zip(&answers) {
            let scrapes: Vec<Scrape<'_>> = names
                .iter()
                .zip(statuses)
                .map(|(worker, status)| Scrape { worker, at_ms: now, status: Some(status) })
                .collect();
            observer.take(&scrapes);
        }
        taking.push(cpu_ms() - begin);
        let begin = cpu_ms();
        let signals: Vec<Signals> = observers
            .iter_mut()
            .map(|observer| {
                let fleet = Fleet { replicas: Some(WORKERS), ready: WORKERS, rollout: false };
                observer.window(fleet, now)
            })
            .collect();
        ending.push(cpu_ms() - begin);
        let begin = cpu_ms();
        for (signals, state) in signals.iter().zip(&mut states) {
            let decision = decide(&spec, signals, state.as_ref(), now);
            replicas += u64::from(decision.replicas);
            *state = Some(decision.state);
        }
        deciding.push(cpu_ms() - begin);
    }
    assert!(replicas >= WINDOWS * PIPELINES as u64);
    let (take, end, decide) = (median(&mut taking), median(&mut ending), median(&mut deciding));
    println!("{PIPELINES} pipelines x {WORKERS} workers x {RANKS} ranks, CPU ms of one thread:");
    println!("  reading one round of answers {take:.1}, ending a window {end:.1}, deciding {decide:.2}");
    println!(
        "{{\"bench\": \"scaler_decide\", \"pipelines\": {PIPELINES}, \"workers\": {WORKERS}, \"ranks\": {RANKS}, \"take_cpu_ms\": {take:.2}, \"window_cpu_ms\": {end:.2}, \"decide_cpu_ms\": {decide:.3}}}"
    );
}

/// CPU time of this thread: steadier than a clock on a machine that others use.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
