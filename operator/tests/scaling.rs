//! Mode Internal, of the whole operator against an API server in the process: what one decision leaves to the next.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use feedmill_operator::metrics::Metrics;
use feedmill_operator::run::{Unreadable, look_after};
use feedmill_operator::settings::OperatorArgs;
use serde_json::{Value, json};
use support::{DEPLOYMENTS, PIPELINES, Server, pipeline};
use tokio::task::JoinHandle;

const MAPS: &str = "api/v1/configmaps";

fn operator(server: &Server) -> JoinHandle<()> {
    let command = OperatorArgs::augment_args(Command::new("operator"));
    let words = ["operator", "--worker-image=worker:1", "--identity=me", "--without-nodes"];
    let settings = OperatorArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
    let client = server.client.clone();
    tokio::spawn(async move {
        let metrics = Arc::new(Metrics::new().unwrap());
        let ended = look_after(client, &settings, metrics, &Unreadable::default()).await;
        panic!("{ended:?}")
    })
}

fn scaled() -> Value {
    pipeline(
        "fleet",
        &json!({"replicas": 2, "autoscaling": {"mode": "Internal", "minReplicas": 1, "maxReplicas": 9}}),
    )
}

fn ready(server: &Server) -> Option<(Value, String)> {
    let object = server.get(PIPELINES, "team", "fleet")?;
    let conditions = object["status"]["conditions"].as_array()?.clone();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?.clone();
    Some((ready["reason"].clone(), ready["message"].as_str().unwrap_or_default().to_owned()))
}

fn wanted(server: &Server) -> Option<i64> {
    server.get(DEPLOYMENTS, "team", "fleet-worker")?["spec"]["replicas"].as_i64()
}

#[tokio::test]
async fn a_map_of_somebody_else_is_told_of_and_holds_up_no_worker() {
    let server = Server::start().await;
    let theirs = json!({"metadata": {"name": "fleet-scaling", "namespace": "team"}, "data": {"mine": "1"}});
    server.put(MAPS, theirs);
    let before = server.get(MAPS, "team", "fleet-scaling");
    server.put(PIPELINES, scaled());
    let running = operator(&server);
    server
        .until("the conflict is told", |server| {
            ready(server).is_some_and(|(reason, message)| {
                reason == "NameConflict" && message.contains("ConfigMap fleet-scaling")
            })
        })
        .await;
    server.until("2 are wanted", |server| wanted(server) == Some(2)).await;
    assert_eq!(server.get(MAPS, "team", "fleet-scaling"), before);
    running.abort();
}

#[tokio::test]
async fn a_map_that_was_left_behind_is_taken_back_and_its_state_is_not_believed() {
    let server = Server::start().await;
    // As `kubectl delete --cascade=orphan` leaves it.
    let left = json!({"metadata": {"name": "fleet-scaling", "namespace": "team", "labels": {
        "app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
        "data": {"state": "of a namesake"}});
    server.put(MAPS, left);
    server.put(PIPELINES, scaled());
    let running = operator(&server);
    server
        .until("it is taken back", |server| {
            let map = server.get(MAPS, "team", "fleet-scaling").unwrap();
            map["metadata"]["ownerReferences"][0]["uid"] == "uid-of-fleet"
                && map["data"]["state"] != "of a namesake"
        })
        .await;
    server.until("2 are wanted", |server| wanted(server) == Some(2)).await;
    running.abort();
}
