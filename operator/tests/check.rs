//! Whether an installation is at work, as `helm test` asks.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use feedmill_operator::check::{CheckArgs, CheckError, check};
use feedmill_operator::leader::Candidate;
use support::{NAMESPACE, PIPELINES, Server};

fn arguments() -> CheckArgs {
    CheckArgs { namespace: None, own_namespace: NAMESPACE.into(), lease: "feedmill".into(), seconds: 60 }
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
