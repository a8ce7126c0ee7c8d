//! How much CPU receiving batches costs, in the clear and over TLS, beside a raw TCP read of the same bytes in the same run.
//!
//! `cargo bench -p feedmill-client --bench receive` prints one JSON line per shape. The server is this
//! program again in a process of its own, so that each side's CPU time is its own. Both sides run on one
//! thread. glibc gives large buffers back to the kernel and faults them in again each time;
//! `MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296` (digits only: glibc reads `1G`
//! as 1) shows the figures without that, as an allocator that keeps freed memory has them.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedmill_access::{Guard, GuardFiles, Pass, PassSettings};
use feedmill_client::{BatchRequest, Endpoint, ExpectedPlan, Fleet, FleetSettings};
use feedmill_protocol::frame::{BatchShape, FORMAT_VERSION, write_header};
use feedmill_protocol::http::{CONTENT_SAFETENSORS, HEADER_PLAN};
use feedmill_protocol::plan::Plan;
use feedmill_protocol::position::Range;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

const SERVE: &str = "FEEDMILL_BENCH_SERVE_BYTES";
/// Folder with cert.pem and key.pem.
const CERTIFICATE: &str = "FEEDMILL_BENCH_CERTIFICATE";
const RANGES: u64 = 4;
const ROWS: u64 = 4;
const ROUNDS: usize = 5;

fn main() {
    if let Ok(bytes) = std::env::var(SERVE) {
        runtime().block_on(serve(bytes.parse().expect("a number of bytes")));
        return;
    }
    for (bytes, streams, repeats) in [(800_000, 4, 800), (8_000_000, 1, 120), (48_000_000, 4, 24)] {
        measure(bytes, streams, repeats);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// One round of one way of receiving: seconds, own CPU seconds, the server's CPU seconds.
struct Round {
    seconds: f64,
    client: f64,
    server: f64,
    gigabytes: f64,
}

fn measure(bytes: usize, streams: usize, repeats: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let authority = folder.path().join("cert.pem");
    std::fs::write(&authority, made.cert.pem()).expect("a file");
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).expect("a file");
    let mut server = Command::new(std::env::current_exe().expect("own path"))
        .env(SERVE, bytes.to_string())
        .env(CERTIFICATE, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut address = || -> SocketAddr {
        let line = lines.next().expect("an address").expect("a line");
        line.parse().expect("an address")
    };
    let (batches, secured, raw) = (address(), address(), address());
    let fleet = |endpoint: Endpoint, pass: Pass| {
        Fleet::new(FleetSettings { pass, ..FleetSettings::new("bench", vec![endpoint]) }).expect("a fleet")
    };
    let clear = fleet(Endpoint::from(batches), Pass::default());
    let trusting = PassSettings { token: None, authorities: Some(authority) };
    let tls = fleet(Endpoint::from(secured).over_tls(), Pass::new(trusting).expect("an authority"));
    let runtime = runtime();
    let (mut ours, mut over_tls, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(timed(server.id(), || runtime.block_on(fetch(&clear, streams, repeats))));
        over_tls.push(timed(server.id(), || runtime.block_on(fetch(&tls, streams, repeats))));
        theirs.push(timed(server.id(), || read_raw(raw, bytes, repeats)));
    }
    server.kill().expect("an end");
    server.wait().expect("an end");
    let median = |rounds: &[Round], figure: fn(&Round) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        (figures[figures.len() / 2] * 1000.0).round() / 1000.0
    };
    let figures = |rounds: &[Round]| {
        serde_json::json!({
            "gb_per_s": median(rounds, |round| round.gigabytes / round.seconds),
            "client_cpu_s_per_gb": median(rounds, |round| round.client / round.gigabytes),
            "server_cpu_s_per_gb": median(rounds, |round| round.server / round.gigabytes),
        })
    };
    let line = serde_json::json!({
        "bench": "receive", "batch_bytes": bytes, "streams": streams, "rounds": ROUNDS,
        "feedmill": figures(&ours), "feedmill_tls": figures(&over_tls), "raw_tcp": figures(&theirs),
    });
    println!("{line}");
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn timed(server: u32, work: impl FnOnce() -> u64) -> Round {
    let (own, others) = (cpu_seconds("self"), cpu_seconds(&server.to_string()));
    let begin = Instant::now();
    let received = work();
    Round {
        seconds: begin.elapsed().as_secs_f64(),
        client: cpu_seconds("self") - own,
        server: cpu_seconds(&server.to_string()) - others,
        gigabytes: received as f64 / 1e9,
    }
}

/// User and system time of a process: schedstat's first figure is in nanoseconds, for one thread, and
/// both processes have one.
fn cpu_seconds(process: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).expect("schedstat");
    let nanoseconds = text.split(' ').next().expect("a field");
    nanoseconds.parse::<f64>().expect("a number") / 1e9
}

async fn fetch(fleet: &Fleet, streams: usize, repeats: usize) -> u64 {
    let plan = ExpectedPlan::from(Some(Plan::new().digest()));
    let each = (0..streams).map(|stream| {
        let plan = plan.clone();
        async move {
            let mut received = 0;
            for number in 0..repeats / streams {
                let request = BatchRequest {
                    stream: "train".into(),
                    range: range((number + stream) as u64 % RANGES),
                    stop: None,
                    need: Duration::ZERO,
                    rank: 0,
                    plan: plan.clone(),
                    deaths: 0,
                };
                received += fleet.fetch(&request).await.expect("a batch").bytes().len() as u64;
            }
            received
        }
    });
    join_all(each).await.into_iter().sum()
}

fn read_raw(address: SocketAddr, bytes: usize, repeats: usize) -> u64 {
    let mut socket = TcpStream::connect(address).expect("a connection");
    let mut received = 0;
    for _ in 0..repeats {
        socket.write_all(b"x").expect("a request");
        let mut buffer = vec![0; bytes];
        socket.read_exact(&mut buffer).expect("an answer");
        received += buffer.len() as u64;
    }
    received
}

fn range(number: u64) -> Range {
    Range::new(number * ROWS, number * ROWS + ROWS).expect("a range")
}

async fn serve(bytes: usize) {
    let frames: Arc<Vec<Bytes>> = Arc::new((0..RANGES).map(|number| frame(range(number), bytes)).collect());
    let bind = || tokio::net::TcpListener::bind("127.0.0.1:0");
    let (batches, secured) = (bind().await.expect("a port"), bind().await.expect("a port"));
    let raw = bind().await.expect("a port");
    println!("{}", batches.local_addr().expect("an address"));
    println!("{}", secured.local_addr().expect("an address"));
    println!("{}", raw.local_addr().expect("an address"));
    let answers = Arc::clone(&frames);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = raw.accept().await.expect("a connection");
            let bytes = frames[0].slice(..bytes);
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                while socket.read_u8().await.is_ok() {
                    socket.write_all(&bytes).await.expect("a reader");
                }
            });
        }
    });
    let folder = std::path::PathBuf::from(std::env::var_os(CERTIFICATE).expect("a folder"));
    let certificate = Some((folder.join("cert.pem"), folder.join("key.pem")));
    let guard = Guard::new(GuardFiles { certificate, ..GuardFiles::default() }).expect("a certificate");
    let acceptor = TlsAcceptor::from(guard.tls().expect("TLS"));
    loop {
        tokio::select! {
            accepted = batches.accept() => {
                let (socket, _) = accepted.expect("a connection");
                socket.set_nodelay(true).expect("an option");
                answer(socket, Arc::clone(&answers));
            }
            accepted = secured.accept() => {
                let (socket, _) = accepted.expect("a connection");
                socket.set_nodelay(true).expect("an option");
                answer(acceptor.accept(socket).await.expect("a handshake"), Arc::clone(&answers));
            }
        }
    }
}

/// Serves a connection on a task of its own.
fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(socket: S, frames: Arc<Vec<Bytes>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (_, range) = request.uri().path().rsplit_once('/').expect("a range");
        let range: Range = range.parse().expect("a range");
        let body = frames[(range.start() / ROWS) as usize].clone();
        async move {
            let answer = Response::builder()
                .header("content-type", CONTENT_SAFETENSORS)
                .header(HEADER_PLAN, Plan::new().digest().to_string())
                .body(Full::new(body));
            Ok::<_, Infallible>(answer.expect("an answer"))
        }
    });
    tokio::spawn(
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(socket), service),
    );
}

/// A batch of at least this many bytes, nearly all of them patches.
fn frame(range: Range, bytes: usize) -> Bytes {
    let rows = ROWS as usize;
    let (tokens, patch_bytes) = (rows * 600, 768);
    let patches = (bytes / patch_bytes).next_multiple_of(rows);
    let shape = BatchShape { samples: rows, tokens, images: rows, patches, patch_bytes };
    let plan = Plan::new().digest().to_string();
    let metadata = [("format", FORMAT_VERSION), ("plan", &plan), ("range", &range.to_string())];
    let mut frame = write_header(&shape.tensors(), &metadata);
    frame.resize(frame.len() + patches * patch_bytes, 7);
    frame.resize(frame.len() + rows * 16, 0);
    frame.extend((0..rows).flat_map(|_| [1, 1, (patches / rows) as i32].map(i32::to_le_bytes)).flatten());
    frame.resize(frame.len() + tokens * 4, 0);
    frame.extend((0..=rows).flat_map(|row| ((row * 600) as i32).to_le_bytes()));
    frame.extend((0..rows).flat_map(|_| 1i32.to_le_bytes()));
    frame.resize(frame.len() + rows * 4 + tokens + rows + rows * 16, 0);
    frame.into()
}
