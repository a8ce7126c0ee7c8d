//! Takes a feedmill program, gives what a real `feedmill local --autoscale` waits and how large it makes its fleet, and what the simulation of the
//! same training says.
//!
//! Workers are throttled, so that what a fleet makes is proportional to its size also on two cores. The simulation gets what one worker was
//! measured to need, seconds of each batch (a large picture takes as long as fifty small ones, and all ranks wait for it) and seconds until a
//! new worker is ready, and the step that was asked for. Its windows are 10 s long and the real ones two, so it lives five times as long;
//! waiting and sizes are shares and counts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::measure::one;
use crate::policy::Ours;
use crate::throttle::children;
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
/// Batches that one worker makes to be measured: about a third of an epoch.
const ALONE: u64 = 300;
/// A worker that starts says "again in a second" to whoever asks, who so learns up to a second late that it serves.
const NOTICED: f64 = 1.0;
/// So many workers' worth of samples are wanted.
const NEED: f64 = 4.0;
/// What is said of a run is the mean of so many simulated ones.
const SEEDS: u64 = 5;
/// Real and simulated differ by so much at most.
const NEAR: f64 = 0.2;

/// What one worker has needed.
#[derive(Clone, Debug)]
struct Alone {
    /// Seconds of each batch, from the stream's beginning.
    batches: Vec<f64>,
    /// Seconds from the start of a worker until it serves.
    start: f64,
}

impl Alone {
    /// Seconds of a sample.
    fn sample(&self) -> f64 {
        self.batches.iter().sum::<f64>() / (self.batches.len() as f64 * MICRO_BATCH as f64)
    }
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
    let step_ms = (1000.0 * global_batch() * alone.sample() / NEED).round() as u64;
    println!(
        "one worker takes {:.1} ms for a sample, {:.2} s for the slowest batch and {:.1} s to start; {NEED} of them are needed for a step in {step_ms} ms\n",
        1000.0 * alone.sample(),
        alone.batches.iter().copied().fold(0.0, f64::max),
        alone.start
    );
    println!("| most workers | waiting, real / simulated | | workers, real / simulated | | |");
    println!("|---|---|---|---|---|---|");
    let mut cases = Vec::new();
    let mut all = true;
    for most in [8, 2] {
        let real = real(program, most, step_ms)?;
        let simulated = simulated(&alone, most, step_ms, real.seconds);
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
            "bench": "autoscaling_against_local", "sample_ms": 1000.0 * alone.sample(), "start_s": alone.start,
            "step_ms": step_ms, "near": NEAR, "cases": cases, "held": all,
        })
    );
    Ok(())
}

fn global_batch() -> f64 {
    RANKS as f64 * MICRO_BATCH as f64
}

/// Starts one worker and asks it for one batch after another; then lets ranks that compute nothing read the same. A worker that has always
/// something to do loses no time between two batches, so all are shorter by what they took less together.
fn alone(program: &Path) -> anyhow::Result<Alone> {
    let folder = tempfile::tempdir()?;
    let list = folder.path().join("workers");
    let mut run = Running::start(program, &["--serve", "--workers", "1", "--workers-file"], Some(&list))?;
    run.served(&list)?;
    // The first one had begun before it was throttled, so another one takes its place.
    for worker in children(run.local.id())? {
        kill_process(worker, Signal::KILL)?;
    }
    let begun = now();
    let address = run.served(&list)?;
    let start = (now() - begun).as_secs_f64();
    let batches = (0..ALONE).map(|batch| {
        let begun = now();
        ask(&address, batch * MICRO_BATCH).map(|()| (now() - begun).as_secs_f64())
    });
    let batches = batches.collect::<anyhow::Result<Vec<f64>>>()?;
    run.interrupt()?;
    let steps = (ALONE / RANKS as u64).to_string();
    let report = local(program, &["--workers", "1", "--step-ms", "1", "--steps", &steps])?;
    let sample = 1.0 / number(&report, "samples_per_second")?.max(1e-6);
    let one_by_one = Alone { batches, start };
    let shorter = sample / one_by_one.sample();
    let batches = one_by_one.batches.iter().map(|seconds| seconds * shorter).collect();
    Ok(Alone { batches, start })
}

/// Reads one batch.
fn ask(address: &str, from: u64) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    let to = from + MICRO_BATCH;
    let request = format!(
        "GET /v1/streams/train/batches/{from}-{to} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "the worker does not give {from}-{to}: {}",
        String::from_utf8_lossy(answer.get(..300).unwrap_or(&answer))
    );
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
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

fn simulated(alone: &Alone, most: u32, step_ms: u64, seconds: f64) -> Figures {
    let trace = Trace {
        shape: Shape {
            ranks: RANKS,
            micro_batch: MICRO_BATCH,
            window: WINDOW,
            cores: 1,
            start: (alone.start * SLOWER, (alone.start + NOTICED) * SLOWER),
        },
        seconds: seconds * SLOWER,
        step: vec![(0.0, step_ms as f64 / 1000.0 * SLOWER)],
        sample: vec![(0.0, alone.sample() * SLOWER)],
        batches: alone.batches.iter().map(|seconds| seconds * SLOWER).collect(),
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

/// `feedmill local` on the quickstart's data, with throttled workers.
struct Running {
    local: Child,
    throttle: Child,
}

impl Running {
    fn start(program: &Path, more: &[&str], file: Option<&Path>) -> anyhow::Result<Self> {
        let mut local = Command::new(program)
            .args(["local", PIPELINE, "--embedded-s3", BUCKET, "--threads-per-worker", "1"])
            .args(more)
            .args(file)
            // Its standard output is this one's table.
            .stdout(std::io::stderr())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let throttle = Command::new(std::env::current_exe()?)
            .args(["--throttle", &local.id().to_string()])
            .stdin(Stdio::piped())
            .spawn();
        match throttle.context("cannot start this program again") {
            Ok(throttle) => Ok(Self { local, throttle }),
            Err(error) => {
                local.kill()?;
                Err(error)
            }
        }
    }

    /// Waits until the worker that the list names gives a batch; its address. One that was killed is asked in vain until another stands there.
    fn served(&mut self, list: &Path) -> anyhow::Result<String> {
        loop {
            let text = std::fs::read_to_string(list).unwrap_or_default();
            if let Some(address) = text.trim().strip_prefix("http://")
                && ask(address, 0).is_ok()
            {
                return Ok(address.to_owned());
            }
            ensure!(
                self.local.try_wait()?.is_none(),
                "feedmill local --serve has ended before its worker served"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as a person does.
    fn interrupt(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.local), Signal::INT)?;
        self.wait()
    }

    /// Waits for its end.
    fn wait(&mut self) -> anyhow::Result<()> {
        let ended = self.local.wait()?;
        drop(self.throttle.stdin.take());
        self.throttle.wait()?;
        ensure!(ended.success(), "feedmill local has failed: {ended}");
        Ok(())
    }
}

impl Drop for Running {
    /// It serves until somebody ends it, also when what was wanted of it has failed.
    fn drop(&mut self) {
        // One that has ended needs no signal.
        let _ = self.local.kill();
        let _ = self.local.wait();
    }
}

/// Runs `feedmill local` to its end; its report.
fn local(program: &Path, more: &[&str]) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report");
    let (ranks, micro_batch, window) = (RANKS.to_string(), MICRO_BATCH.to_string(), WINDOW.to_string());
    let layout = ["--ranks", &ranks, "--micro-batch", &micro_batch, "--window", &window];
    let arguments = [&layout[..], more, &["--json"]].concat();
    Running::start(program, &arguments, Some(&report))?.wait()?;
    let text = std::fs::read(&report).with_context(|| format!("cannot read {}", report.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn number(report: &Value, name: &str) -> anyhow::Result<f64> {
    report[name].as_f64().with_context(|| format!("the report of feedmill local has no {name}"))
}
