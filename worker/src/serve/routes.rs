//! Paths and what answers them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::routing::{get, post};
use feedmill_arena::Urgency;
use feedmill_protocol::http::{
    CONTENT_SAFETENSORS, DEATHS_THAT_MAKE_SUSPECT, HEADER_PLAN, PATH_BAD, PATH_LIVE, PATH_METRICS, PATH_PLAN,
    PATH_READY, PATH_REPORTS, PATH_STATUS, Problem, problem_kind,
};
use feedmill_protocol::report::WorkerState;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use serde_json::{Map, Value, json};

use super::answer::{self, not_found};
use super::connection::Leases;
use super::frame::{self, ChunkBody, Keep};
use super::padded::{PaddedModel, Pieces};
use super::request::{self, BatchRequest, Layout};
use super::{look, page, range_samples};
use crate::app::{App, Loaded};
use crate::engine::SampleKey;
use crate::make::patch_bytes;

pub(super) type Shared = State<Arc<App>>;

/// All paths.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/streams/{stream}/batches/{range}", get(batch))
        .route(PATH_PLAN, get(plan))
        .route(PATH_BAD, get(bad))
        .route(PATH_STATUS, get(status))
        .route(PATH_REPORTS, post(report))
        .route(PATH_LIVE, get(|| async { "ok\n" }))
        .route(PATH_READY, get(ready))
        .route(PATH_METRICS, get(metrics))
        .merge(look::router())
        .merge(page::router())
        .method_not_allowed_fallback(|| async {
            let detail = "this path does not answer this method";
            answer::problem(&Problem::new(problem_kind::BAD_REQUEST, 405, "wrong method", detail))
        })
        .fallback(|| async { answer::problem(&not_found("no such path; see /v1/plan and /v1/status")) })
        .with_state(app)
}

/// The loaded worker, or why there is none to ask.
pub(super) fn loaded(app: &App) -> Result<&Loaded, Problem> {
    match (app.state(), app.loaded.get()) {
        (WorkerState::Ready, Some(loaded)) => Ok(loaded),
        (WorkerState::Draining, _) => {
            let detail = "ask another worker";
            Err(Problem::new(problem_kind::DRAINING, 503, "this worker is draining", detail))
        }
        _ => Err(Problem::new(problem_kind::NOT_READY, 503, "this worker is starting", app.doing())),
    }
}

async fn batch(
    State(app): Shared,
    Path((stream, range)): Path<(String, String)>,
    request: Request,
) -> Response<Body> {
    // The request's body is not needed, and could not be shared between threads.
    let (parts, _) = request.into_parts();
    match answer_batch(&app, &stream, &range, &parts).await {
        Ok(response) => response,
        Err(problem) => {
            let mut response = answer::problem(&problem);
            let known = app.loaded.get().and_then(|loaded| loaded.stream(&stream));
            if let (problem_kind::OTHER_PLAN, Some((_, stream))) = (problem.kind.as_str(), known) {
                set_header(&mut response, HEADER_PLAN, &stream.digest.to_string());
            }
            response
        }
    }
}

async fn answer_batch(
    app: &Arc<App>,
    name: &str,
    range: &str,
    request: &Parts,
) -> Result<Response<Body>, Problem> {
    let loaded = loaded(app)?;
    let headers = &request.headers;
    let asked = BatchRequest::parse(range, request.uri.query().unwrap_or_default(), headers)?;
    let (index, stream) = loaded.stream(name).ok_or_else(|| not_found("no such stream"))?;
    if let Some(plan) = asked.plan.filter(|plan| *plan != stream.digest) {
        let detail = format!(
            "this worker serves stream {name} by plan {}, the request was made for {plan}; {PATH_PLAN} lists \
             every fact of the plan",
            stream.digest
        );
        return Err(Problem {
            remedy: Some("restore the pipeline and its data, or accept the new plan deliberately".into()),
            ..Problem::new(problem_kind::OTHER_PLAN, 409, "the plans differ", detail)
        });
    }
    if asked.deaths >= u64::from(DEATHS_THAT_MAKE_SUSPECT) {
        // Of a range that is too long and will be refused, no more than of one that is served.
        let positions = asked.range.positions().take(loaded.max_range as usize);
        let keys = positions.map(|position| SampleKey { stream: index, position });
        loaded.engine.maker().suspects.suspect(keys);
    }
    let samples = range_samples(loaded, name, asked.range, asked.stop, asked.need, &asked.job).await?;
    let layout = format!("{:?} {:?}", asked.layout, asked.tensors);
    let etag = frame::etag(&samples, &layout, asked.range, asked.stop);
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == etag.as_bytes());
    if known {
        let response = answer::empty(StatusCode::NOT_MODIFIED);
        return Ok(finish(response, &etag, stream.digest.to_string(), None));
    }
    let rows = samples.len() as u64;
    let tensors = asked.tensors.as_deref();
    let leases = request.extensions.get::<Arc<Leases>>();
    let (body, bytes) = match asked.layout {
        Layout::Compact => {
            let patches: u64 = samples.iter().map(|s| s.meta.shape.patches_len() as u64).sum();
            let keep: Option<Keep> = leases.map(|leases| leases.open(patches));
            let chunks =
                frame::chunks(&samples, patch_bytes(stream), stream.digest, asked.range, tensors, &keep);
            let body = ChunkBody::new(chunks);
            let bytes = body.len();
            (Body::new(body), bytes)
        }
        Layout::Padded => {
            let text = &stream.processor.text;
            let model = PaddedModel {
                geometry: stream.processor.geometry,
                pad_id: text.pad_id(),
                image_pad_id: text.image_pad_id(),
            };
            let place = Arc::clone(&app.expanding).acquire_owned().await;
            let pieces = Pieces::new(samples, model, stream.digest, asked.range, tensors);
            let bytes = pieces.bytes();
            let keep: Option<Keep> = leases.map(|leases| leases.open(bytes));
            (expanding(Arc::clone(app), pieces, (place.ok(), keep)), bytes)
        }
    };
    app.served.batches.fetch_add(1, Ordering::Relaxed);
    app.served.samples.fetch_add(rows, Ordering::Relaxed);
    app.served.bytes.fetch_add(bytes, Ordering::Relaxed);
    Ok(finish(Response::new(body), &etag, stream.digest.to_string(), Some(bytes)))
}

/// A body whose pieces are made as the reader takes them; `keep` lives as long as it does.
fn expanding<K: Send + 'static>(app: Arc<App>, pieces: Pieces, keep: K) -> Body {
    let stream = futures_util::stream::unfold((app, pieces, keep), |(app, mut pieces, keep)| async move {
        let piece = pieces.next(&app.machinery.pool, &Urgency::new(0)).await?;
        Some((Ok::<_, std::convert::Infallible>(piece), (app, pieces, keep)))
    });
    Body::from_stream(stream)
}

fn finish(mut response: Response<Body>, etag: &str, plan: String, bytes: Option<u64>) -> Response<Body> {
    let headers = response.headers_mut();
    if let Some(bytes) = bytes {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_SAFETENSORS));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    set_header(&mut response, header::ETAG.as_str(), etag);
    set_header(&mut response, HEADER_PLAN, &plan);
    response
}

/// Sets a header of hexadecimal digits, quotes and colons, which are always valid.
fn set_header(response: &mut Response<Body>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

async fn plan(State(app): Shared) -> Response<Body> {
    let loaded = match loaded(&app) {
        Ok(loaded) => loaded,
        Err(problem) => return answer::problem(&problem),
    };
    let streams: Map<String, Value> = loaded
        .streams()
        .iter()
        .map(|stream| {
            let datasets: Vec<&str> = stream.datasets.iter().map(|set| set.name.as_str()).collect();
            let described = json!({
                "plan": stream.digest.to_string(),
                "samples_per_epoch": stream.order.samples_per_epoch(),
                "datasets": datasets,
                "facts": stream.plan,
                "model": stream.processor.model_facts(),
            });
            (stream.name.clone(), described)
        })
        .collect();
    answer::json(&json!({"streams": streams}))
}

async fn bad(State(app): Shared) -> Response<Body> {
    match loaded(&app) {
        Ok(loaded) => {
            let (records, unlisted) = loaded.engine.maker().bad.list();
            let streams = loaded.streams();
            let records: Vec<Value> = records
                .iter()
                .map(|record| {
                    // A struct of strings and numbers always becomes JSON.
                    let mut listed = serde_json::to_value(record).unwrap_or_default();
                    listed["stream"] = streams.get(record.stream).map(|stream| stream.name.as_str()).into();
                    listed
                })
                .collect();
            answer::json(&json!({"records": records, "met_but_not_listed": unlisted}))
        }
        Err(problem) => answer::problem(&problem),
    }
}

async fn status(State(app): Shared, uri: Uri) -> Response<Body> {
    let with = request::wants_reports(&uri);
    answer::json(&app.status(with))
}

async fn report(State(app): Shared, request: Request) -> Response<Body> {
    let kept = async {
        let report = request::report(request).await?;
        app.reports(|reports, now| reports.keep(now, report)).map_err(|refusal| refusal.problem())
    };
    match kept.await {
        Ok(()) => answer::empty(StatusCode::NO_CONTENT),
        Err(problem) => answer::problem(&problem),
    }
}

async fn ready(State(app): Shared) -> Response<Body> {
    match loaded(&app) {
        Ok(loaded) => {
            let problems = loaded.streams().iter().flat_map(|stream| stream.problems());
            let lines = problems.map(|problem| format!("problem: {problem}\n"));
            Response::new(Body::from("ready\n".to_owned() + &lines.collect::<String>()))
        }
        Err(problem) => answer::problem(&problem),
    }
}

async fn metrics(State(app): Shared) -> Response<Body> {
    let mut response = Response::new(Body::from(crate::metrics::text(&app)));
    let text = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
