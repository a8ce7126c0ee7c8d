//! How long a fresh worker takes to its first batch, at position 0 and far out in the stream: starts alternate
//! between the two. All records have the same picture and texts of the same length, so only the position
//! differs.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_CACHE, USUAL_LIMITS};
use feedmill_benches::figures::{load, median, now, print_line, rounded};
use feedmill_benches::photos;
use feedmill_benches::process::{Worker, worker_program};
use feedmill_benches::roles;
use serde_json::json;

/// Time to the first batch at position 0 and at a far one.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// The far position
    #[arg(long, default_value_t = 1_000_000_000)]
    position: u64,
    /// Starts at each position
    #[arg(long, default_value_t = 20)]
    starts: usize,
    /// Records of the manifest
    #[arg(long, default_value_t = 5000)]
    records: u64,
}

/// Milliseconds to readiness from the start of the process, and to the whole batch from there.
struct Start {
    ready: f64,
    batch: f64,
}

fn main() -> anyhow::Result<()> {
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let dataset = Dataset::write(&photos::usual(1)?, arguments.records)?;
    let pipeline = dataset.pipeline(&PipelineText {
        s3: false,
        max_pixels: 602_112,
        processor: "",
        cache: USUAL_CACHE,
        limits: USUAL_LIMITS,
    })?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for number in 0..=arguments.starts {
        let pair = [0, arguments.position].map(|position| start(&program, &dataset, &pipeline, position));
        let [one, other] = pair;
        let (one, other) = (one?, other?);
        println!(
            "position 0: {:.0} + {:.1} ms, position {}: {:.0} + {:.1} ms, load {}",
            one.ready,
            one.batch,
            arguments.position,
            other.ready,
            other.batch,
            load()
        );
        // The first pair brings the program and the data into the page cache.
        if number > 0 {
            near.push(one);
            far.push(other);
        }
    }
    let middle = |starts: &[Start], figure: fn(&Start) -> f64| median(starts.iter().map(figure));
    let whole: fn(&Start) -> f64 = |start| start.ready + start.batch;
    let batch: fn(&Start) -> f64 = |start| start.batch;
    let figures = json!({
        "position": arguments.position, "starts": near.len(), "records": arguments.records,
        "first_batch_ms": [rounded(middle(&near, whole)), rounded(middle(&far, whole))],
        "ratio": rounded(middle(&far, whole) / middle(&near, whole)),
        "goal": 1.1,
        "after_ready_ms": [rounded(middle(&near, batch)), rounded(middle(&far, batch))],
        "after_ready_ratio": rounded(middle(&far, batch) / middle(&near, batch)),
    });
    print_line("cold_start", load_before, &figures);
    Ok(())
}

fn start(program: &Path, dataset: &Dataset, pipeline: &Path, position: u64) -> anyhow::Result<Start> {
    let mut worker = Worker::start(program, dataset, pipeline, 1, None)?;
    let mut connection = worker.ready()?;
    let ready = now();
    let answer = connection.get(&format!("/v1/streams/train/batches/{position}-{}", position + 4))?;
    if answer.status != 200 {
        bail!("the worker answers {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    }
    let batch = ready.elapsed().as_secs_f64() * 1e3;
    Ok(Start { ready: ready.duration_since(worker.started).as_secs_f64() * 1e3, batch })
}
