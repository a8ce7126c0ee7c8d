//! One worker: its connections, and what is known of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use feedmill_access::Pass;
use feedmill_protocol::http::{PATH_LIVE, PATH_LOAD};
use feedmill_protocol::plan::PlanDigest;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::chance;
use crate::choice::{Seen, Standing};
use crate::error::lock;
use crate::fault::Fault;
use crate::health::Health;
use crate::line::Line;
use crate::link::{self, Link, Session};
use crate::load::{Load, LoadStatus};
use crate::settings::{Endpoint, FleetSettings, Timeouts};
use crate::watch::Watch;

/// The most bytes of an answer on a control connection.
const MAX_CONTROL_BYTES: usize = 16 << 20;

/// One worker as this process knows it.
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    /// Batches, and nothing else.
    pub(crate) bulk: Link,
    /// Small requests, which must not wait behind batches.
    control: Link,
    /// Places for requests that may be outstanding on the bulk connection.
    pub(crate) line: Arc<Line>,
    timeouts: Timeouts,
    pass: Pass,
    health: Mutex<Health>,
    /// Streams and plans that this worker has refused, with its own plan.
    refused_plans: Mutex<Vec<RefusedPlan>>,
    /// What it said of its work.
    load: Mutex<Load>,
    /// How much it can do, as [`crate::load::capacities`] has it; 0 before it was looked at.
    capacity: AtomicU32,
    /// Another address in the list is the same worker's.
    twin: AtomicBool,
    /// When it was last used, heard and asked for its load.
    watch: Mutex<Watch>,
    /// Told when it has fallen silent: whoever waits for it goes elsewhere.
    fell_silent: Notify,
    /// Told when it lost against a second worker: whoever waits for it may ask another one too.
    pub(crate) was_late: Notify,
}

/// A request that is outstanding at a worker.
pub(crate) struct Outstanding<'a>(&'a Member);

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        lock(&self.0.watch).ended(chance::now());
    }
}

struct RefusedPlan {
    /// The refusal holds while this connection does: whoever listens there afterwards is asked anew.
    connection: u64,
    stream: String,
    expected: PlanDigest,
    theirs: Option<PlanDigest>,
}

impl Member {
    pub(crate) fn new(endpoint: Endpoint, settings: &FleetSettings) -> Self {
        let (timeouts, pass) = (settings.timeouts.clone(), settings.pass.clone());
        Self {
            bulk: Link::new(endpoint.clone(), timeouts.clone(), pass.clone()),
            control: Link::new(endpoint.clone(), timeouts.clone(), pass.clone()),
            line: Line::new(settings.streams_per_connection),
            health: Mutex::default(),
            refused_plans: Mutex::default(),
            load: Mutex::default(),
            capacity: AtomicU32::new(0),
            twin: AtomicBool::new(false),
            watch: Mutex::default(),
            fell_silent: Notify::new(),
            was_late: Notify::new(),
            endpoint,
            timeouts,
            pass,
        }
    }

    /// How it stands for a stream that is read by this plan.
    pub(crate) fn standing(&self, stream: &str, expected: Option<PlanDigest>) -> Standing {
        let health = lock(&self.health).standing();
        if health != Standing::Down
            && let Some(expected) = expected
            && self.refused_plan(stream, expected).is_some()
        {
            return Standing::Disagrees;
        }
        match health {
            Standing::Ready if lock(&self.load).is_draining() => Standing::Draining,
            other => other,
        }
    }

    /// The same with what it can do and has ahead; `ranks` ask it.
    pub(crate) fn seen(&self, stream: &str, expected: Option<PlanDigest>, ranks: u64, now: Instant) -> Seen {
        let capacity = self.capacity.load(Ordering::Relaxed).max(1);
        let work_ahead = lock(&self.load).work_ahead(now);
        Seen { standing: self.standing(stream, expected), capacity, work_ahead, ranks }
    }

    /// What it said of itself.
    pub(crate) fn load<T>(&self, read: impl FnOnce(&mut Load) -> T) -> T {
        read(&mut lock(&self.load))
    }

    /// What it can do, as compared with the others.
    pub(crate) fn set_capacity(&self, capacity: u32) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// True when it stands in the list under another address too.
    pub(crate) fn is_twin(&self) -> bool {
        self.twin.load(Ordering::Relaxed)
    }

    pub(crate) fn set_twin(&self, twin: bool) {
        self.twin.store(twin, Ordering::Relaxed);
    }

    /// When it was used, heard and asked for its load.
    pub(crate) fn watch<T>(&self, change: impl FnOnce(&mut Watch) -> T) -> T {
        change(&mut lock(&self.watch))
    }

    /// Something came from it.
    pub(crate) fn heard(&self) {
        lock(&self.watch).heard(chance::now());
    }

    /// A request for so many samples goes out.
    pub(crate) fn asked(&self, samples: u64) -> Outstanding<'_> {
        lock(&self.load).asked(samples);
        lock(&self.watch).asked(chance::now());
        Outstanding(self)
    }

    /// Ends when nothing comes from it any more. Hears what happens from its creation on.
    pub(crate) fn silence(&self) -> tokio::sync::futures::Notified<'_> {
        self.fell_silent.notified()
    }

    /// It may be slow: it is passed over for a while, longer each time.
    pub(crate) fn lost_race(&self, now: Instant) {
        self.failed(now);
        self.was_late.notify_waiters();
    }

    /// Asks how much it has ahead, on a task of its own. A worker that does not answer in time, and from which
    /// nothing else came meanwhile, is silent: nobody waits for it any longer, until it is heard again.
    pub(crate) fn ask_load(self: &Arc<Self>, patience: Duration, changed: &Arc<Notify>) {
        let (member, changed) = (Arc::clone(self), Arc::clone(changed));
        tokio::spawn(async move {
            let begin = chance::now();
            // The first question opens a connection, which takes longer where many ranks start at once.
            let mut limit = if member.watch(|watch| watch.was_heard()) { patience } else { patience * 2 };
            let mut asked = std::pin::pin!(member.control(Method::GET, PATH_LOAD, Bytes::new()));
            let answer = loop {
                if let Some(answer) = chance::unless_late(limit, &mut asked).await {
                    break answer;
                }
                if member.watch(|watch| watch.is_silent_since(begin)) && member.falls_silent() {
                    changed.notify_waiters();
                }
                // What is asked of it from now on is not waited for as long again.
                limit = patience / 5;
            };
            let now = chance::now();
            let before = member.standing("", None);
            match answer {
                Ok((status, _, bytes)) => {
                    member.heard();
                    if lock(&member.health).revived() {
                        tracing::info!(worker = %member.endpoint, "worker answers again");
                    }
                    if status.is_success()
                        && let Ok(status) = serde_json::from_slice::<LoadStatus>(&bytes)
                    {
                        lock(&member.load).read(now, status);
                    }
                }
                Err(fault) => {
                    tracing::debug!(worker = %member.endpoint, reason = %fault, "worker does not say how much it has ahead");
                }
            }
            member.watch(|watch| watch.answered(now));
            if member.standing("", None) != before {
                changed.notify_waiters();
            }
        });
    }

    /// True when it was not known to be away.
    fn falls_silent(&self) -> bool {
        let news = lock(&self.health).down(chance::now(), &self.timeouts, chance::jitter());
        if news {
            let limit = self.timeouts.silence;
            tracing::info!(worker = %self.endpoint, ?limit, "worker is silent, others take over");
        }
        self.fell_silent.notify_waiters();
        news
    }

    /// Closes connections that have carried nothing for long.
    pub(crate) fn close_idle(&self, now: Instant) {
        let idle = lock(&self.watch).idle(now, self.timeouts.idle);
        if idle.batches {
            self.bulk.close();
        }
        if idle.questions {
            self.control.close();
        }
    }

    /// Its own plan, when it has refused this one.
    pub(crate) fn refused_plan(&self, stream: &str, expected: PlanDigest) -> Option<Option<PlanDigest>> {
        let mut refused = lock(&self.refused_plans);
        refused.retain(|refused| self.bulk.is_open(refused.connection));
        refused
            .iter()
            .find(|refused| refused.stream == stream && refused.expected == expected)
            .map(|refused| refused.theirs)
    }

    /// It gave a batch.
    pub(crate) fn succeeded(&self) {
        lock(&self.health).failures = 0;
    }

    /// It answered, but nothing of use.
    pub(crate) fn failed(&self, now: Instant) {
        let mut health = lock(&self.health);
        health.failures = health.failures.saturating_add(1);
        let pause = self.timeouts.backoff(health.failures, chance::jitter());
        health.rest(now + pause);
    }

    /// It asked for a pause. Spread over a quarter more, so that ranks do not come back in step.
    pub(crate) fn asked_for_pause(&self, now: Instant, pause: Duration) {
        let pause = pause.max(self.timeouts.backoff_min);
        let pause = pause.mul_f64(1.0 + chance::jitter() / 4.0);
        lock(&self.health).rest(now + pause);
    }

    /// The connection with this number, or the attempt to make one, broke.
    pub(crate) fn lost(&self, connection: Option<u64>, now: Instant, fault: &Fault) {
        let stale = connection.is_some_and(|number| !self.bulk.discard(number));
        if stale {
            return;
        }
        if lock(&self.health).down(now, &self.timeouts, chance::jitter()) {
            tracing::info!(worker = %self.endpoint, reason = %fault, "worker is down, others take over");
        }
    }

    /// It reads by another plan, as it said on this connection.
    pub(crate) fn refuses_plan(
        &self,
        connection: u64,
        stream: &str,
        expected: PlanDigest,
        theirs: Option<PlanDigest>,
    ) {
        let mut refused = lock(&self.refused_plans);
        if refused.iter().any(|known| known.stream == stream && known.expected == expected) {
            return;
        }
        let has = theirs.map_or("another one".to_owned(), |plan| plan.to_string());
        tracing::warn!(worker = %self.endpoint, stream, %expected, has, "worker has another plan and is left out");
        refused.push(RefusedPlan { connection, stream: stream.to_owned(), expected, theirs });
    }

    /// Looks after a worker that is down, when it is time, on a task of its own: ranges must not wait
    /// for a host that swallows packets. Wakes whoever waits when the worker answers.
    pub(crate) fn probe_when_due(self: &Arc<Self>, now: Instant, changed: &Arc<Notify>) {
        if !lock(&self.health).begin_probe(now) {
            return;
        }
        let (member, changed) = (Arc::clone(self), Arc::clone(changed));
        tokio::spawn(async move {
            match member.probe().await {
                Ok(()) => {
                    member.heard();
                    if lock(&member.health).revived() {
                        tracing::info!(worker = %member.endpoint, "worker answers again");
                    }
                    changed.notify_waiters();
                }
                Err(fault) => {
                    tracing::debug!(worker = %member.endpoint, reason = %fault, "worker is still down");
                    let now = chance::now();
                    lock(&member.health).probe_later(now, &member.timeouts, chance::jitter());
                }
            }
        });
    }

    /// Any answer to `/livez` on the bulk connection will do: a frozen process still accepts connections.
    async fn probe(&self) -> Result<(), Fault> {
        let limit = self.timeouts.control;
        let mut session = self.bulk.session().await?;
        let request = self.request(Method::GET, PATH_LIVE, Bytes::new())?;
        let outcome = self.send(&mut session, request, limit).await;
        match outcome {
            Ok(_) => Ok(()),
            Err(fault) => {
                self.bulk.discard(session.number());
                Err(fault)
            }
        }
    }

    /// A small request over the control connection, tried twice when the connection had ended.
    pub(crate) async fn control(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap, Vec<u8>), Fault> {
        let limit = self.timeouts.control;
        self.watch(|watch| watch.spoken(chance::now()));
        let exchange = async {
            let mut reopened = false;
            loop {
                let mut session = self.control.session().await?;
                let request = self.request(method.clone(), path, body.clone())?;
                match self.send(&mut session, request, limit).await {
                    Ok(answer) => {
                        let (head, body) = answer.into_parts();
                        let (bytes, whole) = link::read_bounded(body, MAX_CONTROL_BYTES, limit).await?;
                        if !whole {
                            return Err(Fault::TooLong {
                                expected: bytes.len() as u64 + 1,
                                limit: MAX_CONTROL_BYTES as u64,
                            });
                        }
                        return Ok((head.status, head.headers, bytes));
                    }
                    Err(fault) => {
                        self.control.discard(session.number());
                        if reopened || !matches!(fault, Fault::Closed) {
                            return Err(fault);
                        }
                        reopened = true;
                    }
                }
            }
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::NoHead(limit)),
        }
    }

    /// Sends a request with the token, and waits for the head of its answer. A token that is refused may have been
    /// changed meanwhile: then once more, with the new one.
    pub(crate) async fn send(
        &self,
        session: &mut Session,
        mut request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let shown = self.pass.show(request.headers_mut());
        let answer = session.send(request.clone(), limit).await?;
        if answer.status() != StatusCode::UNAUTHORIZED || !self.pass.renewed(&shown).await {
            return Ok(answer);
        }
        tracing::info!(worker = %self.endpoint, "the token was refused; its file has another one, which is shown");
        self.pass.show(request.headers_mut());
        session.send(request, limit).await
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint))
            .body(Full::new(body))
            .map_err(|error| Fault::Head(format!("request cannot be written: {error}")))
    }
}
