//! Whether a worker stays what it is for hours: pictures of 100 to 8000 pixels a side, texts of up to 100 kB, storage that
//! breaks its answers all the time, readers that walk away. A second worker reads the same positions from storage that never
//! fails: both must give the same hashes, and the first must not grow. The exit code is not 0 when either is broken.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText, prose};
use feedmill_benches::figures::{load, median, now, print_line, rounded};
use feedmill_benches::process::{Worker, resident, worker_program};
use feedmill_benches::{http2, photos, roles};
use feedmill_client::{Batch, Endpoint, Fleet, FleetSettings, Puller, PullerSettings};
use feedmill_protocol::hash::HashChain;
use feedmill_protocol::ranks::RankLayout;
use feedmill_testkit::{Fault, FaultProxy, Rule};
use serde_json::json;

const SMALLEST: f64 = 100.0;
const LARGEST: f64 = 8000.0;
const LONGEST_TEXT: f64 = 100_000.0;
/// Samples of a micro batch.
const MICRO_BATCH: u64 = 2;
/// Batches outstanding.
const WINDOW: usize = 8;
/// Storage gets new faults this often.
const FAULTS_EVERY: Duration = Duration::from_secs(3);
/// One in so many turns is a whole minute of SlowDown.
const STORM_EVERY: u64 = 200;
const STORM: Duration = Duration::from_secs(60);
/// A reader asks for far positions and walks away this often.
const STRANGER_EVERY: Duration = Duration::from_secs(2);

/// Memory and content of a worker over hours of faults.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// How long
    #[arg(long, default_value_t = 120.0)]
    minutes: f64,
    /// When memory is first looked at: caches are full then
    #[arg(long, default_value_t = 10.0)]
    warm_minutes: f64,
    /// A trainer's step: one batch each
    #[arg(long, default_value_t = 500)]
    step_ms: u64,
    #[arg(long, default_value_t = 160)]
    pictures: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    if roles::play()? {
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let dataset = dataset(&arguments)?;
    let cache = "sharedMemory: 512Mi, fetch: 256Mi, decode: 1800Mi";
    let limits = "maxImagePixels: 64000000, maxImageBytes: 32Mi, maxSampleBytes: 64Mi";
    let pipeline =
        dataset.pipeline(&PipelineText { s3: true, max_pixels: 602_112, processor: "", cache, limits })?;
    let (_s3, endpoint) = roles::start_s3(&dataset)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let upstream = endpoint.trim_start_matches("http://").parse()?;
    let proxy = Arc::new(runtime.block_on(FaultProxy::start(upstream)));
    // Workers are started from another thread: the proxy must answer while one becomes ready.
    let broken = proxy.endpoint();
    let starting = std::thread::spawn(move || {
        let start = |endpoint: &str| {
            let mut worker = Worker::start(&program, &dataset, &pipeline, 2, Some(endpoint))?;
            worker.ready()?;
            anyhow::Ok(worker)
        };
        let workers = (start(&broken)?, start(&endpoint)?);
        anyhow::Ok((workers, dataset))
    });
    let (workers, _dataset) = runtime.block_on(async {
        while !starting.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        starting.join().map_err(|_| anyhow::anyhow!("starting the workers failed"))?
    })?;
    let outcome = runtime.block_on(soak(&arguments, &proxy, &workers.0, &workers.1))?;
    let kept = outcome.growth < 1.1;
    let seen = proxy.seen();
    let figures = json!({
        "minutes": arguments.minutes, "samples": outcome.chain.length(), "chain": outcome.chain.hex(),
        "requests": seen.len(), "broken_requests": seen.iter().filter(|request| request.fault.is_some()).count(),
        "readers_that_left": outcome.strangers,
        "early_mb": rounded(outcome.early / 1e6), "late_mb": rounded(outcome.late / 1e6),
        "peak_mb": rounded(outcome.peak / 1e6), "late_over_early": rounded(outcome.growth),
        "quiet_worker_late_over_early": rounded(outcome.quiet_growth), "kept": kept,
    });
    print_line("soak", load_before, &figures);
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sides and texts spread evenly over their orders of magnitude.
fn dataset(arguments: &Arguments) -> anyhow::Result<Dataset> {
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let mut between = |low: f64, high: f64| low * (high / low).powf(random.f64());
    let sizes: Vec<(usize, usize)> = (0..arguments.pictures)
        .map(|_| (between(SMALLEST, LARGEST) as usize, between(SMALLEST, LARGEST) as usize))
        .collect();
    let lengths: Vec<u64> = (0..arguments.pictures)
        .map(|_| (between(60.0, LONGEST_TEXT) / prose(0, 1).len() as f64).ceil() as u64)
        .collect();
    let pictures = photos::of_sizes(&sizes)?;
    // More records than pictures, so that pictures meet other texts.
    Dataset::with_texts(&pictures, arguments.pictures as u64 * 3 / 2, |number| {
        let length = lengths[(number * 7) as usize % lengths.len()];
        let question = format!("<image>\nDescribe photograph {number:06}.");
        [question, prose(number, length), "What else?".into(), prose(number, 2)]
    })
}

struct Outcome {
    chain: HashChain,
    /// Private and shared memory of the worker on broken storage, bytes.
    early: f64,
    late: f64,
    peak: f64,
    growth: f64,
    quiet_growth: f64,
    strangers: u64,
}

async fn soak(
    arguments: &Arguments,
    proxy: &Arc<FaultProxy>,
    broken: &Worker,
    quiet: &Worker,
) -> anyhow::Result<Outcome> {
    let done = Arc::new(AtomicBool::new(false));
    let faults = tokio::spawn(break_answers(Arc::clone(proxy), arguments.seed, Arc::clone(&done)));
    let strangers = tokio::spawn(walk_away(broken.address, arguments.seed, Arc::clone(&done)));
    let mut pullers = [puller(broken)?, puller(quiet)?];
    let [from_broken, from_quiet] = &mut pullers;
    let mut chains = [HashChain::new(), HashChain::new()];
    let begun = now();
    let (length, warm) = (arguments.minutes * 60.0, arguments.warm_minutes * 60.0);
    let (mut early, mut late, mut peak): ([Vec<f64>; 2], [Vec<f64>; 2], f64) = Default::default();
    let mut told = 0;
    // A minute of faults can pass between two looks.
    let (mut first_look, mut last_look) = (None, [0.0; 2]);
    loop {
        let seconds = begun.elapsed().as_secs_f64();
        if seconds > length {
            break;
        }
        let (one, other) = tokio::try_join!(from_broken.next(), from_quiet.next())?;
        for (chain, batch) in chains.iter_mut().zip([one, other]) {
            push(chain, &batch.context("the stream has no end")?)?;
        }
        ensure!(chains[0] == chains[1], "after {} samples the two workers differ", chains[0].length());
        for (at, worker) in [broken, quiet].into_iter().enumerate() {
            let (private, shared) = resident(worker.process.id())?;
            let together = (private + shared) as f64;
            if at == 0 {
                peak = peak.max(together);
            }
            if seconds >= warm && seconds < *first_look.get_or_insert(seconds) + 60.0 {
                early[at].push(together);
            }
            last_look[at] = together;
            if seconds > length - 60.0 {
                late[at].push(together);
            }
        }
        let minute = (seconds / 60.0) as u64;
        if minute > told {
            told = minute;
            let (private, shared) = resident(broken.process.id())?;
            println!(
                "{minute} min: {} samples, private {} MB, shared {} MB, {} requests, load {}",
                chains[0].length(),
                private / 1_000_000,
                shared / 1_000_000,
                proxy.count(""),
                load()
            );
        }
        tokio::time::sleep(Duration::from_millis(arguments.step_ms)).await;
    }
    done.store(true, Relaxed);
    faults.abort();
    for (late, last) in late.iter_mut().zip(last_look).filter(|(late, _)| late.is_empty()) {
        late.push(last);
    }
    let strangers = strangers.await?;
    let [early, late] = [early, late].map(|looks| looks.map(median));
    let growth = |at: usize| if early[at] > 0.0 { late[at] / early[at] } else { f64::NAN };
    Ok(Outcome {
        chain: chains[0],
        early: early[0],
        late: late[0],
        peak,
        growth: growth(0),
        quiet_growth: growth(1),
        strangers,
    })
}

fn puller(worker: &Worker) -> anyhow::Result<Puller> {
    let mut settings = FleetSettings::new("soak", vec![Endpoint::from(worker.address)]);
    settings.verify_hashes = true;
    let settings_of_rank = PullerSettings {
        stream: "train".into(),
        layout: RankLayout::new(MICRO_BATCH, 1, MICRO_BATCH)?,
        rank: 0,
        consumed: 0,
        stop: None,
        window: WINDOW,
        plan: None,
    };
    Ok(Puller::new(Fleet::new(settings)?, settings_of_rank)?)
}

fn push(chain: &mut HashChain, batch: &Batch) -> anyhow::Result<()> {
    for sample in batch.view()?.samples() {
        chain.push(sample.hash);
    }
    Ok(())
}

/// Gives storage other faults every few seconds, now and then a minute of nothing but SlowDown.
async fn break_answers(proxy: Arc<FaultProxy>, seed: u64, done: Arc<AtomicBool>) {
    let faults = [
        Fault::ResetBeforeHeaders,
        Fault::ResetMidBody,
        Fault::ShortBody,
        Fault::StallBeforeHeaders,
        Fault::StallMidBody,
        Fault::Trickle { bytes_per_second: 20 },
        Fault::Html { status: 502 },
        Fault::INTERNAL_ERROR,
        Fault::SLOW_DOWN,
        Fault::EXPIRED_TOKEN,
        Fault::CLOCK_SKEW,
    ];
    let mut random = fastrand::Rng::with_seed(seed);
    let mut turn = 0;
    while !done.load(Relaxed) {
        turn += 1;
        proxy.clear();
        if turn % STORM_EVERY == 0 {
            proxy.add(Rule::always(Fault::SLOW_DOWN));
            tokio::time::sleep(STORM).await;
            continue;
        }
        for _ in 0..random.u32(0..4) {
            let fault = faults[random.usize(0..faults.len())].clone();
            proxy.add(Rule::times(fault, random.u32(1..4)).on_path("images"));
        }
        tokio::time::sleep(FAULTS_EVERY).await;
    }
}

/// Readers that ask for positions far away and leave before, during or after the answer; how many there were.
async fn walk_away(worker: std::net::SocketAddr, seed: u64, done: Arc<AtomicBool>) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed ^ 1);
    let mut buffer = vec![0; 64 << 20];
    let mut left = 0;
    while !done.load(Relaxed) {
        tokio::time::sleep(STRANGER_EVERY).await;
        let start = random.u64(1_000_000..1_000_000_000);
        let path = format!("/v1/streams/train/batches/{start}-{}", start + random.u64(1..5));
        let patience = Duration::from_millis(random.u64(1..2_000));
        let asking = async {
            let mut connection = http2::Connection::open(worker, http2::STREAM_WINDOW).await?;
            connection.get(&path, &mut buffer, Duration::from_millis(random.u64(0..20))).await
        };
        // Whether it was answered in time does not matter: that nothing stays behind does.
        if tokio::time::timeout(patience, asking).await.is_err() {
            left += 1;
        }
    }
    left
}
