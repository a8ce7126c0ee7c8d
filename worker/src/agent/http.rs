//! Paths and what answers them: what a worker has of them that an agent can answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::routing::{get, post};
use bytes::Bytes;
use feedmill_arena::{Permit, SlabLease, Urgency};
use feedmill_protocol::frame::BatchView;
use feedmill_protocol::http::{
    CONTENT_SAFETENSORS, HEADER_PLAN, HEADER_RUN, PATH_LIVE, PATH_METRICS, PATH_PLAN, PATH_READY,
    PATH_REPORTS, PATH_STATUS, Problem, problem_kind,
};
use feedmill_protocol::report::WorkerState;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, Uri, header};

use super::Agent;
use super::store::{Held, Refusal, Wanted, full};
use crate::serve::answer;
use crate::serve::connection::{LeaseTicket, Leases};
use crate::serve::frame;
use crate::serve::request::{self, BatchRequest, Layout};

type Shared = State<Arc<Agent>>;

/// 400.
pub(super) fn bad_request(detail: String) -> Refusal {
    answer::bad_request(detail).into()
}

/// All paths.
pub(super) fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/v1/streams/{stream}/batches/{range}", get(batch))
        .route(PATH_PLAN, get(plan))
        .route(PATH_STATUS, get(status))
        .route(PATH_REPORTS, post(report))
        .route(PATH_LIVE, get(|| async { "ok\n" }))
        .route(PATH_READY, get(ready))
        .route(PATH_METRICS, get(metrics))
        .method_not_allowed_fallback(|| async {
            let detail = "this path does not answer this method";
            answer::problem(&Problem::new(problem_kind::BAD_REQUEST, 405, "wrong method", detail))
        })
        .fallback(elsewhere)
        .with_state(agent)
}

/// What only those know who make samples.
async fn elsewhere(State(agent): Shared) -> Response<Body> {
    answer::problem(&Problem {
        remedy: Some(format!("ask a worker: {}", agent.store.upstream().workers().join(", "))),
        ..answer::not_found("this is an agent: it has batches, /v1/plan, /v1/status and /metrics")
    })
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = answer::problem(&refusal.problem);
    let plan = refusal.plan.map(|plan| HeaderValue::try_from(plan.to_string()));
    if let Some(Ok(plan)) = plan {
        response.headers_mut().insert(HEADER_PLAN, plan);
    }
    response
}

/// Why nothing is answered now.
fn in_service(agent: &Agent) -> Result<(), Refusal> {
    let (kind, title, detail) = match agent.state() {
        WorkerState::Ready => return Ok(()),
        WorkerState::Starting => {
            (problem_kind::NOT_READY, "this agent is starting", "no worker behind it is ready yet")
        }
        WorkerState::Draining => (problem_kind::DRAINING, "this agent is draining", "ask another worker"),
    };
    Err(Problem::new(kind, 503, title, detail).into())
}

async fn batch(
    State(agent): Shared,
    Path((stream, range)): Path<(String, String)>,
    request: Request,
) -> Response<Body> {
    // The request's body is not needed, and could not be shared between threads.
    let (parts, _) = request.into_parts();
    answer_batch(&agent, stream, &range, &parts).await.unwrap_or_else(|refusal| refused(&refusal))
}

/// What holds a batch in place while it is sent.
struct Answer {
    lease: SlabLease,
    _permit: Permit,
    _ticket: Option<Arc<LeaseTicket>>,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.lease
    }
}

async fn answer_batch(
    agent: &Arc<Agent>,
    stream: String,
    range: &str,
    request: &Parts,
) -> Result<Response<Body>, Refusal> {
    in_service(agent)?;
    let headers = &request.headers;
    let asked = BatchRequest::parse(range, request.uri.query().unwrap_or_default(), headers)?;
    if asked.layout != Layout::Compact || asked.tensors.is_some() {
        return Err(Refusal::from(Problem {
            remedy: Some(format!("ask a worker: {}", agent.store.upstream().workers().join(", "))),
            ..answer::bad_request("an agent has whole batches in the compact layout only")
        }));
    }
    let rank = headers.get(HEADER_RUN).and_then(|run| run.to_str().ok()?.split_once('/')?.1.parse().ok());
    let wanted = Wanted {
        stream,
        range: asked.range,
        stop: asked.stop,
        plan: asked.plan,
        need: asked.need,
        run: asked.job,
        rank: rank.unwrap_or(0),
        deaths: u32::try_from(asked.deaths).unwrap_or(u32::MAX),
    };
    let (held, permit) = admitted(agent, &wanted).await?;
    let plan = held.plan.to_string();
    let etag = BatchView::parse(&held.lease).ok().map(|view| {
        let rows = view.samples().iter().map(|sample| (sample.hash, sample.status));
        let layout = format!("{:?} {:?}", asked.layout, asked.tensors);
        frame::tag(rows, &layout, asked.range, asked.stop)
    });
    let bytes = held.lease.len() as u64;
    let known = headers.get(header::IF_NONE_MATCH);
    let mut response =
        if known.is_some() && known.map(HeaderValue::as_bytes) == etag.as_deref().map(str::as_bytes) {
            answer::empty(StatusCode::NOT_MODIFIED)
        } else {
            let ticket = request.extensions.get::<Arc<Leases>>().map(|leases| leases.open(bytes));
            let body = Bytes::from_owner(Answer { lease: held.lease, _permit: permit, _ticket: ticket });
            agent.served.batches.fetch_add(1, Ordering::Relaxed);
            agent.served.samples.fetch_add(asked.range.len(), Ordering::Relaxed);
            agent.served.bytes.fetch_add(bytes, Ordering::Relaxed);
            let mut response = Response::new(Body::from(body));
            let kind = HeaderValue::from_static(CONTENT_SAFETENSORS);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
            response
        };
    let headers = response.headers_mut();
    if let Some(Ok(etag)) = etag.map(HeaderValue::try_from) {
        headers.insert(header::ETAG, etag);
    }
    if let Ok(plan) = HeaderValue::try_from(plan) {
        headers.insert(HEADER_PLAN, plan);
    }
    Ok(response)
}

/// A range, and the room among the answers that it takes; nothing is held while that is waited for.
async fn admitted(agent: &Agent, wanted: &Wanted) -> Result<(Held, Permit), Refusal> {
    let urgency = Urgency::new(u64::try_from(wanted.need.as_millis()).unwrap_or(u64::MAX));
    let mut room: Option<Permit> = None;
    loop {
        let held = agent.store.get(wanted).await?;
        let bytes = held.lease.len() as u64;
        // The same range has the same bytes, so the room asked for fits the second time.
        if let Some(permit) = room.take().filter(|permit| permit.bytes() >= bytes) {
            return Ok((held, permit));
        }
        drop(held);
        let waited = tokio::time::timeout(agent.settings.release, agent.answers.acquire(bytes, &urgency));
        match waited.await {
            Ok(Ok(permit)) => room = Some(permit),
            Ok(Err(error)) => {
                let title = "the batch is too large";
                return Err(Problem::new(problem_kind::TOO_LARGE, 413, title, error.to_string()).into());
            }
            Err(_) => {
                return Err(full(format!("answers over HTTP hold {} bytes", agent.answers.stats().used)));
            }
        }
    }
}

async fn plan(State(agent): Shared) -> Response<Body> {
    match agent.store.upstream().plan().await {
        Ok(plan) => answer::json(&plan),
        Err(refusal) => refused(&refusal),
    }
}

async fn status(State(agent): Shared, uri: Uri) -> Response<Body> {
    answer::json(&agent.status(request::wants_reports(&uri)).await)
}

async fn report(State(agent): Shared, request: Request) -> Response<Body> {
    let passed_on = async {
        let report = request::report(request).await?;
        agent.report(report).await
    };
    match passed_on.await {
        Ok(()) => answer::empty(StatusCode::NO_CONTENT),
        Err(refusal) => refused(&refusal),
    }
}

async fn ready(State(agent): Shared) -> Response<Body> {
    match in_service(&agent) {
        Ok(()) => Response::new(Body::from("ready\n")),
        Err(refusal) => refused(&refusal),
    }
}

async fn metrics(State(agent): Shared) -> Response<Body> {
    let mut response = Response::new(Body::from(super::metrics::text(&agent).await));
    let text = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
