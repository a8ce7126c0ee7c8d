//! Samples per second of the whole chain on this machine: S3 server → worker → consumer, three processes.
//! `hf_baseline/compare.sh` runs it in turns with torch's DataLoader on the same files.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_CACHE, USUAL_LIMITS};
use feedmill_benches::figures::{load, median, print_line, rounded};
use feedmill_benches::process::{Worker, cpu_seconds, worker_program};
use feedmill_benches::{photos, roles};
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Server {
    Versitygw,
    Embedded,
}

/// Samples per second of S3 server, worker and consumer together.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// A folder that hf_baseline/make_photos.py made [default: photographs are made]
    #[arg(long)]
    photos: Option<PathBuf>,
    /// The S3 server; the embedded one reads files in pieces of 4 KiB, which costs more than a real server does
    #[arg(long, value_enum, default_value = "versitygw")]
    s3: Server,
    /// Threads of the worker
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Samples of one round
    #[arg(long, default_value_t = 768)]
    samples: u64,
}

fn main() -> anyhow::Result<()> {
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let dataset = match &arguments.photos {
        Some(folder) => Dataset::copy(folder)?,
        None => Dataset::write(&photos::usual(256)?, 256)?,
    };
    let pipeline = dataset.pipeline(&PipelineText {
        s3: true,
        max_pixels: 602_112,
        processor: "",
        cache: USUAL_CACHE,
        limits: USUAL_LIMITS,
    })?;
    let (_server, endpoint, s3) = match arguments.s3 {
        Server::Versitygw => roles::start_versitygw(&dataset)?,
        Server::Embedded => {
            let (process, endpoint) = roles::start_s3(&dataset)?;
            let id = process.id();
            (process, endpoint, id)
        }
    };
    let mut worker = Worker::start(&program, &dataset, &pipeline, arguments.threads, Some(&endpoint))?;
    worker.ready()?;
    let mut consumer = roles::start_consumer()?;
    // Each round reads positions of its own: every photograph is fetched and decoded anew. The first round
    // warms up.
    let (mut speeds, mut processor_ms) = (Vec::new(), [const { Vec::new() }; 3]);
    for number in 0..=arguments.rounds as u64 {
        let before = [cpu_seconds(s3)?, worker.process.cpu_seconds()?, consumer.cpu_seconds()?];
        let positions = number * arguments.samples..(number + 1) * arguments.samples;
        let pulled = roles::pull(&mut consumer, worker.address, positions)?;
        let speed = arguments.samples as f64 / pulled["seconds"].as_f64().context("no seconds")?;
        println!("{speed:.1} samples/s, load {}", load());
        if number > 0 {
            let after = [cpu_seconds(s3)?, worker.process.cpu_seconds()?, consumer.cpu_seconds()?];
            for ((figures, after), before) in processor_ms.iter_mut().zip(after).zip(before) {
                figures.push((after - before) * 1e3 / arguments.samples as f64);
            }
            speeds.push(speed);
        }
    }
    let [s3_ms, worker_ms, consumer_ms] = processor_ms.map(|figures| rounded(median(figures)));
    let figures = json!({
        "s3_server": format!("{:?}", arguments.s3).to_lowercase(),
        "threads": arguments.threads, "rounds": speeds.len(), "samples_a_round": arguments.samples,
        "samples_per_second": rounded(median(speeds.iter().copied())),
        "best_samples_per_second": rounded(speeds.iter().copied().fold(0.0, f64::max)),
        "s3_server_cpu_ms": s3_ms, "worker_cpu_ms": worker_ms, "consumer_cpu_ms": consumer_ms,
    });
    print_line("chain", load_before, &figures);
    Ok(())
}
