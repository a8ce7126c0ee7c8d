//! Answers that say what is wrong.

use axum::body::Body;
use feedmill_protocol::http::{CONTENT_PROBLEM, Problem, problem_kind};
use http::{HeaderValue, Response, StatusCode, header};

/// A problem document, with `Retry-After` where asking again helps.
pub(crate) fn problem(problem: &Problem) -> Response<Body> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // A document of strings and numbers always becomes JSON.
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_PROBLEM));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// 400.
pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
    Problem::new(problem_kind::BAD_REQUEST, 400, "the request makes no sense", detail)
}

/// 404.
pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
    Problem::new(problem_kind::NOT_FOUND, 404, "there is no such thing here", detail)
}

/// A status, and nothing else.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// JSON of anything that becomes JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Response<Body> {
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
