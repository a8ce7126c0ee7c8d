//! Whether an installation is at work, as `helm test` asks.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::future::pending;
use std::iter::{once, repeat};
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use feedmill_operator::check::{CheckArgs, CheckError, check};
use feedmill_operator::leader::Candidate;
use http::StatusCode;
use kube::Client;
use serde_json::json;
use support::{NAMESPACE, PIPELINES, Server};

fn arguments() -> CheckArgs {
    CheckArgs { namespace: None, own_namespace: NAMESPACE.into(), lease: "feedmill".into(), seconds: 60 }
}

/// A client whose looks at a lease are refused with these codes, one after the other, and then answered.
fn refused(server: &Server, codes: impl Iterator<Item = u16> + Send + 'static) -> Client {
    let codes = Arc::new(Mutex::new(codes));
    let router = server.router().layer(from_fn(move |request: Request, next: Next| {
        let is_look = request.uri().path().contains("/leases/");
        let code = is_look.then(|| codes.lock().unwrap().next()).flatten();
        async move {
            let Some(code) = code else { return next.run(request).await };
            let status = json!({"status": "Failure", "message": "no", "reason": "no", "code": code});
            (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
        }
    }));
    Client::new(router, NAMESPACE)
}

#[tokio::test(start_paused = true)]
async fn one_look_at_the_lease_that_failed_ended_the_check() {
    let server = Server::start();
    let mut candidate = Candidate::new(server.client(), NAMESPACE, "feedmill", "one");
    let since = candidate.acquire().await;
    let holds = tokio::spawn(async move { candidate.hold(since).await.map(|never| match never {}) });
    let client = refused(&server, [500, 503, 429].into_iter());
    assert_eq!(check(client, &arguments()).await.unwrap(), "one");
    holds.abort();
    // What never passes is told with its reason: at once, or at the end.
    for (client, code) in [(refused(&server, once(403)), 403), (refused(&server, repeat(500)), 500)] {
        let error = check(client, &arguments()).await.unwrap_err();
        let CheckError::Lease { source: kube::Error::Api(status), .. } = error else { panic!("{error}") };
        assert_eq!(status.code, code);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answered_was_waited_for_for_ever() {
    let silent = from_fn(|_: Request, _: Next| pending::<Response>());
    let client = Client::new(Server::start().router().layer(silent), NAMESPACE);
    let error = check(client, &arguments()).await.unwrap_err();
    assert!(matches!(error, CheckError::Silent { seconds: 60 }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn whoever_renews_the_lease_is_at_work() {
    let server = Server::start();
    let mut candidate = Candidate::new(server.client(), NAMESPACE, "feedmill", "one");
    candidate.acquire().await;
    // Had, and not renewed: its holder may be dead.
    let error = check(server.client(), &arguments()).await.unwrap_err();
    assert!(matches!(error, CheckError::Nobody { .. }), "{error}");
    let since = candidate.acquire().await;
    let holds = tokio::spawn(async move { candidate.hold(since).await.map(|never| match never {}) });
    assert_eq!(check(server.client(), &arguments()).await.unwrap(), "one");
    holds.abort();
}

#[tokio::test(start_paused = true)]
async fn an_installation_without_definition_or_operator_is_told() {
    let server = Server::start();
    let error = check(server.client(), &arguments()).await.unwrap_err();
    assert!(error.to_string().contains("within 60 s"), "{error}");
    server.forbid_lists(PIPELINES);
    let error = check(server.client(), &arguments()).await.unwrap_err();
    assert!(matches!(error, CheckError::Definition(_)), "{error}");
}
