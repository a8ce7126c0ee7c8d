//! The page at `/`. It carries no data: what it shows it asks for at the paths of the data, as any other reader.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{HeaderValue, Response, header};

use crate::app::App;
use crate::page::LIVE;

pub(super) fn router() -> Router<Arc<App>> {
    Router::new().route("/", get(page))
}

async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(LIVE.html.as_str()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // Made of hashes and constants, which are always valid.
    if let Ok(policy) = HeaderValue::from_str(&LIVE.policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}
