//! The number of workers, by the whole operator against an API server in the process: what one decision leaves to the next, and what is told.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use feedmill_operator::metrics::Metrics;
use feedmill_operator::run::{Unreadable, look_after};
use feedmill_operator::settings::OperatorArgs;
use serde_json::{Value, json};
use support::{DEPLOYMENTS, PIPELINES, PODS, Server, pipeline};
use tokio::task::JoinHandle;

const MAPS: &str = "api/v1/configmaps";

fn operator(server: &Server, metrics: &Arc<Metrics>) -> JoinHandle<()> {
    let command = OperatorArgs::augment_args(Command::new("operator"));
    let words = ["operator", "--worker-image=worker:1", "--identity=me", "--without-nodes"];
    let settings = OperatorArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
    let (client, metrics) = (server.client.clone(), Arc::clone(metrics));
    tokio::spawn(async move {
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

fn is_ready_for(server: &Server, why: &str) -> bool {
    ready(server).is_some_and(|(reason, _)| reason == why)
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
    let running = operator(&server, &Arc::new(Metrics::new().unwrap()));
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
    let running = operator(&server, &Arc::new(Metrics::new().unwrap()));
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

#[tokio::test]
async fn workers_of_a_pipeline_with_a_contradiction_are_counted() {
    let (server, metrics) = (Server::start().await, Arc::new(Metrics::new().unwrap()));
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let running = operator(&server, &metrics);
    server.until("2 are wanted", |server| wanted(server) == Some(2)).await;
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["cache"]["fetch"] = json!("1Mi"));
    server.until("it is told", |server| is_ready_for(server, "InvalidSpec")).await;
    let ready = || {
        let text = metrics.text().unwrap();
        let line = text.lines().find(|line| line.starts_with("feedmill_ready_workers{")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(ready(), "0");
    let pod = json!({"metadata": {"name": "p", "namespace": "team", "labels": {
        "app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
        "spec": {"containers": []}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    server.put(PODS, pod);
    let told =
        |server: &Server| server.get(PIPELINES, "team", "fleet").unwrap()["status"]["readyReplicas"] == 1;
    server.until("one is ready", told).await;
    assert_eq!(ready(), "1");
    running.abort();
}
