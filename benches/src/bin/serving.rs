//! What handing out finished samples costs: the same range again and again out of the worker's shared memory,
//! over HTTP/2, in turns with raw TCP writing as many bytes from memory of the same kind.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_CACHE, USUAL_LIMITS};
use feedmill_benches::figures::{load, median, print_line, rounded};
use feedmill_benches::process::{Process, Worker, worker_program};
use feedmill_benches::{photos, roles};
use serde_json::{Value, json};

/// Server CPU and speed of one HTTP/2 connection, beside raw TCP.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Bytes of one round, in millions
    #[arg(long, default_value_t = 2000)]
    megabytes: usize,
    /// Only this case, by its number
    #[arg(long)]
    case: Option<usize>,
}

/// What is asked for.
struct Case {
    max_pixels: u64,
    samples: u64,
    streams: usize,
}

const CASES: [Case; 5] = [
    Case { max_pixels: 602_112, samples: 8, streams: 1 },
    Case { max_pixels: 602_112, samples: 24, streams: 1 },
    Case { max_pixels: 602_112, samples: 8, streams: 4 },
    Case { max_pixels: 65_536, samples: 64, streams: 1 },
    Case { max_pixels: 65_536, samples: 8, streams: 1 },
];

/// One round of one way of serving.
struct Round {
    gb_per_second: f64,
    server_seconds_a_gb: f64,
    client_seconds_a_gb: f64,
}

fn main() -> anyhow::Result<()> {
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let dataset = Dataset::write(&photos::usual(64)?, 64)?;
    let chosen =
        CASES.iter().enumerate().filter(|(number, _)| arguments.case.is_none_or(|case| case == *number));
    let results = chosen.map(|(_, case)| measure(&arguments, &program, &dataset, case));
    let results: Vec<Value> = results.collect::<anyhow::Result<_>>()?;
    let goals = json!({"server_cpu_s_per_gb": 0.22, "at_sample_bytes": 1_000_000, "of_raw_tcp": 0.5});
    print_line(
        "serving",
        load_before,
        &json!({"rounds": arguments.rounds, "goals": goals, "cases": results}),
    );
    Ok(())
}

fn measure(
    arguments: &Arguments,
    program: &std::path::Path,
    dataset: &Dataset,
    case: &Case,
) -> anyhow::Result<Value> {
    let text = PipelineText {
        s3: false,
        max_pixels: case.max_pixels,
        processor: "",
        cache: USUAL_CACHE,
        limits: USUAL_LIMITS,
    };
    let pipeline = dataset.pipeline(&text)?;
    let mut worker = Worker::start(program, dataset, &pipeline, 1, None)?;
    let path = format!("/v1/streams/train/batches/0-{}", case.samples);
    let answer = worker.ready()?.get(&path)?;
    if answer.status != 200 {
        bail!("the worker answers {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    }
    let bytes = answer.body.len();
    drop(answer);
    let (raw, raw_address) = roles::start_raw(bytes)?;
    let mut consumer = roles::start_consumer()?;
    let times = (arguments.megabytes * 1_000_000 / bytes).next_multiple_of(case.streams);
    let made = |worker: &Worker| {
        let name = "feedmill_worker_stage_runs_total{stage=\"fill\"}";
        worker.metrics().map(|metrics| metrics.get(name).copied())
    };
    let made_before = made(&worker)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 0..=arguments.rounds {
        let one = timed(&worker.process, &mut consumer, |consumer| {
            roles::fetch(consumer, worker.address, &path, bytes, times, case.streams)
        })?;
        let other =
            timed(&raw, &mut consumer, |consumer| roles::fetch_raw(consumer, raw_address, bytes, times))?;
        println!(
            "{} samples of {} KB, {} streams: {:.2} GB/s, server {:.3} s/GB; raw TCP {:.2} GB/s, {:.3} s/GB; load {}",
            case.samples,
            bytes / case.samples as usize / 1000,
            case.streams,
            one.gb_per_second,
            one.server_seconds_a_gb,
            other.gb_per_second,
            other.server_seconds_a_gb,
            load()
        );
        // The first round fills caches and buffers.
        if number > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    if made(&worker)? != made_before {
        bail!("samples were made anew: the range does not stay in shared memory");
    }
    let ratios = ours.iter().zip(&theirs).map(|(one, other)| one.gb_per_second / other.gb_per_second);
    let of_raw_tcp = rounded(median(ratios));
    Ok(json!({
        "sample_bytes": bytes / case.samples as usize, "samples": case.samples, "body_bytes": bytes,
        "streams": case.streams, "worker": figures(&ours), "raw_tcp": figures(&theirs), "of_raw_tcp": of_raw_tcp,
    }))
}

fn timed(
    server: &Process,
    consumer: &mut Process,
    work: impl FnOnce(&mut Process) -> anyhow::Result<Value>,
) -> anyhow::Result<Round> {
    let (server_before, client_before) = (server.cpu_seconds()?, consumer.cpu_seconds()?);
    let answer = work(consumer)?;
    let gigabytes = answer["bytes"].as_f64().context("no bytes")? / 1e9;
    Ok(Round {
        gb_per_second: gigabytes / answer["seconds"].as_f64().context("no seconds")?,
        server_seconds_a_gb: (server.cpu_seconds()? - server_before) / gigabytes,
        client_seconds_a_gb: (consumer.cpu_seconds()? - client_before) / gigabytes,
    })
}

fn figures(rounds: &[Round]) -> Value {
    let middle = |figure: fn(&Round) -> f64| rounded(median(rounds.iter().map(figure)));
    json!({
        "gb_per_s": middle(|round| round.gb_per_second),
        "server_cpu_s_per_gb": middle(|round| round.server_seconds_a_gb),
        "client_cpu_s_per_gb": middle(|round| round.client_seconds_a_gb),
    })
}
