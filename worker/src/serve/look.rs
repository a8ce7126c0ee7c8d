//! What people look at: one sample, its pictures, searches. The only paths, with the batches, that carry records' text.
//!
//! All of it is bounded as padded batches are: two samples or pictures at once, each until its reader has taken it, and a
//! reader that does not is cut by its lease; and one step of one search at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::routing::get;
use bytes::Bytes;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::position::{POSITION_END, Range};
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use super::answer::{self, bad_request, not_found};
use super::connection::{LeaseTicket, Leases};
use super::routes::{Shared, loaded};
use super::{person, picture, range_samples};
use crate::app::{App, Loaded};
use crate::find::{self, Search, Step};
use feedmill_source::with_causes;

pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/streams/{stream}/samples/{position}", get(sample))
        .route("/v1/streams/{stream}/samples/{position}/images/{image}", get(image))
        .route("/v1/streams/{stream}/find", get(search))
}

/// Bytes, and what is held until the socket has taken them.
struct Held<K> {
    bytes: Vec<u8>,
    _keep: K,
}

impl<K> AsRef<[u8]> for Held<K> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn held(bytes: Vec<u8>, keep: impl Send + 'static) -> Bytes {
    Bytes::from_owner(Held { bytes, _keep: keep })
}

/// An answer that is neither kept by browsers, nor taken for something else, nor shown in other people's pages.
fn private(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

fn lease(request: &Request, bytes: usize) -> Option<Arc<LeaseTicket>> {
    request.extensions().get::<Arc<Leases>>().map(|leases| leases.open(bytes as u64))
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Problem> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if plain { text.parse().ok() } else { None };
    number.ok_or_else(|| bad_request(format!("{what} is a decimal number")))
}

async fn sample(
    State(app): Shared,
    Path((stream, position)): Path<(String, String)>,
    request: Request,
) -> Response<Body> {
    let described = async {
        let loaded = loaded(&app)?;
        let position = number(&position, "a position")?;
        let place = Arc::clone(&app.looking).acquire_owned().await;
        Ok::<_, Problem>((person::sample(loaded, &stream, position).await?, place))
    };
    match described.await {
        Ok((value, place)) => {
            let bytes = value.to_string().into_bytes();
            let keep = (place, lease(&request, bytes.len()));
            private(Body::from(held(bytes, keep)), "application/json")
        }
        Err(problem) => answer::problem(&problem),
    }
}

async fn image(
    State(app): Shared,
    Path((stream, position, image)): Path<(String, String, String)>,
    request: Request,
) -> Response<Body> {
    let made = async {
        let loaded = loaded(&app)?;
        let position: u64 = number(&position, "a position")?;
        let image = image.strip_suffix(".png").ok_or_else(|| not_found("pictures end in .png"))?;
        let image = number(image, "a picture")?;
        let place = Arc::clone(&app.looking).acquire_owned().await;
        Ok::<_, Problem>((png(loaded, &stream, position, image).await?, place))
    };
    match made.await {
        Ok((bytes, place)) => {
            let keep = (place, lease(&request, bytes.len()));
            private(Body::from(held(bytes, keep)), "image/png")
        }
        Err(problem) => answer::problem(&problem),
    }
}

/// A picture of the sample that a batch with this position would have.
pub(crate) async fn png(
    loaded: &Loaded,
    name: &str,
    position: u64,
    image: usize,
) -> Result<Vec<u8>, Problem> {
    let (_, stream) = loaded.stream(name).ok_or_else(|| not_found("no such stream"))?;
    let range = position
        .checked_add(1)
        .filter(|end| *end <= POSITION_END)
        .and_then(|end| Range::new(position, end).ok())
        .ok_or_else(|| not_found("positions end at 2^53"))?;
    let samples = range_samples(loaded, name, range, None, Duration::ZERO, "").await?;
    let sample = samples.into_iter().next().ok_or_else(|| not_found("no sample stands there"))?;
    picture::png(sample, image, stream.processor.geometry, &loaded.engine.maker().pool).await
}

async fn search(
    State(app): Shared,
    Path(name): Path<String>,
    query: Result<Query<find::Query>, QueryRejection>,
    request: Request,
) -> Response<Body> {
    let begun = || {
        let (_, stream) = loaded(&app)?.stream(&name).ok_or_else(|| not_found("no such stream"))?;
        let Query(query) = query.map_err(|error| bad_request(error.body_text()))?;
        Search::new(stream, query).map_err(|error| bad_request(error.to_string()))
    };
    match begun() {
        Ok(search) => {
            let leases = request.extensions().get::<Arc<Leases>>().cloned();
            let steps = futures_util::stream::unfold(Some(search), move |search| {
                let (app, leases) = (Arc::clone(&app), leases.clone());
                async move {
                    let search = search?;
                    let place = Arc::clone(&app.searching).acquire_owned().await;
                    // A lease for each step: a search may take longer than any reader may take for an answer.
                    let ticket = leases.map(|leases| leases.open(0));
                    let (lines, search) = stepped(search).await;
                    // Others go on while this one's lines are sent: there are few of them.
                    drop(place);
                    Some((Ok::<_, Infallible>(held(lines, ticket)), search))
                }
            });
            private(Body::from_stream(steps), "application/x-ndjson")
        }
        Err(problem) => answer::problem(&problem),
    }
}

/// One step's lines, and the search if there is more to do.
async fn stepped(mut search: Search) -> (Vec<u8>, Option<Search>) {
    let stepped = tokio::task::spawn_blocking(move || {
        let step = search.step();
        (step, search)
    });
    match stepped.await {
        Ok((Ok(step), search)) => (lines(&step), (!step.over).then_some(search)),
        Ok((Err(error), _)) => {
            let detail = with_causes(&error);
            let problem = Problem::new(problem_kind::INTERNAL, 502, "the manifest cannot be read", detail);
            (line(&json!({"problem": problem})), None)
        }
        Err(_) => {
            let detail = "the search ended unexpectedly; see the worker's log";
            let problem = Problem::new(problem_kind::INTERNAL, 500, "the worker failed", detail);
            (line(&json!({"problem": problem})), None)
        }
    }
}

fn lines(step: &Step) -> Vec<u8> {
    let mut lines: Vec<u8> = step.found.iter().flat_map(|found| line(&json!({"found": found}))).collect();
    let mut last = json!({"scanned": step.scanned, "of": step.of});
    if step.over {
        last["done"] = true.into();
        last["more"] = step.more.into();
        if let Some(why) = &step.why {
            last["why"] = why.as_str().into();
        }
    }
    lines.extend(line(&last));
    lines
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}
