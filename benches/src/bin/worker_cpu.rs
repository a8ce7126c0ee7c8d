//! What a whole worker spends on a sample, held against libjpeg-turbo decoding the same photographs alone:
//! S3 server → worker with one thread → consumer, each a process of its own, only the worker counted.
//!
//! Three workers take turns: one thread, one thread without 512 bit vectors, two threads. The ratio is the median of
//! the rounds' ratios. Bytes on the wire are held against the tensors that the HF processor makes of the same rows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_CACHE, USUAL_LIMITS};
use feedmill_benches::figures::{load, median, print_line, rounded};
use feedmill_benches::process::{Process, Worker, worker_program};
use feedmill_benches::{photos, roles};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

/// The worker's CPU time by stage, and its wire bytes.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// A folder that hf_baseline/make_photos.py made [default: photographs are made]
    #[arg(long)]
    photos: Option<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Samples of one round
    #[arg(long, default_value_t = 512)]
    samples: u64,
}

/// A way to run the worker, and what it took.
struct Way {
    name: &'static str,
    /// Most that a sample may take of the decoder alone.
    goal: Option<f64>,
    worker: Worker,
    rounds: Vec<Round>,
}

/// One round of one worker: milliseconds for each photograph or sample.
struct Round {
    decode: f64,
    worker: f64,
    stages: BTreeMap<String, f64>,
    threads: BTreeMap<String, f64>,
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
    let pictures = dataset.pictures()?;
    let text = PipelineText {
        s3: true,
        max_pixels: 602_112,
        processor: "",
        cache: USUAL_CACHE,
        limits: USUAL_LIMITS,
    };
    let pipeline = dataset.pipeline(&text)?;
    let (_s3, endpoint) = roles::start_s3(&dataset)?;
    let start = |name, goal, threads, environment: &[(&str, &str)]| -> anyhow::Result<Way> {
        let s3 = Some(endpoint.as_str());
        let mut worker = Worker::start_with(&program, &dataset, &pipeline, threads, s3, environment)?;
        worker.ready()?;
        Ok(Way { name, goal, worker, rounds: Vec::new() })
    };
    let mut ways = [
        start("one_thread", Some(1.8), 1, &[])?,
        start("one_thread_avx2", Some(1.9), 1, &[("FEEDMILL_KERNELS", "avx2")])?,
        start("two_threads", None, 2, &[])?,
    ];
    let mut consumer = roles::start_consumer()?;
    let mut pulled = Value::Null;
    for number in 0..=arguments.rounds as u64 {
        let decode = decode_alone(&pictures)?;
        let positions = number * arguments.samples..(number + 1) * arguments.samples;
        for way in &mut ways {
            let (round, answer) = way.round(decode, positions.clone(), &mut consumer)?;
            println!("decode alone {decode:.3} ms, {} {:.3} ms, load {}", way.name, round.worker, load());
            // The first round warms caches, buffers and the estimate of how large files are.
            if number > 0 {
                way.rounds.push(round);
            }
            pulled = answer;
        }
    }
    let field = |name: &str| pulled[name].as_f64().context("a figure is missing");
    let each = |total: f64| total / arguments.samples as f64;
    let [one, _, two] = &ways;
    let pairs = one.rounds.iter().zip(&two.rounds);
    let mut figures = json!({
        "photos": pictures.len(),
        "photo_kib": pictures.iter().map(Vec::len).sum::<usize>() / pictures.len() / 1024,
        "rounds": arguments.rounds,
        "samples_a_round": arguments.samples,
        "tokens_a_sample": each(field("tokens")?).round(),
        "output_pixels": each(field("pixels")?).round(),
        "decode_ms": rounded(median(one.rounds.iter().map(|round| round.decode))),
        // What two cores do more than one: a sample that takes no more CPU time with two threads gives 2.
        "scaling": rounded(median(pairs.map(|(one, two)| 2.0 * one.worker / two.worker))),
        "scaling_goal": 1.9,
        "wire_bytes_a_sample": each(field("bytes")?).round(),
        "hf_bytes_a_sample": each(field("hf_bytes")?).round(),
        "hf_over_wire": rounded(field("hf_bytes")? / field("bytes")?),
        "wire_goal": 7.5,
    });
    for way in &ways {
        figures[way.name] = way.figures();
    }
    print_line("worker_cpu", load_before, &figures);
    Ok(())
}

impl Way {
    fn round(
        &self,
        decode: f64,
        positions: std::ops::Range<u64>,
        consumer: &mut Process,
    ) -> anyhow::Result<(Round, Value)> {
        let process = &self.worker.process;
        let samples = (positions.end - positions.start) as f64;
        let each = |seconds: f64| seconds * 1e3 / samples;
        let (cpu, before, threads) =
            (process.cpu_seconds()?, stages(&self.worker)?, process.cpu_by_thread()?);
        let pulled = roles::pull(consumer, self.worker.address, positions)?;
        let round = Round {
            decode,
            worker: each(process.cpu_seconds()? - cpu),
            stages: difference(before, stages(&self.worker)?, each),
            threads: difference(threads, process.cpu_by_thread()?, each),
        };
        Ok((round, pulled))
    }

    fn figures(&self) -> Value {
        let middle = |figure: &dyn Fn(&Round) -> f64| rounded(median(self.rounds.iter().map(figure)));
        let by_name = |part: fn(&Round) -> &BTreeMap<String, f64>| -> Map<String, Value> {
            let names = self.rounds.first().map(part).into_iter().flatten();
            names
                .map(|(name, _)| {
                    (name.clone(), middle(&|round| part(round).get(name).copied().unwrap_or(0.0)))
                })
                .collect()
        };
        json!({
            "worker_ms": middle(&|round| round.worker),
            "ratio": middle(&|round| round.worker / round.decode),
            "goal": self.goal,
            "stage_ms": by_name(|round| &round.stages),
            "thread_cpu_ms": by_name(|round| &round.threads),
        })
    }
}

/// Busy seconds by stage so far.
fn stages(worker: &Worker) -> anyhow::Result<BTreeMap<String, f64>> {
    let begin = "feedmill_worker_stage_busy_seconds_total{stage=\"";
    let metrics = worker.metrics()?.into_iter();
    Ok(metrics
        .filter_map(|(name, value)| {
            Some((name.strip_prefix(begin)?.trim_end_matches("\"}").to_owned(), value))
        })
        .collect())
}

fn difference(
    before: BTreeMap<String, f64>,
    after: BTreeMap<String, f64>,
    each: impl Fn(f64) -> f64,
) -> BTreeMap<String, f64> {
    let since = |name: &str| before.get(name).copied().unwrap_or(0.0);
    after.iter().map(|(name, value)| (name.clone(), each(value - since(name)))).collect()
}

/// Milliseconds of this thread's CPU time for a photograph: RGB into a buffer that is kept.
fn decode_alone(pictures: &[Vec<u8>]) -> anyhow::Result<f64> {
    let mut decoder = turbojpeg::Decompressor::new()?;
    let mut pixels = Vec::new();
    let begun = thread_seconds();
    for picture in pictures {
        let header = decoder.read_header(picture)?;
        let (width, height) = (header.width, header.height);
        pixels.resize(width * height * 3, 0);
        let format = turbojpeg::PixelFormat::RGB;
        let image =
            turbojpeg::Image { pixels: pixels.as_mut_slice(), width, pitch: width * 3, height, format };
        decoder.decompress(picture, image)?;
    }
    Ok((thread_seconds() - begun) * 1e3 / pictures.len() as f64)
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
