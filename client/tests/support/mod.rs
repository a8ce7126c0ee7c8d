//! A scripted worker: real frames over real HTTP/2 on loopback, with faults on demand.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use feedmill_client::{Endpoint, Fleet, FleetSettings, Timeouts};
use feedmill_protocol::frame::{BatchShape, FORMAT_VERSION, write_header};
use feedmill_protocol::hash::SampleHasher;
use feedmill_protocol::http::{
    CONTENT_PROBLEM, CONTENT_SAFETENSORS, HEADER_DEATHS, HEADER_NEED, HEADER_PLAN, HEADER_RUN, PATH_LIVE,
    PATH_PLAN, PATH_REPORTS, PATH_STATUS, Problem, problem_kind,
};
use feedmill_protocol::plan::{Plan, PlanDigest};
use feedmill_protocol::position::Range;
use feedmill_protocol::report::{RankReport, StreamStatus, WorkerState, WorkerStatus};
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};

pub const STREAM: &str = "train";

/// What a worker does with one request for a batch.
#[derive(Clone, Debug)]
pub enum Act {
    Batch,
    /// Waits for [`Worker::release`], then answers.
    Hold,
    /// 503 with this `Retry-After` and kind.
    NotNow(Option<u64>, &'static str),
    /// 409, naming this plan.
    OtherPlan(PlanDigest),
    /// A batch whose head names this plan.
    BatchOfPlan(PlanDigest),
    /// A status with this kind.
    Problem(u16, &'static str),
    /// A status with a body that is no problem document.
    PlainStatus(u16),
    ResetMidBody,
    ShortBody,
    LongBody,
    /// A content-length of 1 TiB.
    AbsurdLength,
    /// A frame of the next range.
    OtherRange,
    /// A frame with one byte of its header overwritten.
    Corrupt,
    /// A frame with one byte of its patches overwritten.
    OtherPatches,
    OtherContentType,
    NoPlanHeader,
    /// A frame of a format that is not known here, as a newer worker sends it.
    OtherFormat,
}

/// A request for a batch as a worker saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub range: Range,
    pub query: String,
    pub need: u64,
    pub run: String,
    pub plan: Option<String>,
    pub deaths: u32,
    /// How many requests this worker had seen before.
    pub number: usize,
}

#[derive(Default)]
pub struct Log {
    pub seen: Vec<Seen>,
    /// Requests begun and not ended.
    pub active: usize,
    pub most_active: usize,
    /// Requests that the client took back.
    pub cancelled: usize,
    pub held: Vec<Range>,
    pub reports: Vec<RankReport>,
    pub connections: usize,
    /// Connections that have not ended.
    pub open: usize,
    /// How often it was asked what it has ahead.
    pub load_asked: usize,
}

type Script = dyn Fn(&Seen) -> Act + Send + Sync;

struct Shared {
    script: Box<Script>,
    plan: Plan,
    /// How many answers of 503 `/v1/plan` gives first.
    not_ready: AtomicUsize,
    log: Mutex<Log>,
    changed: watch::Sender<u64>,
    releases: Mutex<HashMap<Range, Arc<Notify>>>,
    frozen: AtomicBool,
    /// Another process is the rank that reports.
    is_twice: AtomicBool,
    /// Those who wait for it to thaw.
    sleepers: Mutex<Vec<Waker>>,
    /// What it says of itself.
    status: Mutex<WorkerStatus>,
    goaway_after: Option<usize>,
}

pub struct Worker {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The plan that everyone has unless told otherwise.
pub fn plan() -> Plan {
    let mut plan = Plan::new();
    plan.set("seed", 42);
    plan
}

pub fn other_plan() -> Plan {
    let mut plan = Plan::new();
    plan.set("seed", 43);
    plan
}

impl Worker {
    pub async fn start(script: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Self::start_with(plan(), None, 0, script).await
    }

    pub async fn start_with(
        plan: Plan,
        goaway_after: Option<usize>,
        not_ready: usize,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let digest = plan.digest().to_string();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            plan,
            not_ready: AtomicUsize::new(not_ready),
            log: Mutex::default(),
            changed: watch::channel(0).0,
            releases: Mutex::default(),
            frozen: AtomicBool::new(false),
            is_twice: AtomicBool::new(false),
            sleepers: Mutex::default(),
            status: Mutex::new(status(digest)),
            goaway_after,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Some(tokio::spawn(serve(listener, Arc::clone(&shared))));
        Self { address, shared, serving }
    }

    pub fn endpoint(&self) -> Endpoint {
        self.address.into()
    }

    /// As SIGKILL does: every socket is closed, and connecting is refused.
    pub fn kill(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }

    /// On the port it had before.
    pub async fn restart(&mut self) {
        let listener = loop {
            // The killed one's sockets are closed when the runtime drops its tasks.
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        self.serving = Some(tokio::spawn(serve(listener, Arc::clone(&self.shared))));
    }

    /// As SIGSTOP does: sockets stay open, connecting works, nothing is read or written.
    pub fn freeze(&self) {
        self.shared.frozen.store(true, Ordering::SeqCst);
    }

    /// As SIGCONT does.
    pub fn thaw(&self) {
        self.shared.frozen.store(false, Ordering::SeqCst);
        for sleeper in self.shared.sleepers.lock().unwrap().drain(..) {
            sleeper.wake();
        }
    }

    /// Says something else of itself from now on.
    pub fn says(&self, change: impl FnOnce(&mut WorkerStatus)) {
        change(&mut self.shared.status.lock().unwrap());
    }

    /// From now on a rank that reports is there twice, or not any more.
    pub fn refuse_reports(&self, refused: bool) {
        self.shared.is_twice.store(refused, Ordering::SeqCst);
    }

    pub fn log<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&self.shared.log.lock().unwrap())
    }

    pub fn requests(&self) -> usize {
        self.log(|log| log.seen.len())
    }

    /// Waits until the log is as wanted.
    pub async fn until(&self, what: &str, mut wanted: impl FnMut(&Log) -> bool) {
        let mut changes = self.shared.changed.subscribe();
        let wait = async {
            while !self.log(&mut wanted) {
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), wait).await.is_err() {
            panic!("never came: {what}");
        }
    }

    /// Lets a held request be answered.
    pub fn release(&self, range: Range) {
        self.shared.release_of(range).notify_one();
    }
}

impl Shared {
    fn release_of(&self, range: Range) -> Arc<Notify> {
        Arc::clone(self.releases.lock().unwrap().entry(range).or_default())
    }

    fn note(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        shared.note(|log| {
            log.connections += 1;
            log.open += 1;
        });
        let serving = Arc::clone(&shared);
        connections.spawn(async move {
            connection(socket, Arc::clone(&serving)).await;
            serving.note(|log| log.open -= 1);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, shared: Arc<Shared>) {
    socket.set_nodelay(true).unwrap();
    let socket = Freezable { socket, shared: Arc::clone(&shared) };
    let enough = Arc::new(Notify::new());
    let count = Arc::new(AtomicUsize::new(0));
    let service = {
        let (shared, enough) = (Arc::clone(&shared), Arc::clone(&enough));
        service_fn(move |request| {
            let served = count.fetch_add(1, Ordering::SeqCst) + 1;
            if shared.goaway_after.is_some_and(|limit| served == limit) {
                enough.notify_one();
            }
            answer(request, Arc::clone(&shared))
        })
    };
    let served = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service);
    tokio::pin!(served);
    tokio::select! {
        _ = &mut served => {}
        () = enough.notified() => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

struct Freezable {
    socket: TcpStream,
    shared: Arc<Shared>,
}

impl Freezable {
    fn frozen(&self, context: &Context<'_>) -> bool {
        let mut sleepers = self.shared.sleepers.lock().unwrap();
        let frozen = self.shared.frozen.load(Ordering::SeqCst);
        if frozen {
            sleepers.push(context.waker().clone());
        }
        frozen
    }
}

impl AsyncRead for Freezable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.frozen(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Freezable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.frozen(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

type Answer = Response<BoxBody<Bytes, io::Error>>;

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    let digest = shared.plan.digest().to_string();
    let json = |value: serde_json::Value| whole(200, "application/json", value.to_string().into());
    Ok(match path.as_str() {
        PATH_LIVE => whole(200, "text/plain", Bytes::new()),
        PATH_PLAN => {
            let not_ready =
                shared.not_ready.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if not_ready.is_ok() {
                return Ok(problem(503, problem_kind::NOT_READY));
            }
            json(serde_json::json!({"streams": {STREAM: {
                "plan": digest, "samples_per_epoch": 1000, "facts": shared.plan, "more": 1,
            }}}))
        }
        PATH_STATUS => {
            if request.uri().query() == Some("reports=no") {
                shared.note(|log| log.load_asked += 1);
            }
            json(serde_json::to_value(&*shared.status.lock().unwrap()).unwrap())
        }
        PATH_REPORTS => {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let report: RankReport = serde_json::from_slice(&bytes).unwrap();
            let is_twice = shared.is_twice.load(Ordering::SeqCst) && report.begin.is_none();
            let disagrees = is_twice || report.begin.as_ref().is_some_and(|begin| begin.consumed != 32);
            shared.note(|log| log.reports.push(report));
            if disagrees {
                return Ok(problem(409, problem_kind::RUN_MISMATCH));
            }
            whole(204, "text/plain", Bytes::new())
        }
        _ => batch(&request, &path, &shared).await,
    })
}

/// Notes the end of a request, also when the client takes it back.
struct Active {
    shared: Arc<Shared>,
    range: Range,
    answered: bool,
}

impl Drop for Active {
    fn drop(&mut self) {
        self.shared.note(|log| {
            log.active -= 1;
            log.cancelled += usize::from(!self.answered);
            log.held.retain(|held| *held != self.range);
        });
    }
}

async fn batch(request: &Request<Incoming>, path: &str, shared: &Arc<Shared>) -> Answer {
    let (head, range) = path.rsplit_once('/').unwrap();
    assert_eq!(head, format!("/v1/streams/{STREAM}/batches"));
    let range: Range = range.parse().unwrap();
    let header = |name: &str| {
        let value = request.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    let mut seen = Seen {
        range,
        query: request.uri().query().unwrap_or_default().to_owned(),
        need: header(HEADER_NEED).unwrap().parse().unwrap(),
        run: header(HEADER_RUN).unwrap(),
        plan: header(HEADER_PLAN),
        deaths: header(HEADER_DEATHS).map_or(0, |deaths| deaths.parse().unwrap()),
        number: 0,
    };
    shared.note(|log| {
        seen.number = log.seen.len();
        log.seen.push(seen.clone());
        log.active += 1;
        log.most_active = log.most_active.max(log.active);
    });
    let mut active = Active { shared: Arc::clone(shared), range, answered: false };
    let act = (shared.script)(&seen);
    if matches!(act, Act::Hold) {
        let release = shared.release_of(range);
        shared.note(|log| log.held.push(range));
        release.notified().await;
    }
    active.answered = true;
    let plan = shared.plan.digest();
    let good = frame(range, plan);
    match act {
        Act::Batch | Act::Hold => safetensors(good.into(), plan, None),
        Act::NotNow(after, kind) => {
            let mut answer = problem(503, kind);
            if let Some(after) = after {
                answer.headers_mut().insert("retry-after", after.into());
            }
            answer
        }
        Act::OtherPlan(theirs) => {
            let mut answer = problem(409, problem_kind::OTHER_PLAN);
            let theirs = theirs.to_string().parse().unwrap();
            answer.headers_mut().insert(HEADER_PLAN, theirs);
            answer
        }
        Act::BatchOfPlan(theirs) => safetensors(frame(range, theirs).into(), theirs, None),
        Act::Problem(status, kind) => problem(status, kind),
        Act::PlainStatus(status) => whole(status, "text/html", "<b>proxy</b>".into()),
        Act::ResetMidBody => {
            let length = good.len();
            let half = Bytes::from(good).slice(..length / 2);
            let parts = [Ok(Frame::data(half)), Err(io::Error::other("scripted"))];
            let body = BodyExt::boxed(StreamBody::new(stream::iter(parts)));
            safetensors_head(plan, length).body(body).unwrap()
        }
        Act::ShortBody => {
            let length = good.len();
            safetensors(Bytes::from(good).slice(..length - 1), plan, Some(length))
        }
        Act::LongBody => {
            let length = good.len();
            safetensors(good.into(), plan, Some(length - 1))
        }
        Act::AbsurdLength => safetensors(good.into(), plan, Some(1 << 40)),
        Act::OtherRange => {
            let next = Range::new(range.start() + range.len(), range.end() + range.len());
            safetensors(frame(next.unwrap(), plan).into(), plan, None)
        }
        Act::Corrupt => {
            let mut bytes = good;
            bytes[20] ^= 0x55;
            safetensors(bytes.into(), plan, None)
        }
        Act::OtherPatches => {
            let mut bytes = good;
            bytes[4096] ^= 0x55;
            safetensors(bytes.into(), plan, None)
        }
        Act::OtherContentType => {
            let mut answer = safetensors(good.into(), plan, None);
            let kind = "application/octet-stream".parse().unwrap();
            answer.headers_mut().insert("content-type", kind);
            answer
        }
        Act::OtherFormat => {
            let mut bytes = good;
            let known = FORMAT_VERSION.as_bytes();
            let at = bytes.windows(known.len()).position(|part| part == known).unwrap();
            bytes[at + known.len() - 1] = b'9';
            safetensors(bytes.into(), plan, None)
        }
        Act::NoPlanHeader => {
            let mut answer = safetensors(good.into(), plan, None);
            answer.headers_mut().remove(HEADER_PLAN);
            answer
        }
    }
}

fn whole(status: u16, kind: &str, bytes: Bytes) -> Answer {
    let body = Full::new(bytes).map_err(|never: Infallible| match never {}).boxed();
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

fn safetensors_head(plan: PlanDigest, length: usize) -> http::response::Builder {
    Response::builder()
        .header("content-type", CONTENT_SAFETENSORS)
        .header("content-length", length)
        .header(HEADER_PLAN, plan.to_string())
}

fn safetensors(bytes: Bytes, plan: PlanDigest, length: Option<usize>) -> Answer {
    let length = length.unwrap_or(bytes.len());
    let body = Full::new(bytes).map_err(|never: Infallible| match never {}).boxed();
    safetensors_head(plan, length).body(body).unwrap()
}

fn problem(status: u16, kind: &str) -> Answer {
    let document = Problem {
        kind: kind.into(),
        status,
        title: "scripted".into(),
        detail: "as the test wants it".into(),
        remedy: Some("none".into()),
        dataset: Some("cats".into()),
        line: Some(17),
        key: None,
    };
    let bytes = serde_json::to_vec(&document).unwrap();
    whole(status, CONTENT_PROBLEM, bytes.into())
}

fn status(plan: String) -> WorkerStatus {
    let stream = StreamStatus { plan, samples_per_epoch: 1000 };
    WorkerStatus {
        worker: "scripted".into(),
        version: "0".into(),
        state: WorkerState::Ready,
        doing: None,
        cores: 1,
        streams: [(STREAM.to_owned(), stream)].into(),
        work_ahead: 0,
        ready: 0,
        batches: 0,
        samples: 0,
        bytes_out: 0,
        bytes_in: 0,
        busy_ms: 0,
        bad: Default::default(),
        problems: Vec::new(),
        agent: None,
        reports: Vec::new(),
    }
}

/// The frame of a range: one token, one picture of one patch per row, all from the position.
pub fn frame(range: Range, plan: PlanDigest) -> Vec<u8> {
    let rows = range.len() as usize;
    let shape = BatchShape { samples: rows, tokens: rows, images: rows, patches: rows, patch_bytes: 12 };
    let mut bytes = write_header(
        &shape.tensors(),
        &[("format", FORMAT_VERSION), ("plan", &plan.to_string()), ("range", &range.to_string())],
    );
    let patch = |position: u64| [(position % 251) as u8; 12];
    let token = |position: u64| (position % 150_000) as i32;
    bytes.extend(range.positions().flat_map(patch));
    bytes.extend(range.positions().flat_map(|p| (p as i64).to_le_bytes()));
    bytes.extend(range.positions().flat_map(|p| (p as i64).to_le_bytes()));
    bytes.extend((0..rows * 3).flat_map(|_| 1i32.to_le_bytes()));
    bytes.extend(range.positions().flat_map(|p| token(p).to_le_bytes()));
    bytes.extend((0..=rows as i32).flat_map(i32::to_le_bytes));
    bytes.extend((0..rows).flat_map(|_| 1i32.to_le_bytes()));
    bytes.extend((0..rows).flat_map(|_| 0i32.to_le_bytes()));
    bytes.extend(vec![1u8; rows]);
    bytes.extend(vec![0u8; rows]);
    for position in range.positions() {
        let mut hasher = SampleHasher::new(&[token(position)], &[1], &[[1, 1, 1]]);
        hasher.patches(&patch(position));
        bytes.extend(hasher.finish());
    }
    bytes
}

/// Short times, so that faults are found within a test's patience.
pub fn settings(workers: &[&Worker]) -> FleetSettings {
    let mut settings = FleetSettings::new("run-1", workers.iter().map(|worker| worker.endpoint()).collect());
    settings.timeouts = Timeouts {
        total: Duration::from_secs(30),
        keep_alive_interval: Duration::from_millis(100),
        keep_alive_timeout: Duration::from_millis(400),
        control: Duration::from_secs(1),
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        plan_grace: Duration::from_millis(100),
        // On a busy machine nobody may be taken for silent by chance; tests of silence say so themselves.
        silence: Duration::from_secs(20),
        ..Timeouts::default()
    };
    // Requests are counted.
    settings.hedge = false;
    settings.report_every = None;
    settings
}

pub fn fleet(workers: &[&Worker]) -> Fleet {
    Fleet::new(settings(workers)).unwrap()
}

/// What is told at level WARN or above, on this thread, where a test's runtime has only this one.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Until what it gives is dropped.
    pub fn hear(&self) -> tracing::subscriber::DefaultGuard {
        tracing::subscriber::set_default(self.clone())
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
