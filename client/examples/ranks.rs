//! A training's ranks without a model: they pull their micro batches in lock step from a fleet, check that every position comes
//! once, and say how long they waited.
//!
//! ```sh
//! cargo run -p feedmill-client --example ranks -- --ranks 4 http://fleet.team.svc:8470
//! ```
//!
//! Prints a line of JSON for each step, with the chain over all samples so far, and one at the end. With `--until-stdin-closes`
//! it goes on until standard input is closed.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use feedmill_client::{Fleet, FleetSettings, Pass, PassSettings, Puller, PullerSettings, TokenSource};
use feedmill_protocol::hash::{HashChain, SampleHash};
use feedmill_protocol::ranks::RankLayout;
use serde_json::json;

#[derive(Parser)]
struct Arguments {
    /// Workers: `http://HOST:PORT` of one, or of a name that stands for many
    #[arg(required = true)]
    workers: Vec<String>,
    #[arg(long, default_value = "train")]
    stream: String,
    #[arg(long, default_value_t = 4)]
    ranks: u64,
    #[arg(long, default_value_t = 4)]
    micro_batch: u64,
    /// Steps to make
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// How long each computes
    #[arg(long, default_value_t = 100)]
    step_ms: u64,
    #[arg(long, default_value_t = 4)]
    window: usize,
    /// A bearer token
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Authorities whose certificates are trusted, PEM
    #[arg(long)]
    ca_file: Option<PathBuf>,
    /// Go on until standard input is closed, for at most --steps
    #[arg(long)]
    until_stdin_closes: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let layout =
        RankLayout::new(arguments.ranks * arguments.micro_batch, arguments.ranks, arguments.micro_batch)?;
    let name = format!("ranks-{}", std::process::id());
    let mut settings = FleetSettings::from_sources(name, arguments.workers.iter().map(String::as_str))?;
    settings.verify_hashes = true;
    settings.pass = Pass::new(PassSettings {
        token: arguments.token_file.clone().map(TokenSource::File),
        authorities: arguments.ca_file.clone(),
    })?;
    let fleet = Fleet::new(settings)?;
    let puller = |rank| {
        Puller::new(
            fleet.clone(),
            PullerSettings {
                stream: arguments.stream.clone(),
                layout,
                rank,
                consumed: 0,
                stop: None,
                window: arguments.window,
                plan: None,
            },
        )
    };
    let mut pullers = (0..arguments.ranks).map(puller).collect::<Result<Vec<_>, _>>()?;
    let closed = Arc::new(AtomicBool::new(false));
    if arguments.until_stdin_closes {
        let closed = Arc::clone(&closed);
        std::thread::spawn(move || {
            // An error is an end as well.
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            closed.store(true, Ordering::Relaxed);
        });
    }
    let begun = clock();
    let (mut chain, mut moved, mut bytes) = (HashChain::new(), 0, 0);
    let (mut waited, mut longest, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
    while steps < arguments.steps && !closed.load(Ordering::Relaxed) {
        let asked = clock();
        // Futures that run together: each rank waits for its own batch.
        let batches = futures_util::future::join_all(pullers.iter_mut().map(Puller::next)).await;
        let wait = asked.elapsed();
        let mut rows: Vec<(u64, SampleHash)> = Vec::new();
        for batch in batches {
            let batch = batch.with_context(|| format!("step {steps}"))?.context("the stream has ended")?;
            moved += u64::from(batch.timings().failures > 0);
            bytes += batch.bytes().len();
            let view = batch.view().context("the answer is no batch")?;
            rows.extend((batch.range().start()..).zip(view.samples().iter().map(|sample| sample.hash)));
        }
        rows.sort_unstable();
        for (position, hash) in rows {
            anyhow::ensure!(
                position == chain.length(),
                "position {position} where {} was due",
                chain.length()
            );
            chain.push(hash);
        }
        // The first wait is that for the fleet to start.
        if steps > 0 {
            (waited, longest) = (waited + wait, longest.max(wait));
        }
        steps += 1;
        println!(
            "{}",
            json!({"step": steps, "positions": chain.length(), "chain": chain.hex(), "wait_ms": wait.as_millis()})
        );
        tokio::time::sleep(Duration::from_millis(arguments.step_ms)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    for puller in pullers {
        puller.close().await;
    }
    let figures = json!({
        "steps": steps, "positions": chain.length(), "chain": chain.hex(), "moved": moved, "bytes": bytes,
        "seconds": seconds, "samples_a_second": chain.length() as f64 / seconds,
        "waited_seconds": waited.as_secs_f64(), "longest_wait_seconds": longest.as_secs_f64(),
        "wait_ratio": waited.as_secs_f64() / seconds,
    });
    println!("{figures}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "what is measured is time")]
fn clock() -> Instant {
    Instant::now()
}
