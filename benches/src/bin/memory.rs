//! Whether a worker keeps its promise about memory when it is hard: pictures of 64 megapixels from S3, 200 ranges
//! outstanding at once, readers that take their time. Private and shared resident memory are looked at every
//! 20 ms; the exit code is not 0 when they were ever above the budgets and 300 MB.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText};
use feedmill_benches::figures::{load, now, print_line, rounded};
use feedmill_benches::process::{Worker, resident, worker_program};
use feedmill_benches::{http2, photos, roles};
use feedmill_protocol::pipeline::PROGRAM_BYTES;
use futures_util::future::try_join_all;
use serde_json::json;

const SIDE: usize = 8000;
/// Records, each with a file of its own.
const FILES: u64 = 64;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Small, so that the streams of one connection never block each other.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTIONS: u64 = 4;

/// Peak memory of a worker under the hardest honest load.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// Ranges asked for at once
    #[arg(long, default_value_t = 200)]
    ranges: u64,
    /// Samples of a range
    #[arg(long, default_value_t = 2)]
    samples: u64,
    /// Threads of the worker
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Different pictures among the files; each takes a second or two to make
    #[arg(long, default_value_t = 8)]
    pictures: usize,
    /// Readers wait this long after each frame of at most 1 MiB
    #[arg(long, default_value_t = 200)]
    pause_ms: u64,
}

/// The largest values seen.
#[derive(Default)]
struct Peaks {
    private: AtomicU64,
    shared: AtomicU64,
    together: AtomicU64,
}

fn main() -> anyhow::Result<ExitCode> {
    if roles::play()? {
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let different = photos::large(arguments.pictures, SIDE)?;
    let file_bytes = different.iter().map(Vec::len).sum::<usize>() / different.len().max(1);
    let files: Vec<Vec<u8>> = different.iter().cycle().take(FILES as usize).cloned().collect();
    let dataset = Dataset::write(&files, FILES)?;
    drop((files, different));
    let cache = "sharedMemory: 512Mi, fetch: 512Mi, decode: 1800Mi";
    let limits = "maxImagePixels: 64000000, maxImageBytes: 32Mi, maxSampleBytes: 64Mi";
    let pipeline =
        dataset.pipeline(&PipelineText { s3: true, max_pixels: 2_007_040, processor: "", cache, limits })?;
    let (_s3, endpoint) = roles::start_s3(&dataset)?;
    let mut worker = Worker::start(&program, &dataset, &pipeline, arguments.threads, Some(&endpoint))?;
    worker.ready()?;
    let metrics = worker.metrics()?;
    let budget = |name: &str| {
        let value = metrics.get(&format!("feedmill_worker_budget_bytes{{budget=\"{name}\"}}"));
        value.copied().with_context(|| format!("no metric of the budget {name}"))
    };
    let budgets = (budget("arena")? + budget("fetch")? + budget("decode")?) as u64;
    let (private_before, shared_before) = resident(worker.process.id())?;

    let peaks = Arc::new(Peaks::default());
    let done = Arc::new(AtomicBool::new(false));
    let watching = {
        let (peaks, done, process) = (Arc::clone(&peaks), Arc::clone(&done), worker.process.id());
        std::thread::spawn(move || {
            while !done.load(Relaxed) {
                // The last look may find the process gone.
                if let Ok((private, shared)) = resident(process) {
                    peaks.private.fetch_max(private, Relaxed);
                    peaks.shared.fetch_max(shared, Relaxed);
                    peaks.together.fetch_max(private + shared, Relaxed);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        })
    };
    let begun = now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(ask_all(&worker, &arguments));
    let seconds = begun.elapsed().as_secs_f64();
    done.store(true, Relaxed);
    if watching.join().is_err() {
        bail!("watching the worker's memory failed");
    }
    let bytes = answered?;
    let after = worker.metrics()?;
    let read = |name: &str| after.get(&format!("feedmill_worker_{name}")).copied().unwrap_or(0.0);
    let together = peaks.together.load(Relaxed);
    let kept = together <= budgets + PROGRAM_BYTES;
    let megabytes = |bytes: u64| rounded(bytes as f64 / 1e6);
    let figures = json!({
        "files": FILES, "different_pictures": arguments.pictures, "side": SIDE, "file_kib": file_bytes / 1024,
        "ranges_at_once": arguments.ranges, "samples_a_range": arguments.samples, "threads": arguments.threads,
        "answered_mb": megabytes(bytes as u64), "seconds": rounded(seconds),
        "budgets_mb": megabytes(budgets), "limit_mb": megabytes(budgets + PROGRAM_BYTES),
        "before_mb": megabytes(private_before + shared_before),
        "peak_private_mb": megabytes(peaks.private.load(Relaxed)),
        "peak_shared_mb": megabytes(peaks.shared.load(Relaxed)),
        "peak_together_mb": megabytes(together),
        "evictions": read("arena_evictions_total"), "overdue": read("overdue_leases_total"),
        "kept": kept,
    });
    print_line("memory", load_before, &figures);
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks for all ranges at once; bytes of all answers.
async fn ask_all(worker: &Worker, arguments: &Arguments) -> anyhow::Result<usize> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(http2::Connection::open(worker.address, STREAM_WINDOW).await?);
    }
    let each = (0..arguments.ranges).map(|number| {
        let mut connection = connections[(number % CONNECTIONS) as usize].clone();
        async move {
            let (start, end) = (number * arguments.samples, (number + 1) * arguments.samples);
            let path = format!("/v1/streams/train/batches/{start}-{end}");
            // Pages are touched only when the answer comes.
            let mut buffer = vec![0; (arguments.samples as usize) << 23];
            connection.get(&path, &mut buffer, Duration::from_millis(arguments.pause_ms)).await
        }
    });
    Ok(try_join_all(each).await?.into_iter().sum())
}
