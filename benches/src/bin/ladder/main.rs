//! From a trainer that waits most of the time to one that does not, in four rungs on one machine, each with one switch turned. S3 is an
//! S3 server behind a delay; ranks compute (they sleep) for so long that the first rung waits for 85 % of its time. Prints a table
//! and one line of JSON, and writes a page.
//!
//! ```text
//!   S3 ─ 30 ms ─┬───────────────────────────► rank   0: everything in the trainer, one sample after another
//!               └─► worker ─► coordinator ──► rank   1: at once, on a pool; 2: ahead
//!                      └────────────────────► rank   3: by reference
//! ```

mod coordinator;
mod limit;
mod page;
mod rank;
mod rungs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_CACHE, USUAL_LIMITS};
use feedmill_benches::figures::{load, now, print_line, rounded};
use feedmill_benches::process::{Process, Worker, cpu_seconds, worker_program};
use feedmill_benches::{photos, roles};
use serde_json::json;

use crate::limit::Cost;
use crate::rank::Place;
use crate::rungs::Rung;

/// The share of its time for which the first rung is to wait: what the story began with.
const FIRST_WAIT: f64 = 0.85;

/// Batches of each rank that are not counted: a queue fills.
const WARM: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Server {
    Versitygw,
    Embedded,
}

/// The ladder from a trainer that waits to one that does not.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// The S3 server; the embedded one costs more CPU time than a real server does
    #[arg(long, value_enum, default_value = "versitygw")]
    s3: Server,
    /// How much later S3 gets what it is asked
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 30)]
    latency: u64,
    /// Data-parallel ranks
    #[arg(long, default_value_t = 2)]
    ranks: u64,
    /// Samples in a batch
    #[arg(long, default_value_t = 8)]
    micro_batch: u64,
    /// Width and height of the pictures
    #[arg(long, default_values_t = [640, 480], num_args = 2)]
    picture: Vec<usize>,
    /// Batches of each rank that are counted in each rung
    #[arg(long, default_value_t = 40)]
    batches: u64,
    /// Writes a page with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A rung as it was measured.
struct Measured {
    rung: Rung,
    /// Seconds, of all ranks.
    waited: f64,
    trained: f64,
    cost: Cost,
}

impl Measured {
    fn wait(&self) -> f64 {
        self.waited / (self.waited + self.trained)
    }
}

/// Everything that runs.
struct Machine {
    /// Holds the server.
    _s3: Process,
    /// The server's process.
    s3: u32,
    delay: Process,
    worker: Worker,
    coordinator: Process,
    ranks: Vec<Process>,
    micro_batch: u64,
    latency: Duration,
}

fn main() -> anyhow::Result<()> {
    match roles::given() {
        Some((role, worker)) if role == coordinator::ROLE => return coordinator::play(&worker),
        Some((role, place)) if role == rank::ROLE => return rank::play(&place),
        _ => {}
    }
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let [width, height] = arguments.picture[..] else { anyhow::bail!("--picture takes two numbers") };
    let batch = arguments.ranks * arguments.micro_batch;
    // Every rung reads records of its own, and the calibration too.
    let records = (Rung::MEASURED.len() as u64 + 1) * batch * (arguments.batches + WARM);
    let dataset = Dataset::write(&photos::of_sizes(&vec![(width, height); 256])?, records)?;
    let mut machine = start(&arguments, &program, &dataset)?;
    let calibrated = machine.measure(Rung::Serial, 0, arguments.batches / 4, Duration::ZERO)?;
    let of_a_batch = calibrated.waited / (arguments.ranks * (arguments.batches / 4)) as f64;
    let step = Duration::from_secs_f64(of_a_batch * (1.0 - FIRST_WAIT) / FIRST_WAIT);
    let mut all = Vec::new();
    for rung in Rung::MEASURED {
        let first = (rung.number() + 1) * batch * (arguments.batches + WARM);
        let measured = machine.measure(rung, first, arguments.batches, step)?;
        println!("{}{}: waits {:.1} %", rung.mark(), rung.name(), 100.0 * measured.wait());
        all.push(measured);
    }
    let load_after = load();
    print!("\n{}", table(&all, step, &arguments));
    if let Some(path) = &arguments.html {
        let about = format!(
            "{} ranks, batches of {} samples, pictures of {width} x {height} pixels, a step computes {:.0} ms, S3 answers {} ms \
             later; {} cores, load {load_before} before and {load_after} after.",
            arguments.ranks,
            arguments.micro_batch,
            step.as_secs_f64() * 1e3,
            arguments.latency,
            cores(),
        );
        std::fs::write(path, page::page(&all, &about)).with_context(|| path.display().to_string())?;
        println!("\nwritten to {}", path.display());
    }
    let rungs: Vec<_> = all
        .iter()
        .map(|measured| {
            let cost = &measured.cost;
            json!({
                "rung": measured.rung.number(), "name": measured.rung.name(), "wait": rounded(measured.wait()),
                "ms_a_batch": rounded(cost.wall * 1e3), "wire_mb_a_batch": rounded(cost.megabytes),
                "cpu_ms_a_batch": {"trainer": rounded(cost.trainer), "coordinator": rounded(cost.coordinator),
                    "worker": rounded(cost.worker), "s3": rounded(cost.s3)},
                "limit": cost.limit(measured.rung, measured.wait()),
            })
        })
        .collect();
    let ladder = &all[..Rung::ALL.len()];
    let falls = ladder.windows(2).all(|pair| pair[1].wait() <= pair[0].wait());
    let last = ladder.last().map_or(1.0, Measured::wait);
    let figures = json!({
        "step_ms": rounded(step.as_secs_f64() * 1e3), "latency_ms": arguments.latency, "ranks": arguments.ranks,
        "micro_batch": arguments.micro_batch, "picture": arguments.picture, "batches": arguments.batches,
        "rungs": rungs, "falls": falls, "last_wait": rounded(last), "goal": 0.02,
    });
    print_line("ladder", load_before, &figures);
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn start(arguments: &Arguments, program: &std::path::Path, dataset: &Dataset) -> anyhow::Result<Machine> {
    let pipeline = dataset.pipeline(&PipelineText {
        s3: true,
        max_pixels: 602_112,
        processor: "",
        cache: USUAL_CACHE,
        limits: USUAL_LIMITS,
    })?;
    let (server, near, s3) = match arguments.s3 {
        Server::Versitygw => roles::start_versitygw(dataset)?,
        Server::Embedded => {
            let (process, endpoint) = roles::start_s3(dataset)?;
            let id = process.id();
            (process, endpoint, id)
        }
    };
    let (delay, endpoint) = roles::start_delay(&near, arguments.latency)?;
    let mut worker = Worker::start(program, dataset, &pipeline, cores(), Some(&endpoint))?;
    worker.ready()?;
    let (coordinator, address) = coordinator::start(worker.address)?;
    let ranks = (0..arguments.ranks)
        .map(|number| {
            rank::start(&Place {
                rank: number,
                ranks: arguments.ranks,
                micro_batch: arguments.micro_batch,
                pipeline: &pipeline,
                cache: &dataset.cache(),
                s3: &endpoint,
                keys: &dataset.keys(),
                coordinator: address,
                worker: worker.address,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let latency = Duration::from_millis(arguments.latency);
    Ok(Machine {
        _s3: server,
        s3,
        delay,
        worker,
        coordinator,
        ranks,
        micro_batch: arguments.micro_batch,
        latency,
    })
}

impl Machine {
    /// CPU seconds so far: ranks, coordinator, worker, S3 and what delays it.
    fn used(&self) -> anyhow::Result<[f64; 4]> {
        let ranks = self.ranks.iter().map(Process::cpu_seconds).sum::<anyhow::Result<f64>>()?;
        let s3 = cpu_seconds(self.s3)? + self.delay.cpu_seconds()?;
        Ok([ranks, self.coordinator.cpu_seconds()?, self.worker.process.cpu_seconds()?, s3])
    }

    fn measure(&mut self, rung: Rung, first: u64, batches: u64, step: Duration) -> anyhow::Result<Measured> {
        let before = self.used()?;
        let began = now();
        let question = rank::question(rung, first, WARM, batches, step);
        // All ranks at once, each answer read when it comes.
        let answers = std::thread::scope(|scope| {
            let asked: Vec<_> =
                self.ranks.iter_mut().map(|rank| scope.spawn(|| rank.ask(&question))).collect();
            asked
                .into_iter()
                .map(|asked| asked.join().map_err(|_| anyhow::anyhow!("a thread ended"))?)
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let whole = began.elapsed().as_secs_f64();
        let after = self.used()?;
        let sum = |name: &str| answers.iter().filter_map(|answer| answer[name].as_f64()).sum::<f64>();
        let (waited, trained) = (sum("waited"), sum("trained"));
        let ranks = self.ranks.len() as f64;
        // Of all batches, the first ones too; ranks open their data before the first one, and count by themselves.
        let each = |place: usize| (after[place] - before[place]) * 1e3 / (ranks * (batches + WARM) as f64);
        let [coordinator, worker, s3] = [1, 2, 3].map(each);
        let trainer = sum("cpu") * 1e3 / (ranks * batches as f64);
        let busy = after.iter().sum::<f64>() - before.iter().sum::<f64>();
        let counted = ranks * batches as f64;
        let cost = Cost {
            wall: (waited + trained) / counted,
            waiting: waited / counted,
            samples: self.micro_batch as f64,
            latency: self.latency.as_secs_f64(),
            megabytes: sum("bytes") / counted / 1e6,
            trainer,
            coordinator,
            worker,
            s3,
            coordinator_busy: (after[1] - before[1]) / whole,
            cores_busy: busy / whole / cores() as f64,
        };
        Ok(Measured { rung, waited, trained, cost })
    }
}

fn table(all: &[Measured], step: Duration, arguments: &Arguments) -> String {
    let mut lines = format!(
        "A batch of {} samples; a step computes {:.1} ms; times are of one batch.\n\n{:<42} {:>7} {:>9} {:>9} {:>8}   {:>34}   {}\n",
        arguments.micro_batch,
        step.as_secs_f64() * 1e3,
        "rung",
        "wait",
        "waits",
        "whole",
        "MB",
        "CPU ms: rank, coord., worker, S3",
        "what limits it"
    );
    for measured in all {
        let cost = &measured.cost;
        let name = format!("{}{}", measured.rung.mark(), measured.rung.name());
        let cpu = format!("{:.1} {:.1} {:.1} {:.1}", cost.trainer, cost.coordinator, cost.worker, cost.s3);
        lines.push_str(&format!(
            "{name:<42} {:>5.1} % {:>6.1} ms {:>6.1} ms {:>8.1}   {cpu:>34}   {}\n",
            100.0 * measured.wait(),
            cost.waiting * 1e3,
            cost.wall * 1e3,
            cost.megabytes,
            cost.limit(measured.rung, measured.wait()),
        ));
    }
    lines
}
