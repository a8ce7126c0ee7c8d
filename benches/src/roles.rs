//! What this program is when it was started by itself: an S3 server, a consumer, a raw TCP server. Each ends
//! when its standard input is closed.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use feedmill_arena::{Arena, ArenaSettings, RegionLease, Urgency};
use feedmill_client::{BatchRequest, Endpoint, ExpectedPlan, Fleet, FleetSettings, Puller, PullerSettings};
use feedmill_embedded_s3::{EmbeddedS3, Keys};
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;
use feedmill_testkit::{VersityGw, client_with, put_folder};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::dataset::{BUCKET, Dataset};
use crate::figures::now;
use crate::http2;
use crate::process::Process;

const ROLE: &str = "FEEDMILL_BENCH_ROLE";
const ARGUMENT: &str = "FEEDMILL_BENCH_ARGUMENT";

/// Plays the role that this program was started for; false when it was started by a person.
///
/// # Errors
/// What the role cannot do.
pub fn play() -> anyhow::Result<bool> {
    let Some((role, argument)) = given() else {
        return Ok(false);
    };
    match role.as_str() {
        "s3" => s3(Path::new(&argument))?,
        "versitygw" => versitygw(Path::new(&argument))?,
        "consumer" => consumer()?,
        "reader" => reader(&argument)?,
        "raw" => raw(argument.parse()?)?,
        "delay" => delay(&argument)?,
        other => bail!("no role {other}"),
    }
    Ok(true)
}

/// The role that this program was started for, and its argument.
#[must_use]
pub fn given() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var(ARGUMENT).unwrap_or_default()))
}

/// Starts this program again for a role.
///
/// # Errors
/// It does not start.
pub fn start(role: &str, argument: &str) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, role).env(ARGUMENT, argument);
    // The system's allocator would give every long frame back to the kernel and take it anew.
    command.env("MALLOC_MMAP_THRESHOLD_", "1073741824").env("MALLOC_TRIM_THRESHOLD_", "4294967296");
    Process::start(&mut command)
}

/// An S3 server over the data set in a process of its own, and its endpoint.
///
/// # Errors
/// It does not start.
pub fn start_s3(dataset: &Dataset) -> anyhow::Result<(Process, String)> {
    let mut process = start("s3", &dataset.buckets().to_string_lossy())?;
    let endpoint = process.line()?;
    Ok((process, endpoint))
}

/// The same from versitygw, which is built first if need be; the number is that of the server's process.
///
/// # Errors
/// It does not start.
pub fn start_versitygw(dataset: &Dataset) -> anyhow::Result<(Process, String, u32)> {
    let mut process = start("versitygw", &dataset.bucket().to_string_lossy())?;
    let (endpoint, server) = (process.line()?, process.line()?.parse()?);
    Ok((process, endpoint, server))
}

/// A process that passes on what comes for `endpoint`, what is asked only after `milliseconds`, and its own
/// endpoint.
///
/// # Errors
/// It does not start.
pub fn start_delay(endpoint: &str, milliseconds: u64) -> anyhow::Result<(Process, String)> {
    let address = endpoint.strip_prefix("http://").context("an endpoint without http://")?;
    let mut process = start("delay", &format!("{address} {milliseconds}"))?;
    let endpoint = format!("http://{}", process.line()?);
    Ok((process, endpoint))
}

/// A consumer: see [`pull`], [`fetch`] and [`fetch_raw`].
///
/// # Errors
/// It does not start.
pub fn start_consumer() -> anyhow::Result<Process> {
    start("consumer", "")
}

/// A process that writes `bytes` bytes from a memfd for every byte that it gets, and its address.
///
/// # Errors
/// It does not start.
pub fn start_raw(bytes: usize) -> anyhow::Result<(Process, SocketAddr)> {
    let mut process = start("raw", &bytes.to_string())?;
    let address = process.line()?.parse()?;
    Ok((process, address))
}

/// A reader of ranges: from an agent by its socket, or from a worker over HTTP; see [`read`].
///
/// # Errors
/// It does not start.
pub fn start_reader(worker: SocketAddr, agent: Option<&Path>) -> anyhow::Result<Process> {
    start("reader", &json!({"worker": worker.to_string(), "agent": agent}).to_string())
}

/// The question that has a reader read `count` ranges of `samples` samples from `start` on, four outstanding,
/// looking at a byte of every page; the answer has bytes and seconds.
#[must_use]
pub fn read(start: u64, count: u64, samples: u64) -> Value {
    json!({"start": start, "count": count, "samples": samples})
}

/// Has a consumer read a stream's samples in order; gives samples, bytes as they came and as the HF
/// processor's tensors would have, tokens and seconds.
///
/// # Errors
/// What went wrong there.
pub fn pull(
    consumer: &mut Process,
    worker: SocketAddr,
    samples: std::ops::Range<u64>,
) -> anyhow::Result<Value> {
    let (address, consumed, stop) = (worker.to_string(), samples.start, samples.end);
    consumer.ask(&json!({"what": "pull", "address": address, "consumed": consumed, "stop": stop}))
}

/// Has a consumer ask for the same range again and again over HTTP/2; gives bytes and seconds.
///
/// # Errors
/// What went wrong there.
pub fn fetch(
    consumer: &mut Process,
    worker: SocketAddr,
    path: &str,
    most: usize,
    times: usize,
    streams: usize,
) -> anyhow::Result<Value> {
    let address = worker.to_string();
    let question = json!({
        "what": "fetch", "address": address, "path": path, "most": most, "times": times, "streams": streams,
    });
    consumer.ask(&question)
}

/// Has a consumer read from a raw TCP server; gives bytes and seconds.
///
/// # Errors
/// What went wrong there.
pub fn fetch_raw(
    consumer: &mut Process,
    raw: SocketAddr,
    bytes: usize,
    times: usize,
) -> anyhow::Result<Value> {
    consumer.ask(&json!({"what": "raw", "address": raw.to_string(), "bytes": bytes, "times": times}))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Blocks until standard input is closed.
fn until_closed() -> anyhow::Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn s3(folder: &Path) -> anyhow::Result<()> {
    // File reads go to threads of their own; one more for everything else is what a server beside a worker has.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let keys = Keys { access_key_id: "bench".into(), secret_access_key: "bench-secret".into() };
    let server = runtime.block_on(EmbeddedS3::start(folder, &keys))?;
    println!("{}", server.endpoint());
    until_closed()?;
    drop(server);
    runtime.shutdown_background();
    Ok(())
}

/// Puts the objects of a folder into the bucket `photos` of a server of its own.
fn versitygw(folder: &Path) -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let keys = ("bench", "bench-secret");
    let server = VersityGw::start_with(root.path(), keys);
    let client = client_with(&server.endpoint(), keys);
    runtime()?.block_on(async {
        server.create_bucket(BUCKET).await;
        put_folder(&client, BUCKET, folder, "").await;
    });
    println!("{}\n{}", server.endpoint(), server.process_id());
    until_closed()
}

/// A wire of some length: each piece that is asked arrives so much later, answers come at once.
fn delay(argument: &str) -> anyhow::Result<()> {
    let (upstream, milliseconds) = argument.split_once(' ').context("no delay")?;
    let (upstream, delay): (SocketAddr, _) =
        (upstream.parse()?, Duration::from_millis(milliseconds.parse()?));
    let runtime = runtime()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(move || {
        runtime.block_on(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(delayed(socket, upstream, delay));
            }
        });
    });
    until_closed()
}

async fn delayed(
    asking: tokio::net::TcpStream,
    upstream: SocketAddr,
    delay: Duration,
) -> std::io::Result<()> {
    let answering = tokio::net::TcpStream::connect(upstream).await?;
    asking.set_nodelay(true)?;
    answering.set_nodelay(true)?;
    let (mut questions, mut back) = asking.into_split();
    let (mut answers, mut forth) = answering.into_split();
    tokio::spawn(async move {
        // An end on either side ends both.
        drop(tokio::io::copy(&mut answers, &mut back).await);
    });
    let mut piece = vec![0; 64 << 10];
    loop {
        // A request is one piece, and the next one waits for its answer.
        let length = questions.read(&mut piece).await?;
        if length == 0 {
            return forth.shutdown().await;
        }
        tokio::time::sleep(delay).await;
        forth.write_all(&piece[..length]).await?;
    }
}

fn raw(bytes: usize) -> anyhow::Result<()> {
    let arena = Arena::create(ArenaSettings { bytes: bytes as u64 + (1 << 20) })?;
    let reservation = runtime()?.block_on(arena.reserve(bytes, &Urgency::new(0)))?;
    let mut writer = reservation.begin_fill()?;
    for (at, byte) in writer.as_mut_slice().iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let region = writer.finish();
    let memory = Arc::new(region.lease().context("a fresh region can be leased")?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let memory = Arc::clone(&memory);
            std::thread::spawn(move || write_on_demand(socket, &memory));
        }
    });
    until_closed()
}

fn write_on_demand(mut socket: TcpStream, memory: &RegionLease) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut demand = [0];
    while socket.read(&mut demand)? > 0 {
        socket.write_all(memory)?;
    }
    Ok(())
}

fn consumer() -> anyhow::Result<()> {
    let runtime = runtime()?;
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let text = |name: &str| question[name].as_str().with_context(|| format!("no {name}"));
        let number = |name: &str| question[name].as_u64().with_context(|| format!("no {name}"));
        let address: SocketAddr = text("address")?.parse()?;
        let answer = match text("what")? {
            "pull" => runtime.block_on(pull_all(address, number("consumed")?, number("stop")?))?,
            "fetch" => {
                let (most, times, streams) = (number("most")?, number("times")?, number("streams")?);
                let asking = fetch_all(address, text("path")?, most as usize, times, streams);
                runtime.block_on(asking)?
            }
            _ => read_raw(address, number("bytes")? as usize, number("times")?)?,
        };
        println!("{answer}");
    }
    Ok(())
}

/// Batches of 4, 12 of them outstanding: more than the worker has in flight, so that it never waits.
async fn pull_all(address: SocketAddr, consumed: u64, stop: u64) -> anyhow::Result<Value> {
    let fleet = Fleet::new(FleetSettings::new("bench", vec![Endpoint::from(address)]))?;
    let settings = PullerSettings {
        stream: "train".into(),
        layout: RankLayout::new(4, 1, 4)?,
        rank: 0,
        consumed,
        stop: Some(stop),
        window: 12,
        plan: None,
    };
    let mut puller = Puller::new(fleet, settings)?;
    let (mut samples, mut bytes, mut expanded, mut tokens, mut pixels) = (0, 0, 0, 0, 0);
    let begun = now();
    while let Some(batch) = puller.next().await? {
        bytes += batch.bytes().len();
        for sample in batch.view()?.samples() {
            if sample.status != RowStatus::Ok {
                bail!("a row is {:?}: the data set is not what it should be", sample.status);
            }
            samples += 1;
            tokens += sample.tokens.len();
            pixels += sample.patches.len() / 3;
            // Patches as f32 and for both frames; ids, attention mask and labels as i64; grids as i64.
            expanded +=
                sample.patches.len() * 2 * 4 + sample.tokens.len() * 3 * 8 + sample.grids.len() * 3 * 8;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({
        "samples": samples, "bytes": bytes, "hf_bytes": expanded, "tokens": tokens, "pixels": pixels,
        "seconds": seconds,
    }))
}

/// Ranges that a reader has outstanding.
const READ_AHEAD: usize = 4;

/// A byte of every page is looked at, or pages that are lent would cost nothing at all.
const PAGE: usize = 4096;

fn reader(argument: &str) -> anyhow::Result<()> {
    let argument: Value = serde_json::from_str(argument)?;
    let worker: SocketAddr = argument["worker"].as_str().context("no worker")?.parse()?;
    let mut settings = FleetSettings::new("bench", vec![Endpoint::from(worker)]);
    settings.agent = argument["agent"].as_str().map(Into::into);
    let fleet = Fleet::new(settings)?;
    let runtime = runtime()?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let number = |name: &str| question[name].as_u64().with_context(|| format!("no {name}"));
        let reading = read_ranges(&fleet, number("start")?, number("count")?, number("samples")?);
        println!("{}", runtime.block_on(reading)?);
    }
    Ok(())
}

async fn read_ranges(fleet: &Fleet, start: u64, count: u64, samples: u64) -> anyhow::Result<Value> {
    let plan = ExpectedPlan::any();
    let begun = now();
    let asked = futures_util::stream::iter(0..count).map(|number| {
        let (fleet, plan, begin) = (fleet.clone(), plan.clone(), start + number * samples);
        async move {
            let request = BatchRequest {
                stream: "train".into(),
                range: Range::new(begin, begin + samples)?,
                stop: None,
                need: Duration::ZERO,
                rank: 0,
                plan,
                deaths: 0,
            };
            anyhow::Ok(fleet.fetch(&request).await?)
        }
    });
    let mut batches = asked.buffered(READ_AHEAD);
    let (mut bytes, mut looked_at) = (0, 0u64);
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        bytes += batch.bytes().len();
        looked_at += batch.bytes().iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum::<u64>();
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({"bytes": bytes, "seconds": seconds, "looked_at": looked_at}))
}

async fn fetch_all(
    address: SocketAddr,
    path: &str,
    most: usize,
    times: u64,
    streams: u64,
) -> anyhow::Result<Value> {
    let connection = http2::Connection::open(address, http2::STREAM_WINDOW).await?;
    let mut buffers: Vec<Vec<u8>> = (0..streams).map(|_| vec![1; most]).collect();
    let begun = now();
    let each = buffers.iter_mut().map(|buffer| {
        let mut connection = connection.clone();
        async move {
            let mut bytes = 0;
            for _ in 0..times / streams {
                bytes += connection.get(path, buffer, Duration::ZERO).await?;
            }
            anyhow::Ok(bytes)
        }
    });
    let bytes: usize = try_join_all(each).await?.into_iter().sum();
    Ok(json!({"bytes": bytes, "seconds": begun.elapsed().as_secs_f64()}))
}

fn read_raw(address: SocketAddr, bytes: usize, times: u64) -> anyhow::Result<Value> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let mut buffer = vec![1; bytes];
    let begun = now();
    for _ in 0..times {
        socket.write_all(&[0])?;
        socket.read_exact(&mut buffer)?;
    }
    Ok(json!({"bytes": bytes as u64 * times, "seconds": begun.elapsed().as_secs_f64()}))
}
