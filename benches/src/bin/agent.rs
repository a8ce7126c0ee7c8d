//! What an agent saves: processes of one node read the same ranges through it and over HTTP, in turns.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Parser;
use feedmill_benches::dataset::{Dataset, PipelineText, USUAL_LIMITS};
use feedmill_benches::figures::{load, median, print_line, rounded};
use feedmill_benches::process::{Process, Worker, worker_program};
use feedmill_benches::{http1, photos, roles};
use serde_json::{Value, json};

/// Room for all ranges of all rounds: nothing is made while it is measured.
const CACHE: &str = "sharedMemory: 2Gi, fetch: 256Mi, decode: 1Gi";

/// The agent's memory: what some rounds read. Memory is slow when it is used for the first time, and used again for ever after.
const MEMORY: &str = "512Mi";

/// Rounds until all of that has been used once.
const WARM_UP: u64 = 6;

/// CPU seconds a GB of readers through an agent, beside readers over HTTP, and the bytes that the worker sent.
#[derive(Parser)]
struct Arguments {
    /// The worker's program [default: beside this one]
    #[arg(long)]
    worker: Option<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: u64,
    /// Processes that read the same
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// Ranges of a round
    #[arg(long, default_value_t = 8)]
    ranges: u64,
    /// Samples of a range
    #[arg(long, default_value_t = 8)]
    samples: u64,
}

/// One way of reading: CPU seconds and bytes of a round.
struct Round {
    delivered: f64,
    sent: f64,
    seconds: f64,
    readers: f64,
    agent: f64,
    worker: f64,
}

impl Round {
    fn cpu_a_gb(&self) -> f64 {
        (self.readers + self.agent + self.worker) / self.delivered
    }
}

fn main() -> anyhow::Result<()> {
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let program = worker_program(arguments.worker.as_deref())?;
    let dataset = Dataset::write(&photos::usual(64)?, 64)?;
    let text =
        PipelineText { s3: false, max_pixels: 602_112, processor: "", cache: CACHE, limits: USUAL_LIMITS };
    let mut worker = Worker::start(&program, &dataset, &dataset.pipeline(&text)?, 2, None)?;
    let mut connection = worker.ready()?;
    let all = (arguments.rounds + WARM_UP) * arguments.ranges;
    for number in 0..all {
        let (start, end) = (number * arguments.samples, (number + 1) * arguments.samples);
        let answer = connection.get(&format!("/v1/streams/train/batches/{start}-{end}"))?;
        if answer.status != 200 {
            bail!("the worker answers {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
        }
    }
    let made = made(&worker)?;
    let socket = dataset.cache().join("agent.sock");
    let agent = start_agent(&program, &worker, &socket)?;
    let mut direct = readers(&arguments, &worker, None)?;
    let mut lent = readers(&arguments, &worker, Some(&socket))?;
    let (mut over_http, mut through_agent) = (Vec::new(), Vec::new());
    for number in 0..arguments.rounds + WARM_UP {
        // Ranges that the agent has not seen; the worker has them made.
        let question =
            roles::read(number * arguments.ranges * arguments.samples, arguments.ranges, arguments.samples);
        let one = round(&worker, &agent, &mut direct, &question)?;
        let other = round(&worker, &agent, &mut lent, &question)?;
        println!(
            "over HTTP {:.3} s/GB at {:.2} GB/s, the worker sent {:.2} GB; through the agent {:.3} s/GB at {:.2} GB/s, {:.2} GB; load {}",
            one.cpu_a_gb(),
            one.delivered / one.seconds,
            one.sent,
            other.cpu_a_gb(),
            other.delivered / other.seconds,
            other.sent,
            load()
        );
        // Before that connections are made, memory is mapped and its pages are made.
        if number >= WARM_UP {
            over_http.push(one);
            through_agent.push(other);
        }
    }
    if self::made(&worker)? != made {
        bail!("samples were made anew: the ranges do not stay in the worker's shared memory");
    }
    let ratio = |figure: fn(&Round) -> f64| {
        rounded(median(over_http.iter().zip(&through_agent).map(|(one, other)| figure(one) / figure(other))))
    };
    print_line(
        "agent",
        load_before,
        &json!({
            "rounds": arguments.rounds, "readers": arguments.readers, "goals": {"upstream_bytes_ratio": arguments.readers},
            "batch_bytes": (over_http.first().map_or(0.0, |round| round.delivered) * 1e9
                / (arguments.readers as f64 * arguments.ranges as f64)).round(),
            "over_http": figures(&over_http), "through_agent": figures(&through_agent),
            "upstream_bytes_ratio": ratio(|round| round.sent),
            "readers_cpu_ratio": ratio(|round| round.readers / round.delivered),
            "node_cpu_ratio": ratio(|round| (round.readers + round.agent) / round.delivered),
            "all_cpu_ratio": ratio(Round::cpu_a_gb),
        }),
    );
    Ok(())
}

fn made(worker: &Worker) -> anyhow::Result<Option<f64>> {
    Ok(worker.metrics()?.get("feedmill_worker_stage_runs_total{stage=\"fill\"}").copied())
}

fn start_agent(
    program: &std::path::Path,
    worker: &Worker,
    socket: &std::path::Path,
) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    command
        .args([
            "agent",
            "--listen",
            "127.0.0.1:0",
            "--exit-with-stdin",
            "--memory",
            MEMORY,
            "--max-batch",
            "16Mi",
            "--socket",
        ])
        .arg(socket);
    command.args(["--upstream", &format!("http://{}", worker.address)]).env("RUST_LOG", "warn");
    let mut agent = Process::start(&mut command)?;
    let said: Value = serde_json::from_str(&agent.line()?)?;
    let address = said["listening"].as_str().context("the agent does not say where it listens")?.parse()?;
    let mut connection = http1::Connection::open(address)?;
    while connection.get("/readyz")?.status != 200 {}
    Ok(agent)
}

fn readers(
    arguments: &Arguments,
    worker: &Worker,
    agent: Option<&std::path::Path>,
) -> anyhow::Result<Vec<Process>> {
    let started = (0..arguments.readers).map(|_| {
        let mut reader = roles::start_reader(worker.address, agent)?;
        reader.line()?;
        Ok(reader)
    });
    started.collect()
}

/// All readers read the same at once.
fn round(
    worker: &Worker,
    agent: &Process,
    readers: &mut [Process],
    question: &Value,
) -> anyhow::Result<Round> {
    let seconds =
        |processes: &[Process]| -> anyhow::Result<f64> { processes.iter().map(Process::cpu_seconds).sum() };
    let sent = || -> anyhow::Result<f64> {
        let metrics = worker.metrics()?;
        metrics.get("feedmill_worker_sent_bytes_total").copied().context("the worker counts no bytes")
    };
    let before = (seconds(readers)?, agent.cpu_seconds()?, worker.process.cpu_seconds()?, sent()?);
    let answers: Vec<anyhow::Result<Value>> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            readers.iter_mut().map(|reader| scope.spawn(move || reader.ask(question))).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap_or_else(|_| bail!("a thread ended early")))
            .collect()
    });
    let (mut bytes, mut longest) = (0.0, 0f64);
    for answer in answers {
        let answer = answer?;
        bytes += answer["bytes"].as_f64().context("no bytes")?;
        longest = longest.max(answer["seconds"].as_f64().context("no seconds")?);
    }
    Ok(Round {
        delivered: bytes / 1e9,
        sent: (sent()? - before.3) / 1e9,
        seconds: longest,
        readers: seconds(readers)? - before.0,
        agent: agent.cpu_seconds()? - before.1,
        worker: worker.process.cpu_seconds()? - before.2,
    })
}

fn figures(rounds: &[Round]) -> Value {
    let middle = |figure: &dyn Fn(&Round) -> f64| rounded(median(rounds.iter().map(figure)));
    json!({
        "gb_per_s": middle(&|round| round.delivered / round.seconds),
        "readers_cpu_s_per_gb": middle(&|round| round.readers / round.delivered),
        "agent_cpu_s_per_gb": middle(&|round| round.agent / round.delivered),
        "worker_cpu_s_per_gb": middle(&|round| round.worker / round.delivered),
        "sent_of_delivered": middle(&|round| round.sent / round.delivered),
    })
}
