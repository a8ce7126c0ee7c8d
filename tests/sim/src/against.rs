//! Takes a feedmill program, gives what a real `feedmill local --autoscale` waits and how large it makes its fleet, and what the simulation of the
//! same training says.
//!
//! Workers are throttled, so that what a fleet makes is proportional to its size also on two cores. The simulation gets three figures that a run
//! with one worker has measured: seconds of a sample, seconds until a new worker is ready, and the step that was asked for. Its windows are 10 s
//! long and the real ones two, so it lives five times as long; waiting and sizes are shares and counts.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::measure::one;
use crate::policy::Ours;
use crate::trace::{Shape, Trace};

/// What the quickstart reads.
const PIPELINE: &str = "examples/quickstart/pipeline.yaml";
const BUCKET: &str = "quickstart=examples/quickstart/bucket";

const RANKS: usize = 4;
const MICRO_BATCH: u64 = 4;
const WINDOW: usize = 4;
/// Milliseconds of a real window.
const DECIDES_MS: u64 = 2000;
/// Simulated seconds in a real one.
const SLOWER: f64 = 10_000.0 / DECIDES_MS as f64;

/// Seconds of a real run, about.
const SECONDS: f64 = 100.0;
/// Steps of the run that measures one worker.
const ALONE: u64 = 40;
/// So many workers' worth of samples are wanted.
const NEED: f64 = 4.0;
/// What is said of a run is the mean of so many simulated ones.
const SEEDS: u64 = 5;
/// Real and simulated differ by so much at most.
const NEAR: f64 = 0.2;

/// What a run of one worker has measured.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// Seconds of a sample.
    sample: f64,
    /// Seconds from the start of a worker to its first sample.
    start: f64,
}

/// Share of all time that ranks waited, and workers on average.
#[derive(Clone, Copy, Debug)]
struct Figures {
    wait: f64,
    size: f64,
    seconds: f64,
}

/// Runs both, prints what came of it and one line of JSON.
///
/// # Errors
/// A run that does not end well.
pub fn against_local(program: &Path) -> anyhow::Result<()> {
    let alone = alone(program)?;
    let step_ms = (1000.0 * global_batch() * alone.sample / NEED).round() as u64;
    println!(
        "one worker takes {:.1} ms for a sample and {:.1} s to start; {NEED} of them are needed for a step in {step_ms} ms\n",
        1000.0 * alone.sample,
        alone.start
    );
    println!("| most workers | waiting, real / simulated | | workers, real / simulated | | |");
    println!("|---|---|---|---|---|---|");
    let mut cases = Vec::new();
    let mut all = true;
    for most in [8, 2] {
        let real = real(program, most, step_ms)?;
        let simulated = simulated(alone, most, step_ms, real.seconds);
        let (wait, size) = (simulated.wait / real.wait.max(1e-9), simulated.size / real.size.max(1e-9));
        let held = [wait, size].iter().all(|ratio| (ratio - 1.0).abs() <= NEAR);
        all &= held;
        println!(
            "| {most} | {:.1} % / {:.1} % | {wait:.2} | {:.2} / {:.2} | {size:.2} | {} |",
            100.0 * real.wait,
            100.0 * simulated.wait,
            real.size,
            simulated.size,
            if held { "held" } else { "**missed**" }
        );
        cases.push(json!({
            "most": most, "wait": real.wait, "simulated_wait": simulated.wait, "wait_ratio": wait,
            "size": real.size, "simulated_size": simulated.size, "size_ratio": size, "held": held,
        }));
    }
    println!(
        "\n{}",
        json!({
            "bench": "autoscaling_against_local", "sample_ms": 1000.0 * alone.sample, "start_s": alone.start,
            "step_ms": step_ms, "near": NEAR, "cases": cases, "held": all,
        })
    );
    Ok(())
}

fn global_batch() -> f64 {
    RANKS as f64 * MICRO_BATCH as f64
}

fn alone(program: &Path) -> anyhow::Result<Alone> {
    let steps = ALONE.to_string();
    let report = local(program, &["--workers", "1", "--step-ms", "1", "--steps", &steps])?;
    let sample = 1.0 / number(&report, "samples_per_second")?.max(1e-6);
    // Every rank's first batch is made one after another.
    let start = number(&report, "first_batch_s")? - global_batch() * sample;
    Ok(Alone { sample, start: start.max(0.1) })
}

fn real(program: &Path, most: u32, step_ms: u64) -> anyhow::Result<Figures> {
    // Ranks that wait make fewer steps in the same time.
    let served = (f64::from(most) / NEED).min(1.0);
    let steps = (SECONDS * 1000.0 / step_ms.max(1) as f64 * served).round().to_string();
    let (most, step, window) = (most.to_string(), step_ms.to_string(), DECIDES_MS.to_string());
    let report = local(
        program,
        &[
            "--workers",
            "1",
            "--autoscale",
            "--max-workers",
            &most,
            "--scaling-window-ms",
            &window,
            "--step-ms",
            &step,
            "--steps",
            &steps,
        ],
    )?;
    let first = number(&report, "first_wait_s")?;
    let running = number(&report, "running_s")?;
    // All steps but the first one, whose wait is told apart.
    let steady = running - step_ms as f64 / 1000.0;
    let waited = first + number(&report, "wait_ratio")? * steady;
    let seconds = first + running;
    let size = number(&report["autoscale"], "worker_seconds")? / seconds;
    Ok(Figures { wait: waited / seconds, size, seconds })
}

fn simulated(alone: Alone, most: u32, step_ms: u64, seconds: f64) -> Figures {
    let start = alone.start * SLOWER;
    let trace = Trace {
        shape: Shape {
            ranks: RANKS,
            micro_batch: MICRO_BATCH,
            window: WINDOW,
            cores: 1,
            start: (0.9 * start, 1.1 * start),
        },
        seconds: seconds * SLOWER,
        step: vec![(0.0, step_ms as f64 / 1000.0 * SLOWER)],
        sample: vec![(0.0, alone.sample * SLOWER)],
        ..Trace::plain("local", "feedmill local")
    };
    let mean = |figure: &dyn Fn(u64) -> f64| (0..SEEDS).map(figure).sum::<f64>() / SEEDS as f64;
    let runs: Vec<_> = (0..SEEDS).map(|seed| one(&trace, &mut Ours::up_to(most), seed).history).collect();
    let run = |seed: u64| runs.get(seed as usize);
    Figures {
        wait: mean(&|seed| run(seed).map_or(0.0, |run| 1.0 - run.computed / run.meant.max(1e-9))),
        size: mean(&|seed| run(seed).map_or(0.0, |run| run.worker_seconds / trace.seconds)),
        seconds,
    }
}

/// Runs `feedmill local` on the quickstart's data with throttled workers; its report.
fn local(program: &Path, more: &[&str]) -> anyhow::Result<Value> {
    let report = std::env::temp_dir().join(format!("feedmill-sim-{}.json", std::process::id()));
    let (ranks, micro_batch, window) = (RANKS.to_string(), MICRO_BATCH.to_string(), WINDOW.to_string());
    let mut run = Command::new(program)
        .args(["local", PIPELINE, "--embedded-s3", BUCKET, "--threads-per-worker", "1", "--ranks", &ranks])
        .args(["--micro-batch", &micro_batch, "--window", &window])
        .args(more)
        .arg("--json")
        .arg(&report)
        // Its standard output is this one's table.
        .stdout(std::io::stderr())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let throttle = Command::new(std::env::current_exe()?)
        .args(["--throttle", &run.id().to_string()])
        .stdin(Stdio::piped())
        .spawn();
    let ended = run.wait()?;
    let mut throttle = throttle.context("cannot start this program again")?;
    drop(throttle.stdin.take());
    throttle.wait()?;
    ensure!(ended.success(), "feedmill local {} has failed: {ended}", more.join(" "));
    let text = std::fs::read(&report).with_context(|| format!("cannot read {}", report.display()))?;
    drop(std::fs::remove_file(&report));
    Ok(serde_json::from_slice(&text)?)
}

fn number(report: &Value, name: &str) -> anyhow::Result<f64> {
    report[name].as_f64().with_context(|| format!("the report of feedmill local has no {name}"))
}
