//! One connection to an agent, and what it lends.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feedmill_arena::{MappedRegion, MappedSlab};
use feedmill_protocol::http::Problem;
use feedmill_protocol::local::{Ask, AskedBatch, BatchPlace, LOCAL_VERSION, MAX_SAY_BYTES, Say};
use feedmill_protocol::plan::PlanDigest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::wire::LocalWire;
use super::{AgentStats, Reach, gone};
use crate::answer;
use crate::batch::{Batch, BatchBytes, Timings};
use crate::buffer::Buffer;
use crate::chance;
use crate::error::lock;
use crate::fault::Fault;
use crate::fleet::BatchRequest;
use crate::settings::Endpoint;

/// A pause when the agent cannot now: it has waited for room itself before it said so.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What this process has of the agent's memory, over all connections.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    held: AtomicU64,
    share: AtomicU64,
    copied_out: AtomicU64,
    connections: AtomicU64,
}

impl Lending {
    pub(crate) fn stats(&self) -> AgentStats {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        AgentStats {
            held_bytes: read(&self.held),
            share_bytes: read(&self.share),
            copied_out: read(&self.copied_out),
            connections: read(&self.connections),
        }
    }

    /// Whether more is held than the share. The agent lends one batch beyond it and then waits for a release, so
    /// whatever came last is copied out.
    fn is_too_much(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.share.load(Ordering::Relaxed)
    }
}

/// An open connection. It lives, and with it what was lent, until the last batch that came over it is gone.
pub(crate) struct Connection {
    asks: mpsc::UnboundedSender<Ask>,
    url: Endpoint,
    next_id: AtomicU64,
    pending: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    closed: AtomicBool,
    lending: Arc<Lending>,
    /// After a fork the socket is the parent's.
    process: u32,
}

/// What came for an ask.
type Outcome = Result<Answer, (Option<Endpoint>, Fault)>;

enum Answer {
    Batch { lent: Lent, plan: String, worker: String },
    Document(String),
}

/// A batch in the agent's memory; dropping it gives it back.
struct Lent {
    connection: Arc<Connection>,
    lease: u64,
    region: MappedRegion,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.region
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.connection.process != std::process::id() {
            // The child of a fork: what is lent is lent to the parent, whose task may be woken by nobody else.
            std::mem::forget(Arc::clone(&self.connection));
            return;
        }
        self.connection.lending.held.fetch_sub(self.region.len() as u64, Ordering::Relaxed);
        // Nobody receives it when the agent is gone, and with it what it lent.
        drop(self.connection.asks.send(Ask::Release { lease: self.lease }));
    }
}

/// Takes an ask back when nobody waits for it any more.
struct Waiting<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if lock(&self.connection.pending).remove(&self.id).is_some() {
            drop(self.connection.asks.send(Ask::Cancel { id: self.id }));
        }
    }
}

impl Connection {
    /// Connects and says hello.
    pub(crate) async fn open(
        socket: &Path,
        run: &str,
        lending: &Arc<Lending>,
        reach: &Arc<watch::Sender<Reach>>,
    ) -> Result<Arc<Self>, Fault> {
        let stream = UnixStream::connect(socket).await.map_err(|error| Fault::Connect(error.to_string()))?;
        let mut wire = LocalWire::new(stream, MAX_SAY_BYTES, true);
        wire.put(&Ask::Hello { version: LOCAL_VERSION, run: run.to_owned() }, None);
        let welcome = loop {
            wire.turn().await.map_err(Fault::Lost)?;
            if let Some(said) = wire.message().map_err(Fault::Lost)? {
                break said;
            }
        };
        let (url, share) = match welcome {
            Say::Welcome { version: LOCAL_VERSION, url, share, .. } => (url, share),
            Say::Welcome { version, .. } => {
                let text = format!("it speaks version {version}, this side {LOCAL_VERSION}");
                return Err(Fault::Head(text));
            }
            Say::Refusal { problem, .. } => return Err(refusal(problem, None)),
            _ => return Err(Fault::Head("it did not answer the hello".into())),
        };
        let url = url.parse().map_err(|_| Fault::Head(format!("it says it is at {url:?}")))?;
        lending.share.store(share, Ordering::Relaxed);
        lending.connections.fetch_add(1, Ordering::Relaxed);
        let (asks, asked) = mpsc::unbounded_channel();
        let connection = Arc::new(Self {
            asks,
            url,
            next_id: AtomicU64::new(1),
            pending: Mutex::default(),
            closed: AtomicBool::new(false),
            lending: Arc::clone(lending),
            process: std::process::id(),
        });
        // The task knows the connection weakly: it ends when nobody asks and nothing is lent any more.
        let pump = Pump { wire, asked, connection: Arc::downgrade(&connection), slabs: HashMap::new() };
        tokio::spawn(pump.run(Arc::clone(reach)));
        Ok(connection)
    }

    pub(crate) fn url(&self) -> &Endpoint {
        &self.url
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Nothing more comes: whoever waits is told.
    fn close(&self, reason: &str) {
        self.closed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *lock(&self.pending));
        for outcome in waiting.into_values() {
            drop(outcome.send(Err((None, Fault::Lost(reason.to_owned())))));
        }
    }

    async fn ask(&self, ask: impl FnOnce(u64) -> Ask) -> Outcome {
        let lost = || Err((None, Fault::Lost("the agent is gone".into())));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.pending).insert(id, answer);
        let _waiting = Waiting { connection: self, id };
        // Looked at after the ask was noted: one that closes in between tells it, or is seen here.
        if self.is_closed() || self.asks.send(ask(id)).is_err() {
            return lost();
        }
        answered.await.unwrap_or_else(|_| lost())
    }

    /// A document.
    pub(crate) async fn document(&self, ask: impl FnOnce(u64) -> Ask) -> Result<String, Fault> {
        match self.ask(ask).await {
            Ok(Answer::Document(body)) => Ok(body),
            Ok(Answer::Batch { .. }) => Err(Fault::Head("a batch came for something else".into())),
            Err((_, fault)) => Err(fault),
        }
    }

    /// A batch, or the fault and who is to blame.
    pub(crate) async fn batch(
        &self,
        request: &BatchRequest,
        needed_at: Instant,
        max_batch_bytes: u64,
        verify_hashes: bool,
    ) -> Result<Batch, (Endpoint, Fault)> {
        let here = |fault| (self.url.clone(), fault);
        let begin = chance::now();
        let expected = request.plan.get();
        let need = needed_at.saturating_duration_since(begin);
        let batch = AskedBatch {
            stream: request.stream.clone(),
            range: request.range.to_string(),
            stop: request.stop,
            need_ms: u64::try_from(need.as_millis()).unwrap_or(u64::MAX),
            rank: request.rank,
            plan: expected.map(|plan| plan.to_string()),
            deaths: request.deaths,
        };
        let (lent, plan, worker) = match self.ask(|id| Ask::Batch { id, batch }).await {
            Ok(Answer::Batch { lent, plan, worker }) => (lent, plan, worker),
            Ok(Answer::Document(_)) => return Err(here(Fault::Head("a document came for a batch".into()))),
            Err((worker, fault)) => return Err((worker.unwrap_or_else(|| self.url.clone()), fault)),
        };
        let worker: Endpoint =
            worker.parse().map_err(|_| here(Fault::Head(format!("worker {worker:?} is no address"))))?;
        let on = |fault| (worker.clone(), fault);
        let plan: PlanDigest =
            plan.parse().map_err(|_| here(Fault::Head(format!("plan {plan:?} is no digest"))))?;
        let bytes = lent.region.len() as u64;
        if bytes > max_batch_bytes {
            return Err(on(Fault::TooLong { expected: bytes, limit: max_batch_bytes }));
        }
        let counts = answer::batch_bytes(&lent.region, request.range, plan, verify_hashes).map_err(on)?;
        if request.plan.fix(plan) != plan {
            return Err(on(Fault::OtherPlan { theirs: Some(plan) }));
        }
        let bytes = if self.lending.is_too_much() {
            self.lending.copied_out.fetch_add(1, Ordering::Relaxed);
            copied(&lent.region).map_err(on)?.into()
        } else {
            BatchBytes::Lent(Arc::new(lent))
        };
        let timings = Timings { head: chance::now() - begin, ..Timings::default() };
        Ok(Batch { bytes, range: request.range, plan, worker, timings, counts })
    }
}

/// A copy in memory of this process.
fn copied(bytes: &[u8]) -> Result<Buffer, Fault> {
    let mut copy = Buffer::with_room(bytes.len()).map_err(|_| Fault::NoMemory(bytes.len() as u64))?;
    copy.extend(bytes);
    Ok(copy)
}

/// What a refusal means here.
fn refusal(problem: Problem, plan: Option<&str>) -> Fault {
    match problem.status {
        503 | 429 => {
            Fault::NotNow { kind: format!("{}: {}", problem.kind, problem.detail), retry_after: RETRY_AFTER }
        }
        401 | 403 => Fault::Denied { status: problem.status, problem: Box::new(problem) },
        409 if plan.is_some() => Fault::OtherPlan { theirs: plan.and_then(|plan| plan.parse().ok()) },
        status => Fault::Status { status, problem: Box::new(problem) },
    }
}

/// The task of a connection.
struct Pump {
    wire: LocalWire,
    asked: mpsc::UnboundedReceiver<Ask>,
    connection: std::sync::Weak<Connection>,
    slabs: HashMap<u32, Arc<MappedSlab>>,
}

impl Pump {
    async fn run(mut self, reach: Arc<watch::Sender<Reach>>) {
        let Some(reason) = self.exchange().await else {
            return;
        };
        if let Some(connection) = self.connection.upgrade() {
            gone(&reach, reason.clone());
            connection.close(&reason);
        }
        // The socket stays open while anything is lent: the agent would give its place to another batch.
        while self.asked.recv().await.is_some() {}
    }

    /// Sends and receives until nobody asks any more (None), or something is wrong.
    async fn exchange(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                ask = self.asked.recv() => self.wire.put(&ask?, None),
                turned = self.wire.turn() => {
                    if let Err(reason) = turned {
                        return Some(reason);
                    }
                    loop {
                        match self.wire.message() {
                            Ok(Some(said)) => {
                                if let Err(reason) = self.take(said) {
                                    return Some(reason);
                                }
                            }
                            Ok(None) => break,
                            Err(reason) => return Some(reason),
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, said: Say) -> Result<(), String> {
        let (id, outcome) = match said {
            Say::Slab { slab, bytes } => {
                let file = self.wire.descriptor().ok_or("a slab came without its descriptor")?;
                let mapped = MappedSlab::map(file, bytes).map_err(|error| format!("slab {slab}: {error}"))?;
                self.slabs.insert(slab, mapped);
                return Ok(());
            }
            Say::Welcome { .. } => return Err("a second welcome came".into()),
            Say::Batch { id, place, plan, worker } => {
                let lent = self.lent(place)?;
                (id, lent.map(|lent| Ok(Answer::Batch { lent, plan, worker })))
            }
            Say::Document { id, body } => (id, Some(Ok(Answer::Document(body)))),
            Say::Refusal { id, problem, plan, worker } => {
                let worker = worker.and_then(|worker| worker.parse().ok());
                (id, Some(Err((worker, refusal(problem, plan.as_deref())))))
            }
        };
        let waiting = self.connection.upgrade().and_then(|connection| lock(&connection.pending).remove(&id));
        if let (Some(waiting), Some(outcome)) = (waiting, outcome) {
            // Nobody waits any more: a batch goes back as it is dropped.
            drop(waiting.send(outcome));
        }
        Ok(())
    }

    /// A batch that came; None when nobody can want it any more.
    fn lent(&self, place: BatchPlace) -> Result<Option<Lent>, String> {
        let region = self.slabs.get(&place.slab).and_then(|slab| slab.region(place.offset, place.bytes));
        let region = region.ok_or_else(|| format!("a batch came that lies in no slab: {place:?}"))?;
        let Some(connection) = self.connection.upgrade() else {
            return Ok(None);
        };
        connection.lending.held.fetch_add(place.bytes, Ordering::Relaxed);
        Ok(Some(Lent { connection, lease: place.lease, region }))
    }
}
